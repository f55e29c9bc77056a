"""`dcnets report`: our runs beside the paper's tables, its claims and figures, on one page."""

from __future__ import annotations

from pathlib import Path

import click

from dcnets.cli.command import Command
from dcnets.cli.figure import RESULTS, RUNS, data_option, runs_folder
from dcnets.cli.words import FILE, FOLDER

PAGE = Path("report") / "index.html"

EXAMPLES = (
    "dcnets report",
    "dcnets report --results results/runs.jsonl --runs runs --out report/index.html",
    "dcnets report --markdown docs/results.md",
)


@click.command(cls=Command, short_help="Our runs beside the paper's, as a page.", examples=EXAMPLES)
@click.option("--results", "results_paths", type=click.Path(path_type=Path), multiple=True, metavar="DIR_OR_FILE",
              help=f"Lines of results: a folder's .jsonl files, or a file; repeatable.  [default: {RESULTS}]")  # fmt: skip
@click.option("--runs", type=FOLDER, metavar="DIR", help=f"Folder of runs, for features, filters, radii.  [default: {RUNS}]")
@data_option
@click.option(
    "--out", type=FILE, default=PAGE, metavar="FILE", show_default=True, help="The page, which needs no other file."
)
@click.option("--markdown", type=FILE, metavar="FILE", help="Tables and claims as Markdown too.")
def report(
    results_paths: tuple[Path, ...], runs: Path | None, data_folder: Path | None, out: Path, markdown: Path | None
) -> None:
    """Write one page with each table of the paper beside our runs, what they say of its claims, and its figures.

    Lines that are shortened, or of other settings or versions, are shown apart and never mixed in. What is not run yet is
    said in its place.
    """
    folder = runs_folder(runs)
    from dcnets.experiments.report import markdown as tables
    from dcnets.experiments.report import page
    from dcnets.experiments.report.collect import collect, read
    from dcnets.experiments.report.figures import NAMES, Sources, picture
    from dcnets.experiments.report.summary import standard, tally

    found = collect(read(results_paths or (RESULTS,)))
    for told in found.torn:
        click.echo(told, err=True)
    sources = Sources(found, folder, data_folder)
    text = page.write(found, [picture(name, sources) for name in NAMES])
    for path, written in ((out, text), *([(markdown, tables.write(found))] if markdown else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written, encoding="utf-8")
    click.echo(tally(found))
    click.echo(standard(found))
    click.echo(f"the page is {out}" + (f", the Markdown {markdown}" if markdown else ""))
