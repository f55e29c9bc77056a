"""B-cos, the rival with one operator, and the networks made of it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.models.selection import spatial
from dcnets.twins import SHAPE, replace


class BCosConv2d(nn.Conv2d):
    """B-cos, ⟨ŵ, x⟩ · |cos θ|, as one writes it down: the norms of the patches by average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        unit = self.weight / torch.linalg.vector_norm(self.weight, dim=(1, 2, 3), keepdim=True)
        z: Tensor = self._conv_forward(x, unit, self.bias)
        window: Any = (self.kernel_size, self.stride, self.padding)
        means = F.avg_pool2d((x**2).sum(1, keepdim=True), *window)
        n = (means * math.prod(self.kernel_size) + 1e-6).sqrt()
        return (z * (z.abs() / n)).to(z.dtype)


def with_b_cos(network: nn.Module) -> nn.Module:
    """The network with B-cos in the place of the convolutions that are decoupled elsewhere."""
    twins: dict[nn.Module, nn.Module] = {}
    for name, module in network.named_modules():
        if spatial(name, module):
            twin = BCosConv2d(**{part: getattr(module, part) for part in SHAPE}, bias=False)
            twin.weight = module.weight
            twins[module] = twin
    return replace(network, twins)
