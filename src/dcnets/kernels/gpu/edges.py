"""The launches before and after the passes over a layer: sums of squares and their gradient, patch norms, unit filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dcnets.kernels.gpu import edge_programs
from dcnets.kernels.gpu.launcher import ceiling, run
from dcnets.kernels.gpu.layout import Windows, steps_of
from dcnets.kernels.gpu.plan import width_of

TILE = 2048
"""Elements of a tile of rows and channels where sums of squares and their gradients are computed."""
BLOCK = 512
"""Positions of a block of norms."""
PARTS = 256
"""The most programs that add up norms, each leaving a partial sum."""
FILTER = 1024
"""Elements of a filter that a program takes at a time."""
UNROLLED = 64
"""The most loads that a program over windows is unrolled for: so it is compiled in seconds, not in minutes."""


def square_sums(x: Tensor, groups: int) -> Tensor:
    """Σx² over the channels of each group, (batch, groups, positions)."""
    batch, channels, positions = x.shape[0], x.shape[1] // groups, math.prod(x.shape[2:])
    sums = torch.empty(batch, groups, positions, dtype=torch.float32, device=x.device)
    width = width_of(channels)
    rows = max(1, TILE // width)
    run(
        edge_programs.square_sums, (ceiling(batch * positions, rows), groups, 1), (x, sums),
        (batch * positions, positions, groups, channels, *steps_of(x)), {"ROWS": rows, "CHANNELS": width},
    )  # fmt: skip
    return sums


def prepare(sums: Tensor, view: Windows, eps: float, weight: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Patch norms (batch, groups, *out_size) by sums of squares, partial sums of the norms, and ŵ in the weight's layout.

    Without a weight there are no unit filters.
    """
    batch, groups = sums.shape[:2]
    n = torch.empty(batch, groups, *view.out_size, dtype=torch.float32, device=sums.device)
    parts = min(PARTS, ceiling(n.numel(), BLOCK))
    partials = torch.empty(parts, dtype=torch.float32, device=sums.device)
    unit = n if weight is None else torch.empty_like(weight, dtype=dtype)
    filters, size = (0, 1) if weight is None else (weight.shape[0], weight.numel() // weight.shape[0])
    run(
        edge_programs.prepare, (parts + filters, 1, 1), (n if weight is None else weight, unit, sums, n, partials),
        (size, parts, n.numel(), eps, *view.arguments), {**view.taps, "BLOCK": BLOCK, "FILTER": FILTER},
    )  # fmt: skip
    return n, partials, unit


def add_norm_gradient(dx: Tensor, x: Tensor, dsums: Tensor, groups: int) -> None:
    """dx += 2 · x · dsums, in place."""
    batch, channels, positions = x.shape[0], x.shape[1] // groups, math.prod(x.shape[2:])
    width = width_of(channels)
    rows = max(1, TILE // width)
    run(
        edge_programs.add_norm_gradient, (ceiling(batch * positions, rows), groups, 1), (dx, x, dsums),
        (batch * positions, positions, groups, channels, *steps_of(dx), *steps_of(x)), {"ROWS": rows, "CHANNELS": width},
    )  # fmt: skip
