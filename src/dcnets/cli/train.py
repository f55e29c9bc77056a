"""`dcnets train`: a recipe, changed as the options say, trained on one device or, under torchrun, on many."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import DIVERGED, Failure, leads
from dcnets.cli.options import compile_options, data_option, device_option, how, place, stream_options, stream_values
from dcnets.cli.output import percent
from dcnets.cli.recipe_options import changed, default_folder, recipe_options, taken
from dcnets.cli.words import FILE, FOLDER, THERE, RecipeName, count
from dcnets.experiments.data.catalogue import STREAMS
from dcnets.experiments.recipe import Recipe

if TYPE_CHECKING:
    from dcnets.experiments.settings import Outcome

RESULTS = Path("results/runs.jsonl")

EXAMPLES = (
    "dcnets train mnist-subset-features2d-tanh-cosine",
    "dcnets train cifar100-resnet32-tanh-cosine --data ~/data --seed 1",
    "dcnets train cifar100-cnn9 --operator segmented-cosine --no-relu --epochs 20",
    "torchrun --nproc-per-node 8 -m dcnets train imagenet-resnet18 --data /imagenet",
)


@click.command(cls=Command, short_help="Train a network by a recipe.", examples=EXAMPLES)
@click.argument("recipe", type=RecipeName())
@data_option
@click.option("--folder", type=FOLDER, metavar="DIR", help="Where the run is kept.  [default: runs/RECIPE-CHANGES-seedN]")
@click.option("--results", "results_file", type=FILE, default=RESULTS, metavar="FILE", show_default=True,
              help="File to which the run's line is appended.")  # fmt: skip
@click.option("--start", type=THERE, metavar="PATH", help="Begin with the weights of another run: its folder or checkpoint.")
@click.option("--fresh", is_flag=True, help="Begin anew, even where the folder holds a run: its checkpoints are removed.")
@device_option
@compile_options
@click.option("--accumulate", type=count("--accumulate"), default=1, metavar="N", show_default=True,
              help="Pieces in which a process works through its batch, to save memory.")  # fmt: skip
@click.option("--sync-bn", is_flag=True, help="Under torchrun: batch norm over the whole batch.")
@click.option("--sync-radius", is_flag=True, help="Under torchrun: the mean norm that radii count in, over the whole batch.")
@click.option("--save-seconds", type=click.FLOAT, default=60.0, metavar="NUMBER", show_default=True,
              help="Time from one checkpoint to the next.")  # fmt: skip
@click.option("--threads", type=count("--threads"), metavar="N", help="Threads of a process on the CPU.")
@click.option("--quiet", is_flag=True, help="Neither bar nor tests: the summary alone.")
@click.option("--tensorboard", is_flag=True, help="Write the metrics for TensorBoard too.")
@stream_options(training=True)
@recipe_options
def train(
    recipe: Recipe, data_folder: Path | None, folder: Path | None, results_file: Path, start: Path | None, device: str,
    compiled: bool | None, captured: bool | None, accumulate: int, threads: int | None, quiet: bool, **rest: Any,
) -> None:  # fmt: skip
    """Train a network by a RECIPE (`dcnets recipes` lists them); any of its fields can be changed.

    A run that was stopped or killed goes on where it was: give the same command again.
    """
    recipe = changed(recipe, taken(rest), start)
    streamed = stream_values(rest, recipe)
    import torch

    from dcnets.cli.supply import listing, supply
    from dcnets.experiments.run import run
    from dcnets.experiments.settings import Settings

    if threads is not None:
        torch.set_num_threads(threads)
    device = place(device)
    simple = os.environ.get("WORLD_SIZE", "1") == "1" and (accumulate == 1 or recipe.data not in STREAMS)
    compiled, captured = how(device, compiled, captured, simple=simple)
    settings = Settings(compiled, captured, accumulate, quiet=quiet, **rest)
    folder = folder or default_folder(recipe)
    if leads():
        supply(recipe, data_folder, quiet=quiet)
    outcome = run(
        recipe, data_folder=data_folder, folder=folder, results_file=results_file, start=start, device=device,
        settings=settings, **listing(recipe, quiet=quiet), **streamed,
    )  # fmt: skip
    if outcome.divergence:
        raise Failure(
            f"did not converge: {outcome.divergence}; its line in {results_file} says N/C, its state is in {folder}",
            DIVERGED,
        )
    if leads():
        click.echo(summary(outcome, folder, results_file))


def summary(outcome: Outcome, folder: Path, results_file: Path) -> str:
    """What came of a run, in three lines."""
    last = outcome.history[-1]
    return (
        f"{outcome.recipe.name}: {outcome.steps:,} updates in {spoken_time(outcome.seconds)}\n"
        f"test error {percent(1 - last['test_top1'])}, top-5 error {percent(1 - last['test_top5'])}\n"
        f"the run is in {folder}, its line in {results_file}"
    )


def spoken_time(seconds: float) -> str:
    """A time with three digits, or in hours and minutes."""
    from dcnets.experiments.bar import clock

    return f"{seconds:.3g} s" if seconds < 100 else clock(seconds)
