"""The data of a run: where it is, and a bar while it is downloaded or listed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dcnets.cli.failures import leads
from dcnets.experiments.data import cifar, idx, locate, subset
from dcnets.experiments.data.catalogue import CATALOGUE, STREAMS, names
from dcnets.experiments.data.download import Progress as Report
from dcnets.experiments.data.download import fetch
from dcnets.experiments.progress import Progress
from dcnets.experiments.recipe import Recipe
from dcnets.naming import choose

MEGABYTE = 1_000_000
SECONDS = 5.0
"""From one line about a long listing to the next."""


def found(name: str, folder: Path | None) -> Path | None:
    """Where a data set is, or None."""
    place = locate(folder)
    if name in idx.HOMES:
        files = idx.find(name, place)
        return files[0].parent if files else None
    if name in cifar.LAYOUTS:
        layout = cifar.find(name, place)
        return layout[1] if layout else None
    if name == "folder":
        return place if all((place / split).is_dir() for split in ("train", "val")) else None
    if name == "webdataset":
        return place if next(place.glob("train*.tar"), None) or next(place.glob("train/*.tar"), None) else None
    return Path(subset.__file__).parent / subset.FILE


def supply(recipe: Recipe, folder: Path | None, *, quiet: bool = False) -> None:
    """Download a recipe's data if it is not there, after a look at whether its network can be built."""
    name = choose("data set", recipe.data, names())
    if name in STREAMS or found(name, folder) is not None:
        return
    from dcnets.experiments.rebuild import blank

    blank(recipe)
    download(name, folder, quiet=quiet)


def download(name: str, folder: Path | None, *, quiet: bool = False) -> None:
    """Fetch the files of a data set that are not there, with a bar for each."""
    for remote in CATALOGUE[name].files:
        with transfer(quiet) as report:
            fetch(remote, locate(folder), report)


@contextmanager
def transfer(quiet: bool) -> Iterator[Report]:
    """What a download reports to: a bar in megabytes, which begins with the first report."""
    bars: list[Progress] = []

    def report(file: str, done: int, total: int | None) -> None:
        if not bars:
            bars.append(Progress(file, -(-(total or 0) // MEGABYTE), unit="MB", quiet=quiet).__enter__())
        bars[0].update(-(-done // MEGABYTE))

    try:
        yield report
    finally:
        for bar in bars:
            bar.__exit__(None, None, None)


def listing(recipe: Recipe, *, quiet: bool) -> dict[str, Any]:
    """The keyword with which `data.stream` reports what it lists: a line now and then, where there is much of it."""
    if recipe.data not in STREAMS or quiet or not leads():
        return {}
    told = time.perf_counter()

    def report(where: str, done: int, total: int | None) -> None:
        nonlocal told
        if time.perf_counter() - told >= SECONDS:
            told = time.perf_counter()
            click.echo(f"listing {where}: {done:,}" + (f" of {total:,}" if total else ""), err=True)

    return {"progress": report}
