"""`load`: a data set by its name, found in the data folder or downloaded to it."""

from __future__ import annotations

import os
from pathlib import Path

from dcnets.experiments.data import cifar, idx, subset
from dcnets.experiments.data.catalogue import CATALOGUE, COARSE, STREAMS, Entry
from dcnets.experiments.data.download import Progress, by_hand, fetch
from dcnets.experiments.data.errors import DataError
from dcnets.experiments.data.places import locate
from dcnets.experiments.data.sets import Dataset, Split
from dcnets.naming import choose


def load(
    name: str = "mnist-subset",
    folder: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    coarse: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """A data set from the data folder (see `locate`), downloaded if it is not there and `download` allows it.

    `coarse` gives CIFAR-100's 20 classes in place of its 100. `progress(file, done, total)` is told the bytes of downloads.
    """
    if name in STREAMS:
        raise ValueError(f"{name} is {STREAMS[name]}: too large for memory; open it by data.stream({name!r}, folder, …)")
    entry = CATALOGUE[choose("data set", name, CATALOGUE)]
    if coarse and name != "cifar100":
        raise ValueError(f"coarse classes are CIFAR-100's; {name} has none: leave out coarse=True")
    place = locate(folder)
    splits = read(name, entry, place, coarse)
    if splits is None:
        if not download:
            advice = "; ".join(by_hand(remote, place) for remote in entry.files)
            raise DataError(f"{name} is not in {place}; allow the download, or name the folder that has it, or {advice}")
        for remote in entry.files:
            fetch(remote, place, progress)
        splits = read(name, entry, place, coarse)
        if splits is None:
            raise DataError(f"{name} was downloaded to {place} but has gone from there; load it again")
    return Dataset(name, *splits, classes=COARSE if coarse else entry.classes)


def read(name: str, entry: Entry, folder: Path, coarse: bool) -> tuple[Split, Split] | None:
    """Training and test set if they are in the folder."""
    if name in idx.HOMES:
        paths = idx.find(name, folder)
        return None if paths is None else idx.load(name, entry, paths)
    if name in cifar.LAYOUTS:
        found = cifar.find(name, folder)
        return None if found is None else cifar.load(entry, *found, coarse)
    return subset.load(entry)
