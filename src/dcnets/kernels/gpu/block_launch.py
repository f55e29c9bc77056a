"""From tensors to the Triton programs of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from dcnets.kernels.gpu import angulars, block_programs, magnitudes
from dcnets.kernels.gpu.launch import NAMES, dense, flat, kinds, programs_for, strides, tile_of

ACROSS = 16
"""Filters that one program adds up over all programs before it."""


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

    @property
    def rows(self) -> int:
        """Positions of all images."""
        return len(self.z) * math.prod(self.z.shape[2:])

    @property
    def filters(self) -> int:
        """Filters of a group."""
        return self.z.shape[1] // self.groups

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """What each program takes of the shape."""
        return self.rows, math.prod(self.z.shape[2:]), self.groups, self.filters

    @property
    def grid(self) -> tuple[int, int]:
        """The programs that walk over the tiles."""
        return min(triton.cdiv(self.rows, tile_of(self.filters)["ROWS"]), programs_for(self.z)), self.groups

    def options(self, radius: int) -> dict[str, Any]:
        """What the programs are compiled for."""
        return {
            "H": magnitudes.TWINS[self.h], "G": angulars.TWINS[self.g], "RADIUS": radius, "KINDS": kinds(self.values),
            **tile_of(self.filters),
        }  # fmt: skip

    def forward(self, mean_norm: Tensor | None, partials: Tensor, parts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y in the layout of z, the mean norm of the radius, and batch norm's mean and (biased) variance."""
        z, n, device = self.z, self.n, self.z.device
        m = torch.empty((), dtype=torch.float32, device=device) if mean_norm is None else mean_norm
        moments = torch.empty(self.grid[0], 3, z.shape[1], dtype=torch.float32, device=device)
        radius = 0 if not self.relative else 2 if mean_norm is None else 1
        values = flat(self.values)
        block_programs.statistics[self.grid](
            z, n, partials, m, parts, n.numel(), moments, moments.stride(0), *values, *self.shape, *strides(z),
            PARTS=triton.next_power_of_2(parts), **self.options(radius),
        )  # fmt: skip
        mean, variance = torch.empty(2, z.shape[1], dtype=torch.float32, device=device).unbind()
        block_programs.combine[(triton.cdiv(z.shape[1], ACROSS),)](
            moments, mean, variance, self.grid[0], z.shape[1], PROGRAMS=triton.next_power_of_2(self.grid[0]), FILTERS=ACROSS
        )
        y = torch.empty_like(z)
        block_programs.normalise[self.grid](
            z, y, n, m, mean, variance, self.gamma, self.beta, self.bn_eps, *values, *self.shape, *strides(z),
            RELU=self.relu, **self.options(int(self.relative)),
        )  # fmt: skip
        return y, m, mean, variance

    def backward(
        self, dy: Tensor, m: Tensor, mean: Tensor, variance: Tensor, wanted: list[str]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dz, dn, and (2 + wanted, filters): dβ and dγ of batch norm, then the values' gradients, that of ρ being of ρ·m."""
        z, n, dy = self.z, self.n, dense(dy)
        values, options, width = flat(self.values), self.options(int(self.relative)), z.shape[1]
        sums = torch.empty(self.grid[0], 2, width, dtype=torch.float32, device=z.device)
        block_programs.block_sums[self.grid](
            dy, z, n, m, mean, variance, self.gamma, self.beta, self.bn_eps, sums, sums.stride(0), *values, *self.shape,
            *strides(z), *strides(dy), RELU=self.relu, **options,
        )  # fmt: skip
        totals = torch.empty(2 + len(wanted), width, dtype=torch.float32, device=z.device)
        add_up(sums, totals[:2])
        dz, dn = torch.empty_like(z), torch.empty_like(n)
        shares = torch.empty(self.grid[0], max(1, len(wanted)), width, dtype=torch.float32, device=z.device)
        places = sum((1 + wanted.index(name)) << (4 * place) for place, name in enumerate(NAMES) if name in wanted)
        block_programs.block_backward[self.grid](
            dy, z, dz, n, dn, m, mean, variance, self.gamma, self.beta, self.bn_eps, totals, shares, shares.stride(0),
            *values, *self.shape, *strides(z), *strides(dy), WANTED=places, RELU=self.relu, **options,
        )  # fmt: skip
        if wanted:
            add_up(shares, totals[2:])
        return dz, dn, totals


def add_up(sums: Tensor, totals: Tensor) -> None:
    """totals = Σ sums over the programs, which are the first axis."""
    programs, entries = len(sums), totals.numel()
    block_programs.add_up[(triton.cdiv(entries, ACROSS),)](
        sums, totals, programs, entries, PROGRAMS=triton.next_power_of_2(programs), ENTRIES=ACROSS
    )
