"""`dcnets data`: the data sets, where they are looked for, and their download."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import Misuse
from dcnets.cli.output import show
from dcnets.cli.words import FOLDER, Word
from dcnets.experiments.data.catalogue import CATALOGUE, STREAMS, names
from dcnets.naming import choose

EXAMPLES = (
    "dcnets data",
    "dcnets data cifar100 --download --data ~/data",
)


@click.command(cls=Command, short_help="List, check and download data sets.", examples=EXAMPLES)
@click.argument("name", type=Word("data set", lambda text: choose("data set", text, names()), names), required=False)
@click.option("--data", "folder", type=FOLDER, metavar="DIR",
              help="Folder to look in; else that of DCNETS_DATA, else ~/.cache/dcnets.")  # fmt: skip
@click.option("--download", "wanted", is_flag=True, help="Fetch NAME, if it is not there.")
@click.option("--verify", is_flag=True, help="Read NAME, or all that is there, and check it; streams are listed.")
def data(name: str | None, folder: Path | None, wanted: bool, verify: bool) -> None:
    """List the data sets and where they are, or tell all about the data set NAME."""
    from dcnets.cli.supply import download, found
    from dcnets.experiments.data import locate

    if wanted:
        if name is None or not (CATALOGUE[name].files if name in CATALOGUE else ()):
            fetched = ", ".join(each for each, entry in CATALOGUE.items() if entry.files)
            raise Misuse(f"--download fetches one of {fetched}; name it")
        if found(name, folder) is None:
            download(name, folder)
    if name is None:
        rows = [(each, *numbers(each), shown(found(each, folder))) for each in names()]
        show(("data set", "training", "test", "classes", "images", "where"), rows, ("training", "test", "classes"))
        for each, told in STREAMS.items():
            click.echo(f"{each}: {told}")
        click.echo(f"looked for in {locate(folder)}; --data DIR or the variable DCNETS_DATA names another folder")
    else:
        describe(name, folder, found(name, folder))
    if verify:
        for each in names() if name is None else [name]:
            if name is not None or found(each, folder) is not None:
                click.echo(f"{each}: {check(each, folder)}")


def numbers(name: str) -> tuple[str, str, str, str]:
    """Images for training and test, classes and shape, as far as they are known before a look at the files."""
    if name in STREAMS:
        return "–", "–", "–", "of any size"
    entry = CATALOGUE[name]
    return f"{entry.train:,}", f"{entry.test:,}", str(len(entry.classes)), f"{entry.channels}×{entry.size}×{entry.size}"


def shown(place: Path | None) -> str:
    """Where a data set is."""
    return "not there" if place is None else "inside the package" if "embedded" in place.parts else str(place)


def describe(name: str, folder: Path | None, place: Path | None) -> None:
    """All about one data set, line by line."""
    from dcnets.experiments.data import locate

    entry = CATALOGUE.get(name)
    if entry is None:
        click.echo(f"{name}: {STREAMS[name]}\nlooked for in {locate(folder)}: {'there' if place else 'not there'}")
        return
    training, test, count, shape = numbers(name)
    click.echo(f"{entry.title}: {training} training and {test} test images, {shape}, {count} classes")
    click.echo(f"classes: {', '.join(entry.classes[:10])}" + (", …" if len(entry.classes) > 10 else ""))
    click.echo(f"where: {shown(place)}" + ("" if place else f" ({locate(folder)})"))
    if place is None:
        for remote in entry.files:
            click.echo(f"goes to {locate(folder) / remote.path}, from {remote.addresses[0]}, MD5 {remote.md5}")
        click.echo(f"dcnets data {name} --download fetches it")


def check(name: str, folder: Path | None) -> str:
    """Read a data set, its archives' checksums too, or list a stream; what is wrong is raised."""
    from dcnets.experiments.data import DataError, load, locate, stream

    if name in STREAMS:
        opened = stream(name, folder, batch=1)
        training, test = len(opened.plan.listing.labels), len(opened.testing.listing.labels)
        return f"{training:,} + {test:,} images of {opened.num_classes} classes listed"
    for remote in CATALOGUE[name].files:
        path = locate(folder) / remote.path
        if path.is_file():
            with path.open("rb") as file:
                came = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if came != remote.md5:
                raise DataError(f"{path} has MD5 {came}, expected {remote.md5}; delete it and fetch it again")
    opened_whole = load(name, folder, download=False)
    return f"{len(opened_whole.train):,} + {len(opened_whole.test):,} images read, all is well"
