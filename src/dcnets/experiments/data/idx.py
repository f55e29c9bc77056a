"""MNIST and Fashion-MNIST: the IDX format, gzipped or not."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from dcnets.experiments.data.catalogue import Entry
from dcnets.experiments.data.contents import read
from dcnets.experiments.data.errors import DataError, flaw
from dcnets.experiments.data.labels import check_labels
from dcnets.experiments.data.places import first
from dcnets.experiments.data.sets import Split

HOMES = {"mnist": ("MNIST/raw", "MNIST", "mnist"), "fashion-mnist": ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist")}
"""The folders in which each set is looked for, before the data folder itself."""
BEGINNINGS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "fashion-mnist": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]}
"""The first training labels: the sets have the same file names, so a folder may hold the one for the other."""
FILES = tuple(f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
UNSIGNED_BYTES = 0x08


def find(name: str, folder: Path) -> list[Path] | None:
    """The four files of a set, or None where they are not all there."""

    def there(place: Path, file: str) -> Path | None:
        return next((path for path in (place / file, place / f"{file}.gz") if path.is_file()), None)

    place = first(folder, HOMES[name], lambda place: all(there(place, file) for file in FILES))
    return None if place is None else [path for file in FILES if (path := there(place, file))]


def load(name: str, entry: Entry, paths: list[Path]) -> tuple[Split, Split]:
    """Training and test set."""
    shape = (entry.size, entry.size)
    splits = []
    for (images, labels), count in ((paths[:2], entry.train), (paths[2:], entry.test)):
        pixels = parse(str(images), read(images), (count, *shape))
        classes = parse(str(labels), read(labels), (count,))
        check_labels(str(labels), classes, len(entry.classes), first=8)
        splits.append(Split(pixels.unsqueeze(1), classes.long()))
    begins = splits[0].labels[:10].tolist()
    for other, beginning in BEGINNINGS.items():
        if other != name and begins == beginning:
            raise DataError(
                f"{paths[1]} holds the labels of {other}, not of {name}; "
                f"move the files of {other} to {HOMES[other][0]} below the data folder"
            )
    return splits[0], splits[1]


def parse(where: str, content: bytearray, shape: tuple[int, ...]) -> Tensor:
    """The array of an IDX file, uint8 of the expected shape."""
    magic = UNSIGNED_BYTES << 8 | len(shape)
    header = 4 + 4 * len(shape)
    if len(content) < header:
        raise flaw(where, len(content), f"the file ends within its header of {header} bytes")
    came, *sizes = struct.unpack(f">{1 + len(shape)}I", content[:header])
    if came != magic:
        raise flaw(where, 0, f"magic number 0x{came:08x}, expected 0x{magic:08x} (IDX, unsigned bytes, {len(shape)} axes)")
    for axis, (size, expected) in enumerate(zip(sizes, shape, strict=True)):
        if size != expected:
            raise flaw(where, 4 + 4 * axis, f"axis {axis} has size {size}, expected {expected}")
    expected = header + torch.Size(shape).numel()
    if len(content) != expected:
        short = "is cut off" if len(content) < expected else "goes on after its last value"
        raise flaw(where, min(len(content), expected), f"the file {short}: {len(content)} bytes, expected {expected}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).view(shape)
