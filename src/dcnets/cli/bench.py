"""`dcnets bench`: the time of training updates beside the ordinary network's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dcnets.cli.command import Command
from dcnets.cli.options import compile_options, device_option, how, place
from dcnets.cli.output import show
from dcnets.cli.words import FILE, RecipeName, count
from dcnets.experiments.recipe import Recipe

RECIPES = {
    "cpu": tuple(f"mnist-subset-features2d-{magnitude}-cosine" for magnitude in ("sphere", "ball", "tanh")),
    "cuda": ("cifar100-cnn9-tanh-cosine", "cifar100-cnn9-segmented-cosine", "cifar100-resnet32-tanh-cosine"),
}
UPDATES = {"cpu": 10, "cuda": 100}

EXAMPLES = ("dcnets bench cifar100-cnn9-tanh-cosine --updates 50",)


@click.command(cls=Command, short_help="Time training updates.", examples=EXAMPLES)
@click.argument("recipes", type=RecipeName(), nargs=-1, metavar="[RECIPE]...")
@click.option("--updates", type=count("--updates"), metavar="N", help="Updates in a round.  [default: 10, on a GPU 100]")
@device_option
@compile_options
@click.option("--results", "results_file", type=FILE, default=Path("results/bench.jsonl"), metavar="FILE", show_default=True,
              help="File to which a line for each recipe is appended.")  # fmt: skip
def bench(
    recipes: tuple[Recipe, ...], updates: int | None, device: str, compiled: bool | None, captured: bool | None,
    results_file: Path,
) -> None:  # fmt: skip
    """Time the updates of some recipes, each in turns with the ordinary network that it is a twin of.

    The ratio is that of the two times; the control is the ordinary network against itself, and tells how far to trust the
    ratio. The images are random, so no data is needed.
    """
    from rich.console import Console

    from dcnets.experiments import results
    from dcnets.experiments.bench import bench as measure

    device = place(device)
    compiled, captured = how(device, compiled, captured)
    rows: list[dict[str, Any]] = []
    for name in [recipe.name for recipe in recipes] or RECIPES[device]:
        with Console(stderr=True).status(f"timing {name}"):
            rows += measure([name], updates=updates or UPDATES[device], device=device, compiled=compiled, captured=captured)
        results.append(results_file, {**results.environment(device), **rows[-1]})
    numbers = ("ms an update", "images/s", "ratio", "control", "peak MiB")
    show(("recipe", *numbers), [cells(row) for row in rows], numbers)
    click.echo(f"ratio: to the ordinary network, in the same run; appended to {results_file}")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A measurement as it is shown."""
    return (
        row["recipe"], f"{row['milliseconds']:.4g}", f"{row['images_per_second']:,.0f}", f"{row['ratio']:.2f}",
        f"{row['control']:.2f}", "–" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f}",
    )  # fmt: skip
