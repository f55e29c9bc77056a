"""The MNIST digits inside the package: see embedded/README.md for their origin and licence."""

from __future__ import annotations

import hashlib
import lzma
from importlib.resources import files

import torch

from dcnets.experiments.data.catalogue import Entry
from dcnets.experiments.data.errors import DataError
from dcnets.experiments.data.sets import Split

FILE = "embedded/mnist-subset.xz"
SHA256 = "19959acfb1ab37b26571e43070cf984686f47cf20fdd8e53a0c559af9419b572"
"""Of the unpacked bytes: training labels, test labels, training images, test images."""


def load(entry: Entry) -> tuple[Split, Split]:
    """Training and test set."""
    packed = files(__package__).joinpath(FILE).read_bytes()
    try:
        content = bytearray(lzma.decompress(packed))
    except lzma.LZMAError as error:
        raise DataError(f"{FILE} inside the package is damaged ({error}); install dcnets again") from error
    if (came := hashlib.sha256(content).hexdigest()) != SHA256:
        raise DataError(f"{FILE} inside the package has SHA-256 {came}, expected {SHA256}; install dcnets again")
    count = entry.train + entry.test
    labels = torch.frombuffer(content, dtype=torch.uint8, count=count).long()
    images = torch.frombuffer(content, dtype=torch.uint8, offset=count).view(count, entry.channels, entry.size, entry.size)
    return Split(images[: entry.train], labels[: entry.train]), Split(images[entry.train :], labels[entry.train :])
