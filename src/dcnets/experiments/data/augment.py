"""Random crops and flips, drawn once an epoch and applied to a batch where the images lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augmentation:
    """Pad by `pad` pixels, crop back to size at a random place, flip half of the images from left to right."""

    pad: int = 0
    pad_mode: str = "symmetric"
    flip: bool = False

    def padded(self, images: Tensor) -> Tensor:
        """Images (count, channels, height, width) with their border, (count, height, width, channels) in memory.

        `symmetric` mirrors the border pixels too, `reflect` all but them, `zeros` adds black.
        """
        if self.pad and self.pad_mode == "zeros":
            images = F.pad(images, [self.pad] * 4)
        elif self.pad:
            for axis in (2, 3):
                images = images.index_select(axis, self.mirror(images.shape[axis]).to(images.device))
        return images.permute(0, 2, 3, 1).contiguous()

    def mirror(self, size: int) -> Tensor:
        """Which pixel stands at each place of a padded axis."""
        first = 0 if self.pad_mode == "symmetric" else 1
        if self.pad + first > size:
            raise ValueError(f"cannot pad {size} pixels by {self.pad} mirrored ones; use a smaller pad or pad_mode zeros")
        inside = torch.arange(size)
        return torch.cat(
            [inside[first : first + self.pad].flip(0), inside, inside[size - first - self.pad : size - first].flip(0)]
        )

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The crop's first row, its first column and whether to flip, for each of `count` images: int16 (count, 3)."""
        corners = torch.randint(2 * self.pad + 1, (count, 2), generator=generator)
        flips = torch.randint(2, (count, 1), generator=generator) * int(self.flip)
        return torch.cat([corners, flips], 1).to(torch.int16)


def crop(images: Tensor, some: Tensor, drawn: Tensor, size: tuple[int, int]) -> Tensor:
    """The crops of `some` padded images (count, height, width, channels), as `drawn` for them: (some, channels, *size)."""
    rows = drawn[:, 0, None] + torch.arange(size[0], device=some.device)
    across = torch.arange(size[1], device=some.device)
    columns = drawn[:, 1, None] + torch.where(drawn[:, 2, None] > 0, across.flip(0), across)
    return images[some[:, None, None], rows[:, :, None].long(), columns[:, None, :].long()].permute(0, 3, 1, 2)
