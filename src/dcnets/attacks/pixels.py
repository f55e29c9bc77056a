"""A network together with the normalisation of its images, so that it takes pixels in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LARGEST = 255
"""The largest pixel where the means and standard deviations of data sets are taken."""


class Normalised(nn.Module):
    """model((scale·x − mean)/std), channel by channel, for images x (n, channels, height, width) in [0, 1].

    A number in the place of a list is that of the only channel. `scale` is the largest pixel where mean and std were taken:
    255 for those of dcnets' data sets, 1 for pixels in [0, 1].
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, mean: float | Sequence[float], std: float | Sequence[float], *, scale: float
    ) -> None:
        super().__init__()
        mean, std = (torch.as_tensor(values, dtype=torch.float64).flatten().tolist() for values in (mean, std))
        if len(mean) != len(std):
            raise ValueError(f"got {len(mean)} means and {len(std)} standard deviations, expected one of each a channel")
        if not (scale > 0 and all(value > 0 for value in std)):
            raise ValueError(f"scale and std must be above 0, got scale={scale!r} and std={tuple(std)!r}")
        self.model, self.scale = model, scale
        weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, weight.new_tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 3 or x.shape[-3] != len(self.mean):
            raise ValueError(
                f"x has shape {tuple(x.shape)}, expected images (n, channels, height, width) of {len(self.mean)} channels; "
                "give one mean and one standard deviation a channel"
            )
        logits: Tensor = self.model((self.scale * x - self.mean) / self.std)
        return logits
