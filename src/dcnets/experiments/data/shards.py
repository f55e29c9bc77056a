"""WebDataset shards: tar files in which each image (jpg, jpeg, png, webp) has its class beside it (cls)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dcnets.experiments.data.download import Progress
from dcnets.experiments.data.errors import DataError, flaw
from dcnets.experiments.data.scanning import ADVICE, places

WINDOW = 16
"""Shards that are shuffled together: reads stay within as many files."""


class ShardListing:
    """The images of several shards, where they begin and how long they are; read in place, in any order."""

    def __init__(self, shards: list[Path], tables: list[Tensor]) -> None:
        self.shards = shards
        self.ends = torch.tensor([len(table) for table in tables]).cumsum(0)
        self.places, self.labels = (
            torch.cat([table[:, :2] for table in tables]),
            torch.cat([table[:, 2] for table in tables]),
        )

    def shard(self, index: int) -> Path:
        """The shard of an image."""
        return self.shards[int(torch.searchsorted(self.ends, index, right=True))]

    def where(self, index: int) -> str:
        """The shard and the place of an image in it."""
        return f"{self.shard(index)}, image at byte {int(self.places[index, 0])}"

    def content(self, index: int) -> bytes:
        """The bytes of an image's file."""
        first, length = self.places[index].tolist()
        with self.shard(index).open("rb") as file:
            file.seek(first)
            return file.read(length)

    def order(self, generator: torch.Generator) -> Tensor:
        """Shards in any order; of each `WINDOW` of them, the images in any order."""
        starts = [0, *self.ends.tolist()]
        order = []
        shards = torch.randperm(len(self.shards), generator=generator).tolist()
        for at in range(0, len(shards), WINDOW):
            some = torch.cat([torch.arange(starts[shard], starts[shard + 1]) for shard in shards[at : at + WINDOW]])
            order.append(some[torch.randperm(len(some), generator=generator)])
        return torch.cat(order)


def list_shards(folder: Path, split: str, classes: int | None = None, progress: Progress | None = None) -> ShardListing:
    """The images of `folder`/`split`*.tar or `folder`/`split`/*.tar; labels must be below `classes`, where that is given."""
    shards = sorted(folder.glob(f"{split}*.tar")) or sorted((folder / split).glob("*.tar"))
    if not shards:
        raise DataError(f"{folder} has no shards {split}*.tar or {split}/*.tar; expected tar files of images and classes")
    tables = []
    for number, shard in enumerate(shards, 1):
        tables.append(places(shard))
        if classes is not None and len(strange := tables[-1][tables[-1][:, 2] >= classes]):
            first, _, label = strange[0].tolist()
            problem = f"the image here has class {label}, expected 0 to {classes - 1}, as in the training set"
            raise flaw(str(shard), first, problem, ADVICE)
        if progress is not None:
            progress(f"{folder}/{split}", number, len(shards))
    return ShardListing(shards, tables)
