"""What the Triton programs have in common: operands, tiles, loads and stores.

They compute in float32, address in int64 and add up in a fixed order. A tile has ROWS rows (a row is a position of an image)
and WIDTH filters, a chunk of a group's; CHUNKS of them are a group. FLAT says that there is one group and that rows follow
each other at the same distance in every tensor, WHOLE that tiles end where rows and filters do, so that no mask is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def real(number):
    """A number in float32; from code that torch has compiled it comes in float64."""
    return tl.cast(number, tl.float32)


@triton.jit
def settled(value, KIND: tl.constexpr, at, inside):
    """A value for each filter, or one for all; KIND: 0 a number, 1 a tensor of all filters, 2 of one element, 3 just 1."""
    if KIND == 3:
        return 1.0
    elif KIND == 0:
        return real(value)
    elif KIND == 1:
        return tl.load(value + at, mask=inside, other=1.0).to(tl.float32)[None, :]
    else:
        return tl.load(value).to(tl.float32)


@triton.jit
def operands(rho, alpha, beta, k, p, weight_norm, stretch, scale, m, floor, KINDS: tl.constexpr, at, inside):
    """(ρ·m, α, β, ‖w‖, k, p, stretch, scale); KINDS: two bits for each, and one where `rho` is r, ρ = r² + floor."""
    radius = settled(rho, KINDS & 3, at, inside)
    if (KINDS >> 16) & 1:
        radius = radius * radius + real(floor)
    return (
        radius * m, settled(alpha, (KINDS >> 2) & 3, at, inside), settled(beta, (KINDS >> 4) & 3, at, inside),
        settled(weight_norm, (KINDS >> 10) & 3, at, inside), settled(k, (KINDS >> 6) & 3, at, inside),
        settled(p, (KINDS >> 8) & 3, at, inside), settled(stretch, (KINDS >> 12) & 3, at, inside),
        settled(scale, (KINDS >> 14) & 3, at, inside),
    )  # fmt: skip


@triton.jit
def columns_of(chunk, filters, CHUNKS: tl.constexpr, WIDTH: tl.constexpr):
    """The group of a chunk, the places of its filters among all, and which of them are there."""
    group = (chunk // CHUNKS).to(tl.int64)
    column = (chunk % CHUNKS) * WIDTH + tl.arange(0, WIDTH)
    return group, group * filters + column, column < filters


@triton.jit
def rows_of(tile, rows, positions, group, groups, ROWS: tl.constexpr, FLAT: tl.constexpr):
    """The rows of a tile: which are there, the image and position of each, and the place of its norm."""
    row = (tl.zeros([ROWS], dtype=tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
    if FLAT:
        return row < rows, tl.zeros([ROWS], dtype=tl.int64), row, row
    else:
        batch, position = row // positions, row % positions
        return row < rows, batch, position, (batch * groups + group) * positions + position


@triton.jit
def fetch(at, mask, other, WHOLE: tl.constexpr):
    """What is stored there, in float32."""
    if WHOLE:
        return tl.load(at).to(tl.float32)
    else:
        return tl.load(at, mask=mask, other=other).to(tl.float32)


@triton.jit
def keep(at, value, mask, WHOLE: tl.constexpr):
    """Store a value there, in the precision of what is stored there."""
    if WHOLE:
        tl.store(at, value.to(at.dtype.element_ty))
    else:
        tl.store(at, value.to(at.dtype.element_ty), mask=mask)


@triton.jit
def mean_norm(partials, mean, parts, count, RADIUS: tl.constexpr, PARTS: tl.constexpr):
    """The m that ρ is measured by: 1 for an absolute radius, the given one, or the mean of this batch."""
    if RADIUS == 0:
        return 1.0
    elif RADIUS == 1:
        return tl.load(mean).to(tl.float32)
    else:
        part = tl.arange(0, PARTS)
        return tl.sum(tl.load(partials + part, mask=part < parts, other=0.0), axis=0) / count
