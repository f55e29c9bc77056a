"""CIFAR-10 and CIFAR-100: the official binary and Python files, in their folders or in their archives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dcnets.experiments.data.catalogue import Entry
from dcnets.experiments.data.contents import members, read
from dcnets.experiments.data.errors import DataError, flaw
from dcnets.experiments.data.labels import check_labels
from dcnets.experiments.data.pickles import read_pickle
from dcnets.experiments.data.places import first
from dcnets.experiments.data.sets import Split

Parser = Callable[[str, bytearray, Entry, int, bool], Split]
"""(where, content, data set, expected count, coarse labels?) → images and labels."""


@dataclass(frozen=True)
class Layout:
    """One official form of a set: its archive, the folder in it, the files of the training and of the test set."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    parse: Parser

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)

    def unpacked(self, place: Path) -> bool:
        """Whether a folder holds the files."""
        return all((place / file).is_file() for file in self.files)


def records(where: str, content: bytearray, entry: Entry, count: int, coarse: bool) -> Split:
    """Binary records: one label byte (CIFAR-100: coarse, then fine), then the pixels, channel by channel."""
    bytes_of_labels = 1 if len(entry.classes) == 10 else 2
    column = bytes_of_labels - 1 - int(coarse)
    pixels = entry.channels * entry.size**2
    length = bytes_of_labels + pixels
    if len(content) % length:
        raise flaw(
            where, len(content) // length * length,
            f"the last record is cut off: {len(content)} bytes are no multiple of a record's {length}",
        )  # fmt: skip
    check_count(where, len(content) // length, count, at=length)
    table = torch.frombuffer(content, dtype=torch.uint8).view(count, length)
    labels = table[:, column].long()
    check_labels(where, labels, class_count(entry, coarse), first=column, step=length)
    images = table[:, bytes_of_labels:].reshape(count, entry.channels, entry.size, entry.size)
    return Split(images, labels)


def pickled(where: str, content: bytearray, entry: Entry, count: int, coarse: bool) -> Split:
    """A pickled dict with the array `data` and a list of labels."""
    found = read_pickle(where, content)
    key = "labels" if len(entry.classes) == 10 else "coarse_labels" if coarse else "fine_labels"
    data, labels = found.get("data"), found.get(key)
    if not isinstance(data, Tensor) or not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise DataError(f"{where} lacks the array 'data' or the list of whole numbers '{key}'; it has {sorted(found)}")
    pixels = entry.channels * entry.size**2
    if data.shape[1:] != (pixels,):
        raise DataError(f"{where}: 'data' has shape {tuple(data.shape)}, expected ({count}, {pixels}); fetch the file again")
    check_count(where, len(data), count, at=pixels)
    if len(labels) != count:
        raise DataError(f"{where} has {len(labels)} labels for {count} images; fetch the file again")
    classes = torch.tensor(labels)
    check_labels(where, classes, class_count(entry, coarse), first=0)
    return Split(data.reshape(count, entry.channels, entry.size, entry.size), classes)


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
BINARY_BATCHES = tuple(f"{file}.bin" for file in BATCHES)
LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-binary.tar.gz", "cifar-10-batches-bin", BINARY_BATCHES, "test_batch.bin", records),
        Layout("cifar-10-python.tar.gz", "cifar-10-batches-py", BATCHES, "test_batch", pickled),
    ),
    "cifar100": (
        Layout("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", records),
        Layout("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", pickled),
    ),
}  # fmt: skip
"""The forms of each set, the faster one first."""


def find(name: str, folder: Path) -> tuple[Layout, Path] | None:
    """The form and the place of a set, folders before archives, or None where there is none."""
    for layout in LAYOUTS[name]:
        place = first(folder, [layout.folder], layout.unpacked)
        if place is not None:
            return layout, place
    for layout in LAYOUTS[name]:
        place = first(folder, [layout.archive], Path.is_file)
        if place is not None:
            return layout, place
    return None


def load(entry: Entry, layout: Layout, place: Path, coarse: bool) -> tuple[Split, Split]:
    """Training and test set from a folder of files or from an archive."""
    archived = members(place, [f"{layout.folder}/{file}" for file in layout.files]) if place.is_file() else None

    def part(file: str, count: int) -> Split:
        if archived is None:
            return layout.parse(str(place / file), read(place / file), entry, count, coarse)
        member = f"{layout.folder}/{file}"
        return layout.parse(f"{place}:{member}", archived.pop(member), entry, count, coarse)

    parts = [part(file, entry.train // len(layout.train)) for file in layout.train]
    return joined(parts), joined([part(layout.test, entry.test)])


def joined(parts: list[Split]) -> Split:
    """The parts in a row, in memory of their own."""
    return Split(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))


def class_count(entry: Entry, coarse: bool) -> int:
    """20 coarse classes, or as many as the set has."""
    return 20 if coarse else len(entry.classes)


def check_count(where: str, came: int, expected: int, at: int) -> None:
    """Refuse another number of images; an image takes `at` bytes."""
    if came != expected:
        raise flaw(where, min(came, expected) * at, f"the file has {came} images, expected {expected}")
