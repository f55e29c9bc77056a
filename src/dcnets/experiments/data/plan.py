"""Which images make up which batch, without end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from dcnets.experiments.data.listing import Listing

Share = tuple[int | None, list[int]]
"""The epoch, None for evaluation, and the indices of one batch of this process."""


@dataclass
class Plan(Sampler[Share]):
    """The batches of one process from the one at `place` on, epoch after epoch; places count batches from the first epoch.

    An epoch's order is a pure function of (seed, epoch). Each `whole` images of it are one update of all processes; of
    those, this process takes `size` at a time, `pieces` times, from the one at `first` on.
    """

    listing: Listing
    seed: int
    whole: int
    first: int
    size: int
    pieces: int
    place: int = 0

    @property
    def batches(self) -> int:
        """Updates in an epoch."""
        return len(self.listing.labels) // self.whole

    def __iter__(self) -> Iterator[Share]:
        epoch, done = divmod(self.place, self.batches * self.pieces)
        while True:
            order = self.listing.order(torch.Generator().manual_seed(self.seed * 1_000_003 + epoch))
            for number in range(done, self.batches * self.pieces):
                batch, piece = divmod(number, self.pieces)
                begin = batch * self.whole + self.first + piece * self.size
                yield epoch, order[begin : begin + self.size].tolist()
            epoch, done = epoch + 1, 0
