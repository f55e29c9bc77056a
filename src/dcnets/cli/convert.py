"""`dcnets convert`: a trained ordinary network decoupled, calibrated and saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcnets.cli.command import Command
from dcnets.cli.options import data_option, device_option, place, stream_options, stream_values
from dcnets.cli.output import show
from dcnets.cli.words import FOLDER, THERE, count, one_of

if TYPE_CHECKING:
    from torch import Tensor

    from dcnets.cli.scoring import Set
    from dcnets.experiments.recipe import Recipe

EXAMPLES = (
    "dcnets convert runs/cifar100-cnn9-seed0 --operator tanh-cosine --out runs/converted",
    "dcnets train cifar100-cnn9-tanh-cosine --start runs/converted",
)


@click.command(cls=Command, short_help="Decouple a trained ordinary network.", examples=EXAMPLES)
@click.argument("path", type=THERE, metavar="FOLDER_OR_CHECKPOINT")
@click.option("--operator", required=True, metavar="NAME", help="Operator such as tanh-cosine.")
@click.option("--layers", type=one_of("layers", "spatial", "convolutions", "all"), default="spatial", show_default=True,
              metavar="spatial|convolutions|all", help="Which layers; spatial: convolutions larger than 1×1.")  # fmt: skip
@click.option("--calibrate", "batches", type=count("--calibrate", least=0), default=20, show_default=True, metavar="N",
              help="Training batches from which running norms and batch norm are estimated; 0: none.")  # fmt: skip
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the converted network's checkpoint.")
@data_option
@device_option
@stream_options(training=False)
def convert(
    path: Path, operator: str, layers: str, batches: int, out: Path, data_folder: Path | None, device: str, **rest: Any
) -> None:
    """Decouple a trained ordinary network, test it before and after, and save it.

    `dcnets evaluate` tests what was saved; `dcnets train RECIPE --start DIR` trains it further, where RECIPE has the same
    network and operator.
    """
    import dcnets
    from dcnets.cli.scoring import open_set, score, scores_table
    from dcnets.experiments import checkpoint
    from dcnets.experiments.checkpoint import CheckpointError
    from dcnets.experiments.rebuild import CROP, rebuild
    from dcnets.models.selection import SELECTIONS

    device, spec = place(device), str(dcnets.Operator.parse(operator))
    if checkpoint.found(out):
        raise CheckpointError(f"{out} already holds checkpoints, which would be lost; choose another --out")
    rebuilt = rebuild(path, rest.get("stream_crop") or CROP)
    recipe, model = rebuilt.recipe, rebuilt.model
    if recipe.operator is not None:
        raise ValueError(
            f"{rebuilt.checkpoint.path} is already decoupled ({recipe.operator}); convert takes an ordinary network"
        )
    opened = open_set(recipe, data_folder, device, recipe.batch, False, stream_values(rest, recipe))
    scores = {"before": score(model, opened, recipe, device, title="test before")}
    model, report = dcnets.convert(model, select=SELECTIONS[layers], operator=spec)
    show(
        ("layer", "kind", ""),
        [(*row, "replaced") for row in report.replaced]
        + [(name, kind, f"skipped: {why}") for name, kind, why in report.skipped],
    )
    if batches:
        dcnets.calibrate(model, training_batches(opened, recipe, device, batches))
    scores["after"] = score(model, opened, recipe, device, title="test after")
    scores_table(scores)
    new = dataclasses.replace(recipe, name=f"{recipe.name}-converted_{spec}", operator=spec, decouple=layers)  # type: ignore[arg-type]
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    saved = checkpoint.save(out, 0, tensors, {"recipe": dataclasses.asdict(new), "converted": str(rebuilt.checkpoint.path)})
    click.echo(f"{len(report.replaced)} layers replaced; the network is in {saved}")


def training_batches(opened: Set, recipe: Recipe, device: str, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first batches of the recipe's first epoch, or all where there are fewer."""
    from dcnets.experiments.data import Source, Stream
    from dcnets.experiments.data.augment import Augmentation
    from dcnets.experiments.data.resident import Resident

    augmentation = Augmentation(recipe.pad, recipe.pad_mode, recipe.flip)
    source: Source = (
        opened
        if isinstance(opened, Stream)
        else Resident(
            opened.train, recipe.batch, mean=opened.mean, std=opened.std, augmentation=augmentation, seed=recipe.seed,
            device=device,
        )
    )  # fmt: skip
    source.begin(0)
    for _ in range(min(count, source.batches)):
        source.advance()
        yield source.batch()
