"""What training asks of its data."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Source(Protocol):
    """Batches of a training set, epoch after epoch; what they hold is a pure function of the seed and the place."""

    batch_size: int
    """Images in what `batch` returns: the part of this process, and of that the accumulated piece."""
    batches: int
    """Full batches, over all processes and pieces, in an epoch; what is left over of the epoch is not used."""

    def begin(self, epoch: int, start: int = 0) -> None:
        """Go to batch `start` of an epoch."""

    def advance(self) -> None:
        """Host side, outside a captured graph: make the next batch, or piece of a batch, current."""

    def batch(self) -> tuple[Tensor, Tensor]:
        """Device side: the current images, float and normalised (count, channels, height, width), and int64 labels."""
