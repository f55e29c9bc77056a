"""A training set that lives on the device as uint8 and is augmented there: no workers, nothing copied in a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dcnets.experiments.data.sets import Split
from torch import Tensor

from dcnets.experiments.data.augment import Augmentation, crop


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x − mean)/std of uint8 images (count, channels, height, width), channel by channel, as float32."""
    centre, spread = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (mean, std))
    return (images.float() - centre) / spread


class Resident:
    """A `Source` of batches from a set in memory; order and augmentation are a pure function of (seed, epoch).

    Of each batch of an epoch this process takes the `rank`-th of `world` equal parts, in `pieces` consecutive batches of
    its own. The place in the epoch is a tensor, so that a captured CUDA graph walks on with each replay.
    """

    def __init__(
        self, split: Split, batch: int, *, mean: tuple[float, ...], std: tuple[float, ...], augmentation: Augmentation,
        seed: int = 0, device: torch.device | str = "cpu", rank: int = 0, world: int = 1, pieces: int = 1,
        compiled: bool = False,
    ) -> None:  # fmt: skip
        if batch % (world * pieces):
            raise ValueError(f"a batch of {batch} does not divide by {world} processes × {pieces} accumulated pieces")
        if len(split.labels) < batch:
            raise ValueError(f"a batch of {batch} is larger than the training set of {len(split.labels)} images")
        self.batch_size, self.batches = batch // (world * pieces), len(split.labels) // batch
        self.whole, self.seed, self.augmentation = batch, seed, augmentation
        self.size = (split.images.shape[2], split.images.shape[3])
        self.images = augmentation.padded(split.images.to(device))
        self.labels = split.labels.to(device)
        self.mean, self.std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (mean, std))
        self.order = torch.zeros(len(self.labels), dtype=torch.long, device=device)
        self.drawn = torch.zeros(len(self.labels), 3, dtype=torch.int16, device=device)
        self.place = torch.zeros((), dtype=torch.long, device=device)
        first = rank * self.batch_size * pieces
        self.offsets = first + torch.arange(self.batch_size, device=device)
        self.pieces, self.piece = pieces, 0
        self.read = torch.compile(read, dynamic=False) if compiled else read

    def begin(self, epoch: int, start: int = 0) -> None:
        """Go to batch `start` of an epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        self.order.copy_(torch.randperm(len(self.order), generator=generator))
        self.drawn.copy_(self.augmentation.draw(len(self.order), generator))
        self.place.fill_(start * self.whole)

    def advance(self) -> None:
        """Nothing to do on the host: `batch` walks on by itself."""

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next images, normalised and in channels_last memory, and their labels."""
        places = self.place + self.offsets + self.piece * self.batch_size
        self.piece = (self.piece + 1) % self.pieces
        if self.piece == 0:
            self.place.add_(self.whole)
        some = self.order[places]
        return self.read(self.images, some, self.drawn, self.size, self.mean, self.std), self.labels[some]


def read(images: Tensor, some: Tensor, drawn: Tensor, size: tuple[int, int], mean: Tensor, std: Tensor) -> Tensor:
    """Crops of some images, normalised."""
    return (crop(images, some, drawn[some], size).float() - mean) / std


def in_order(
    split: Split, batch: int, *, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """A set from first to last in batches as they are, for evaluation; the last may be smaller."""
    for first in range(0, len(split.labels), batch):
        images, labels = split.images[first : first + batch], split.labels[first : first + batch]
        images = images.to(device, memory_format=torch.channels_last)
        yield normalise(images, mean, std), labels.to(device)
