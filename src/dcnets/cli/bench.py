"""`dcnets bench`: the time of training updates beside the ordinary network's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import Misuse
from dcnets.cli.options import compile_options, device_option, how, place
from dcnets.cli.output import show
from dcnets.cli.words import FILE, RecipeName, Word, count
from dcnets.experiments.recipe import Recipe

RECIPES = {
    "cpu": tuple(f"mnist-subset-features2d-{magnitude}-cosine" for magnitude in ("sphere", "ball", "tanh")),
    "cuda": ("cifar100-cnn9-tanh-cosine", "cifar100-cnn9-segmented-cosine", "cifar100-resnet32-tanh-cosine"),
}
UPDATES = {"cpu": 10, "cuda": 100}

RESULTS, TABLE_RESULTS = Path("results/bench.jsonl"), Path("results/bench-gpu.jsonl")

EXAMPLES = ("dcnets bench cifar100-cnn9-tanh-cosine --updates 50",)


def read_rows(text: str) -> list[str]:
    """The rows of the table that a text names."""
    from dcnets.experiments.gpu_table import read_names

    return read_names(text)


@click.command(cls=Command, short_help="Time training updates.", examples=EXAMPLES)
@click.argument("recipes", type=RecipeName(), nargs=-1, metavar="[RECIPE]...")
@click.option("--updates", type=count("--updates"), metavar="N", help="Updates in a round.  [default: 10, on a GPU 100]")
@device_option
@compile_options
@click.option("--table", is_flag=True, help="On a GPU: the table of networks, each ratio beside its bar.")
@click.option("--rows", type=Word("rows", read_rows, lambda: ()), metavar="ROW,…",
              help="Rows of the table, such as resnet32,memory.  [default: all]")  # fmt: skip
@click.option("--jobs", type=count("--jobs"), metavar="N",
              help="Networks of the table that are compiled at once.  [default: half of the cores, 8 at most]")  # fmt: skip
@click.option("--results", "results_file", type=FILE, metavar="FILE",
              help="File to which a line for each recipe or row is appended.  "
                   f"[default: {RESULTS}, of the table {TABLE_RESULTS}]")  # fmt: skip
def bench(
    recipes: tuple[Recipe, ...], updates: int | None, device: str, compiled: bool | None, captured: bool | None,
    table: bool, rows: list[str] | None, jobs: int | None, results_file: Path | None,
) -> None:  # fmt: skip
    """Time the updates of some recipes, each in turns with the ordinary network that it is a twin of.

    The ratio is that of the two times; the control is the ordinary network against itself, and tells how far to trust the
    ratio. The images are random, so no data is needed. --table measures some networks on a GPU in several ways instead.
    """
    if table:
        if recipes or (updates, compiled, captured) != (None, None, None):
            raise Misuse("--table has networks of its own; leave out recipes, --updates, --compile and --capture")
        show_table(rows, device, jobs, results_file or TABLE_RESULTS)
    elif (rows, jobs) != (None, None):
        raise Misuse("--rows and --jobs are those of --table; add it")
    else:
        show_recipes([recipe.name for recipe in recipes], updates, device, compiled, captured, results_file or RESULTS)


def show_recipes(
    names: list[str], updates: int | None, device: str, compiled: bool | None, captured: bool | None, results_file: Path
) -> None:
    """Time recipes of these names, or the usual ones."""
    from rich.console import Console

    from dcnets.experiments import results
    from dcnets.experiments.bench import bench as measure

    device = place(device)
    compiled, captured = how(device, compiled, captured)
    rows: list[dict[str, Any]] = []
    for name in names or RECIPES[device]:
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


def show_table(names: list[str] | None, device: str, jobs: int | None, results_file: Path) -> None:
    """Measure rows of the table, all of them by default; each is told as soon as it is there."""
    import torch

    from dcnets.experiments import gpu_table

    if device == "cpu" or not torch.cuda.is_available():
        raise ValueError("--table is measured on a GPU, and there is none here; leave it out to time recipes on a CPU")
    rows = []
    for row in gpu_table.table(names or gpu_table.names(), results_file, torch.device("cuda"), jobs):
        rows.append(gpu_table.cells(row))
        click.echo("  ".join(rows[-1]), err=True)
    show(gpu_table.COLUMNS, rows, gpu_table.NUMBERS)
    click.echo(f"ratio: to the baseline, in the same run; appended to {results_file}")
