"""What a stream asks of a list of images on disk."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

IMAGES = (".jpg", ".jpeg", ".png", ".webp")
"""How the names of images end, in small letters."""


class Listing(Protocol):
    """Encoded images with labels, each at its place in a fixed order."""

    labels: Tensor
    """The classes, int64 (count,)."""

    def where(self, index: int) -> str:
        """The file, or the shard and the member, of an image."""

    def content(self, index: int) -> bytes:
        """The bytes of an image's file."""

    def order(self, generator: torch.Generator) -> Tensor:
        """A random order of all images, drawn from the generator alone."""
