"""`dcnets figure`: one figure of the paper, drawn again, as a file."""

from __future__ import annotations

from pathlib import Path

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import Misuse
from dcnets.cli.reproduce import read_scale
from dcnets.cli.words import FILE, FOLDER, Word
from dcnets.experiments import paper
from dcnets.experiments.report.figures import FROM_LINES, NAMES
from dcnets.naming import choose

RUNS = Path("runs")
RESULTS = Path("results")

EXAMPLES = (
    "dcnets figure 2 --out operators.svg",
    "dcnets figure 4 --results results/runs.jsonl --out convergence.png",
    "dcnets figure attacks --scale 1 --out tables.svg",
    "dcnets figure 6 --runs runs --out features.svg",
    "dcnets figure radii --runs runs",
)


def read_figure(text: str) -> str:
    """The name of a figure that can be drawn."""
    name = text.lower().removeprefix("fig")
    if name.isdecimal() and int(name) in paper.FIGURES and name not in NAMES:
        raise ValueError(f"Fig. {name} cannot be drawn: {paper.FIGURES[int(name)].shows}; choose one of {', '.join(NAMES)}")
    return choose("figure", name, NAMES)


data_option = click.option("--data", "data_folder", type=FOLDER, metavar="DIR",
                           help="Folder of MNIST, for figures 1, 6 and 7; nothing is downloaded.")  # fmt: skip


class FigureName(Word):
    """The number of a figure, or the name of one that the paper does not have."""

    such_as = f", one of {', '.join(NAMES)}"

    def __init__(self) -> None:
        super().__init__("figure", read_figure, lambda: NAMES)


def runs_folder(given: Path | None) -> Path | None:
    """The folder of runs that was given, which has to be there, or the usual one where it is there."""
    if given is not None and not given.is_dir():
        raise Misuse(
            f"--runs {given} does not exist; give the folder that `dcnets train` or `dcnets reproduce` kept runs in"
        )
    return given or (RUNS if RUNS.is_dir() else None)


@click.command(cls=Command, short_help="One figure of the paper, drawn again.", examples=EXAMPLES)
@click.argument("name", type=FigureName(), metavar="N")
@click.option("--out", type=FILE, metavar="FILE", help="The picture: .svg, .png or .pdf.  [default: figN.svg]")
@click.option("--results", "results_paths", type=click.Path(path_type=Path), multiple=True, metavar="DIR_OR_FILE",
              help=f"Lines of results, for figures {', '.join(FROM_LINES)}; repeatable.  [default: {RESULTS}]")  # fmt: skip
@click.option("--scale", type=Word("scale", read_scale, lambda: ()), metavar="NUMBER",
              help="Only lines of this scale of the schedules; by default all.")  # fmt: skip
@click.option("--runs", type=FOLDER, metavar="DIR",
              help=f"Folder of runs, for figures 1, 6, 7, filters and radii.  [default: {RUNS}]")  # fmt: skip
@data_option
def figure(
    name: str, out: Path | None, results_paths: tuple[Path, ...], scale: float | None, runs: Path | None,
    data_folder: Path | None,
) -> None:  # fmt: skip
    """Draw figure N: 1, 2, 3, 4, 6 or 7 of the paper, curves (CNN-9's convergence), attacks (Tables 7 and 8), robustness
    (accuracy over ε), filters or radii.

    2 and 3 are computed by the operators, 4, curves, attacks and robustness come from lines of results, the others from
    networks in a folder of runs. Needs the extra demo.
    """
    if scale is not None and name not in FROM_LINES:
        raise Misuse(f"--scale chooses among lines of results, for figures {', '.join(FROM_LINES)}; {name} has none")
    folder = runs_folder(runs)
    from dcnets.experiments.plotting import check
    from dcnets.experiments.report.collect import Found, collect, read
    from dcnets.experiments.report.drawing import draw
    from dcnets.experiments.report.figures import Sources, picture

    path = out or Path(f"fig{name}.svg" if name.isdecimal() else f"{name}.svg")
    try:
        check(path)
    except ValueError as error:
        raise Misuse(str(error)) from None
    found = read(results_paths or (RESULTS,)) if name in FROM_LINES else Found(())
    lines = collect(found if scale is None else found.at(scale))
    for told in lines.torn:
        click.echo(told, err=True)
    made = picture(name, Sources(lines, folder, data_folder))
    draw(made, path)
    for told in made.missing:
        click.echo(told, err=True)
    click.echo(f"{made.title}: {path}")
