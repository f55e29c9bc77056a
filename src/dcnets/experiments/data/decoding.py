"""What worker processes do: read, decode and crop the images of a batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from dcnets.experiments.data.errors import DataError
from dcnets.experiments.data.images import Cropping, decode
from dcnets.experiments.data.listing import Listing

Batch = tuple[Tensor, Tensor, list[str]]
"""Images uint8 (count, height, width, 3), labels int64, and the places of images that could not be read."""


class Decoder(Dataset[Any]):
    """Batches by the indices of their images; a training crop is a pure function of (seed, epoch, index).

    With `skip_bad`, the next good image of the list takes the place of an unreadable one in training, and evaluation
    leaves it out. An error is returned, not raised: raised in a worker, it would carry the worker's traceback in its text.
    """

    def __init__(self, listing: Listing, cropping: Cropping, seed: int, skip_bad: bool) -> None:
        self.listing, self.cropping, self.seed, self.skip_bad = listing, cropping, seed, skip_bad

    def __getitem__(self, key: tuple[int | None, Sequence[int]]) -> Batch | DataError:
        """The images at these indices, cropped for an epoch of training, or for evaluation where the epoch is None."""
        epoch, indices = key
        bad: list[str] = []
        images, labels = [], []
        try:
            for index in indices:
                if epoch is None:
                    if (image := self.decoded(index, bad)) is None:
                        continue
                    images.append(self.cropping.middle(image))
                else:
                    chance = random.Random(f"{self.seed} {epoch} {index}")
                    image, index = self.good(index, bad)
                    images.append(self.cropping.draw(image, chance))
                labels.append(int(self.listing.labels[index]))
        except DataError as error:
            return error
        side = self.cropping.crop
        return torch.stack(images) if images else torch.zeros(0, side, side, 3, dtype=torch.uint8), torch.tensor(labels), bad

    def good(self, index: int, bad: list[str]) -> tuple[Image.Image, int]:
        """The image at an index, or the first readable one after it, and its index."""
        count = len(self.listing.labels)
        for ahead in range(count):
            later = (index + ahead) % count
            if (image := self.decoded(later, bad)) is not None:
                return image, later
        raise DataError(f"none of {count} images can be read, the first at {self.listing.where(0)}")

    def decoded(self, index: int, bad: list[str]) -> Image.Image | None:
        """An image, or None for an unreadable one that may be skipped; what cannot be opened at all is never skipped."""
        where = self.listing.where(index)
        try:
            content = self.listing.content(index)
        except OSError as error:
            raise DataError(f"{where}: {error}; was it moved after the training began?") from error
        try:
            return decode(content, where)
        except DataError:
            if not self.skip_bad:
                raise
            bad.append(where)
            return None
