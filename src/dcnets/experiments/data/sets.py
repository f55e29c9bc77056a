"""A data set in memory: images as uint8, labels, and the names of the classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images, uint8 (count, channels, height, width), and their labels, int64 (count,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(
                f"images are uint8 (count, channels, height, width), got {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels are int64, one for each of {len(self.images)} images, "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A training and a test set of square images; a network sees (x − mean)/std, channel by channel.

    Without mean and std, each channel has the authors' 127.5 and 128.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        shape = tuple(self.train.images.shape[1:])
        if shape[1] != shape[2] or tuple(self.test.images.shape[1:]) != shape:
            raise ValueError(
                f"{self.name}: training and test images are squares of one size, "
                f"got {shape} and {tuple(self.test.images.shape[1:])}"
            )
        for field, default in (("mean", 127.5), ("std", 128.0)):
            values = getattr(self, field) or (default,) * self.channels
            if len(values) != self.channels:
                raise ValueError(f"{self.name}: {field} has one number a channel, got {values} for {self.channels} channels")
            object.__setattr__(self, field, values)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def size(self) -> int:
        """Height and width of an image."""
        return self.train.images.shape[2]

    @property
    def num_classes(self) -> int:
        """How many classes there are, whether or not each has an image."""
        return len(self.classes)
