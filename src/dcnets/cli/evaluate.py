"""`dcnets evaluate`: the test error of a trained network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dcnets.cli.command import Command
from dcnets.cli.options import data_option, device_option, place, stream_options, stream_values
from dcnets.cli.words import THERE, count

EXAMPLES = ("dcnets evaluate runs/mnist-subset-features2d-tanh-cosine-seed0",)


@click.command(cls=Command, short_help="Test a trained network.", examples=EXAMPLES)
@click.argument("path", type=THERE, metavar="FOLDER_OR_CHECKPOINT")
@data_option
@device_option
@click.option("--batch", type=count("--batch"), metavar="N", help="Images at a time.  [default: 1000; of streams 100]")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON in place of a table, and no bar.")
@stream_options(training=False)
def evaluate(path: Path, data_folder: Path | None, device: str, batch: int | None, as_json: bool, **rest: Any) -> None:
    """Test a trained network: the newest checkpoint in a run's folder, or one checkpoint's file.

    The checkpoint says which network, operator and data set it is.
    """
    from dcnets.cli.scoring import open_set, score, scores_table
    from dcnets.experiments import jsonlines
    from dcnets.experiments.rebuild import CROP, rebuild

    device = place(device)
    rebuilt = rebuild(path, rest.get("stream_crop") or CROP)
    found, recipe = rebuilt.checkpoint, rebuilt.recipe
    opened = open_set(recipe, data_folder, device, 1, as_json, stream_values(rest, recipe))
    if opened.num_classes != rebuilt.num_classes:
        raise ValueError(
            f"the network in {found.path} knows {rebuilt.num_classes} classes, the data has {opened.num_classes}; "
            "give the data that it was trained on"
        )
    if found.note:
        click.echo(found.note, err=True)
    scores = score(rebuilt.model, opened, recipe, device, batch, title="test", quiet=as_json)
    if as_json:
        line = {
            "checkpoint": str(found.path), "step": found.step, "recipe": recipe.name, "data": recipe.data,
            "top1_error": 100 * (1 - scores.top1), "top5_error": 100 * (1 - scores.top5), "loss": scores.loss,
            "images": scores.count,
        }  # fmt: skip
        click.echo(json.dumps(jsonlines.plain(line)))
    else:
        scores_table({f"{recipe.name}, update {found.step:,}": scores})
