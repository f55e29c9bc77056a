"""A layer with the batch norm and ReLU behind it: two passes forward, two backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from dcnets.kernels.gpu import block_programs
from dcnets.kernels.gpu.launch import (
    ACROSS,
    Norm,
    add_up,
    compiled_for,
    dense,
    flat,
    grid_of,
    respond,
    respond_backward,
    shape_of,
    strides,
)


@dataclass(frozen=True)
class Block:
    """What the passes of a block share: products, norms, operator, and batch norm's own numbers."""

    z: Tensor
    n: Tensor
    relative: bool
    h: str
    g: str
    values: dict[str, Tensor | float]
    groups: int
    gamma: Tensor
    beta: Tensor
    bn_eps: float
    relu: bool

    def forward(self, mean_norm: Tensor | None, partials: Tensor, parts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y in the layout of z, the mean norm of the radius, and batch norm's mean and (biased) variance."""
        z, n, grid, width = self.z, self.n, grid_of(self.z, self.groups), self.z.shape[1]
        m = torch.empty((), dtype=torch.float32, device=z.device) if mean_norm is None else mean_norm
        moments = torch.empty(grid[0], 3, width, dtype=torch.float32, device=z.device)
        radius = 0 if not self.relative else 2 if mean_norm is None else 1
        block_programs.statistics[grid](
            z, n, partials, m, parts, n.numel(), moments, moments.stride(0), *flat(self.values), *shape_of(z, self.groups),
            *strides(z), RADIUS=radius, PARTS=triton.next_power_of_2(parts),
            **compiled_for(self.h, self.g, self.values, width // self.groups),
        )  # fmt: skip
        mean, variance = (torch.empty(width, dtype=torch.float32, device=z.device) for _ in range(2))
        block_programs.combine[(triton.cdiv(width, ACROSS),)](
            moments, mean, variance, grid[0], width, PROGRAMS=triton.next_power_of_2(grid[0]), FILTERS=ACROSS
        )
        norm = Norm(mean, variance, self.gamma, self.bn_eps, self.relu)
        y, _ = respond(z, n, self.beta, m, partials, 1, self.relative, self.h, self.g, self.values, self.groups, norm)
        return y, m, mean, variance

    def backward(
        self, dy: Tensor, m: Tensor, mean: Tensor, variance: Tensor, wanted: list[str]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dz, dn, batch norm's dβ and dγ (2, filters), and the values' gradients, that of ρ being that of ρ·m."""
        z, n, dy, grid = self.z, self.n, dense(dy), grid_of(self.z, self.groups)
        shares = torch.empty(grid[0], 2, z.shape[1], dtype=torch.float32, device=z.device)
        block_programs.block_sums[grid](
            dy, z, n, m, mean, variance, self.gamma, self.beta, self.bn_eps, shares, shares.stride(0), *flat(self.values),
            *shape_of(z, self.groups), *strides(z), *strides(dy), RADIUS=int(self.relative), RELU=self.relu,
            **compiled_for(self.h, self.g, self.values, z.shape[1] // self.groups),
        )  # fmt: skip
        sums, norm = add_up(shares), Norm(mean, variance, self.gamma, self.bn_eps, self.relu)
        dz, dn, totals = respond_backward(
            dy, z, n, m, self.relative, self.h, self.g, self.values, wanted, self.groups, norm, self.beta, sums
        )
        return dz, dn, sums, totals
