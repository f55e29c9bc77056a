"""Batches of images that worker processes decode while the device computes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dcnets.experiments.data.decoding import Batch, Decoder
from dcnets.experiments.data.errors import DataError
from dcnets.experiments.data.images import Cropping
from dcnets.experiments.data.listing import Listing
from dcnets.experiments.data.plan import Plan, Share


class Stream:
    """A `Source` of training batches, and a test set, from images on disk.

    Of each batch of an epoch this process takes the `rank`-th of `world` equal parts, in `pieces` consecutive batches of
    its own. Neither order nor crops depend on the number of workers or processes, or on where the run was resumed.
    """

    channels = 3

    def __init__(
        self, name: str, train: Listing, test: Listing, classes: tuple[str, ...], *, batch: int, cropping: Cropping,
        mean: tuple[float, ...], std: tuple[float, ...], seed: int, device: torch.device | str, workers: int | None,
        rank: int, world: int, pieces: int, skip_bad: bool,
    ) -> None:  # fmt: skip
        if batch < 1 or batch % (world * pieces):
            raise ValueError(f"a batch of {batch} does not divide by {world} processes × {pieces} accumulated pieces")
        if not 0 <= rank < world:
            raise ValueError(f"rank is from 0 to {world - 1} among {world} processes, got {rank}")
        if batch > len(train.labels):
            raise ValueError(f"a batch of {batch} is larger than the training set of {len(train.labels)} images")
        self.name, self.classes, self.num_classes = name, classes, len(classes)
        self.size, self.mean, self.std = cropping.crop, mean, std
        self.device = torch.device(device)
        self.workers = cpus_to_use() if workers is None else workers
        self.batch_size = batch // (world * pieces)
        self.plan = Plan(train, seed, batch, rank * self.batch_size * pieces, self.batch_size, pieces)
        self.batches = self.plan.batches
        self.training = Decoder(train, cropping, seed, skip_bad)
        self.testing = Decoder(test, cropping, seed, skip_bad)
        self.bad: set[str] = set()
        self.arriving: Iterator[Batch | DataError] | None = None
        # every batch comes to the same memory, where a captured CUDA graph looks for it
        self.images = torch.zeros(self.batch_size, self.size, self.size, 3, dtype=torch.uint8, device=self.device)
        self.labels = torch.zeros(self.batch_size, dtype=torch.int64, device=self.device)
        self.centre, self.spread = (torch.tensor(values, device=self.device).view(-1, 1, 1) for values in (mean, std))

    @property
    def skipped(self) -> int:
        """How many images have turned out unreadable; `bad` names them."""
        return len(self.bad)

    def begin(self, epoch: int, start: int = 0) -> None:
        """Go to batch `start` of an epoch; from the end of one epoch to the next, the workers just go on."""
        if epoch < 0 or not 0 <= start <= self.batches:
            raise ValueError(f"an epoch has batches 0 to {self.batches - 1}, got epoch {epoch}, start {start}")
        place = (epoch * self.batches + start) * self.plan.pieces
        if self.arriving is None or place != self.plan.place:
            self.plan.place = place
            self.arriving = iter(self.loader(self.training, self.plan))

    def advance(self) -> None:
        """Make the next batch current."""
        if self.arriving is None:
            raise RuntimeError("the stream has not begun; call begin(epoch) first")
        images, labels = self.checked(next(self.arriving))
        self.plan.place += 1
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The current images, normalised and in channels_last memory, and their labels."""
        return self.normalised(self.images), self.labels.clone()

    def test(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set in order; the last batch may be smaller."""
        indices = range(len(self.testing.listing.labels))
        shares: list[Share] = [(None, list(indices[at : at + batch_size])) for at in indices[::batch_size]]
        for batch in self.loader(self.testing, shares):
            images, labels = (part.to(self.device, non_blocking=True) for part in self.checked(batch))
            if len(labels):
                yield self.normalised(images), labels

    def loader(self, images: Decoder, shares: Iterable[Share]) -> Iterable[Batch | DataError]:
        """Batches from the workers; torch's own random numbers stay untouched."""
        return DataLoader(
            images, sampler=shares, batch_size=None, num_workers=self.workers, pin_memory=self.device.type == "cuda",
            generator=torch.Generator(), worker_init_fn=leave_interrupts_to_the_parent,
        )  # fmt: skip

    def checked(self, batch: Batch | DataError) -> tuple[Tensor, Tensor]:
        """Images and labels, unless the workers met an error."""
        if isinstance(batch, DataError):
            raise batch
        images, labels, bad = batch
        self.bad.update(bad)
        return images, labels

    def normalised(self, images: Tensor) -> Tensor:
        """(x − mean)/std in float32, (count, channels, height, width), from uint8 (count, height, width, channels)."""
        return (images.permute(0, 3, 1, 2).float() - self.centre) / self.spread


def cpus_to_use() -> int:
    """The CPUs for one process, where torchrun has started several here."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def leave_interrupts_to_the_parent(_: int) -> None:
    """Ctrl-C reaches the workers too, whose batches are still needed for the update that training ends with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
