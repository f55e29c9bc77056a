"""From tensors to the Triton programs: grids, tiles, strides and buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import triton
from torch import Tensor

from dcnets.kernels.gpu import angulars, magnitudes, programs
from dcnets.patches import Shape

NAMES = ("rho", "alpha", "beta", "k", "p", "weight_norm", "stretch", "scale")
"""The values of an operator in the order of the programs' arguments."""
TILE = 4096
"""Elements of a tile of rows and filters."""
BLOCK = 512
"""Positions of a block of norms."""
PARTS = 256
"""The most programs that add up norms, each leaving a partial sum."""
ACROSS = 16
"""Sums that one program adds up over all programs before it."""
WIDEST = 4096
"""The most filters of a group that fit into a tile."""


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution, as three-dimensional ones."""

    size: Shape
    out_size: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    @property
    def arguments(self) -> tuple[int, ...]:
        """What the programs take of it, but for the taps."""
        return (*self.size, *self.out_size, *self.stride, *self.padding, *self.dilation)


def windows(size: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Windows:
    """The windows over an input of a size; missing dimensions come first, with one element."""

    def three(values: Shape, fill: int) -> Shape:
        return (fill,) * (3 - len(values)) + tuple(values)

    size, kernel, stride, padding, dilation = (
        three(size, 1), three(kernel, 1), three(stride, 1), three(padding, 0), three(dilation, 1),
    )  # fmt: skip
    out_size = tuple(
        (length + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for length, taps, step, pad, gap in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    return Windows(size, out_size, kernel, stride, padding, dilation)


def steps(t: Tensor) -> tuple[int, int, int] | None:
    """The strides of batch, position and channel of t (batch, channels, *positions), or None where positions are no row."""
    spatial = [(size, stride) for size, stride in zip(t.shape[2:], t.stride()[2:], strict=True) if size != 1]
    for (_, outer), (length, inner) in pairwise(spatial):
        if outer != length * inner:
            return None
    return t.stride(0), spatial[-1][1] if spatial else 1, t.stride(1)


def dense(t: Tensor) -> Tensor:
    """t itself where its positions are a row, else a copy in which they are."""
    return t if steps(t) is not None else t.contiguous()


def strides(t: Tensor) -> tuple[int, int, int]:
    """The strides of batch, position and channel."""
    found = steps(t)
    assert found is not None
    return found


def programs_for(t: Tensor) -> int:
    """How many programs keep the device busy."""
    return 4 * torch.cuda.get_device_properties(t.device).multi_processor_count if t.is_cuda else 3


def tile_of(filters: int) -> dict[str, int]:
    """Rows and filters of a tile, and the warps for it."""
    width = triton.next_power_of_2(filters)
    rows = max(1, TILE // width)
    return {"ROWS": rows, "FILTERS": width, "num_warps": 8 if rows * width >= TILE else 4}


def norms(x: Tensor, groups: int, view: Windows, eps: float) -> tuple[Tensor, Tensor, int]:
    """Patch norms (batch, groups, *out_size) of x, the partial sums of them, and how many those are."""
    batch, channels = len(x), x.shape[1] // groups
    positions, outputs = math.prod(view.size), math.prod(view.out_size)
    sums = torch.empty(batch, groups, positions, dtype=torch.float32, device=x.device)
    width = min(triton.next_power_of_2(channels), 256)
    rows = max(1, TILE // width)
    programs.square_sums[(triton.cdiv(batch * positions, rows), groups)](
        x, sums, batch * positions, positions, groups, channels, *strides(x), ROWS=rows, CHANNELS=width
    )
    count = batch * groups * outputs
    n = torch.empty(batch, groups, *view.out_size, dtype=torch.float32, device=x.device)
    parts = min(PARTS, triton.cdiv(count, BLOCK))
    partials = torch.empty(parts, dtype=torch.float32, device=x.device)
    programs.patch_norms[(parts,)](
        sums, n, partials, count, eps, *view.arguments, TAPS0=view.kernel[0], TAPS1=view.kernel[1], TAPS2=view.kernel[2],
        BLOCK=BLOCK,
    )  # fmt: skip
    return n, partials, parts


def kinds(values: dict[str, Tensor | float]) -> int:
    """Two bits for each value: 0 a number, 1 a tensor of all filters, 2 of one element."""
    found = 0
    for place, name in enumerate(NAMES):
        value = values.get(name, 0.0)
        kind = 0 if not isinstance(value, Tensor) else 2 if value.numel() == 1 else 1
        found |= kind << (2 * place)
    return found


def flat(values: dict[str, Tensor | float]) -> list[Tensor | float]:
    """The values in the programs' order; 1 stands for one that is not there."""
    own = [values.get(name, 1.0) for name in NAMES]
    return [value.contiguous() if isinstance(value, Tensor) else float(value) for value in own]


def grid_of(z: Tensor, groups: int) -> tuple[int, int]:
    """The programs that walk over the tiles of z, for each group."""
    rows = len(z) * math.prod(z.shape[2:])
    return min(triton.cdiv(rows, tile_of(z.shape[1] // groups)["ROWS"]), programs_for(z)), groups


def shape_of(z: Tensor, groups: int) -> tuple[int, int, int, int]:
    """Rows, positions, groups, and filters of a group."""
    positions = math.prod(z.shape[2:])
    return len(z) * positions, positions, groups, z.shape[1] // groups


@dataclass(frozen=True)
class Norm:
    """Batch norm behind a layer: mean and (biased) variance of the response, weight γ and ε, and whether a ReLU follows."""

    mean: Tensor
    variance: Tensor
    weight: Tensor
    eps: float
    relu: bool


def compiled_for(h: str, g: str, values: dict[str, Tensor | float], filters: int) -> dict[str, Any]:
    """What a program is compiled for: operator, kinds of its values, tile."""
    return {"H": magnitudes.TWINS[h], "G": angulars.TWINS[g], "KINDS": kinds(values), **tile_of(filters)}


def respond(
    z: Tensor, n: Tensor, bias: Tensor | None, mean: Tensor | None, partials: Tensor, parts: int, relative: bool, h: str,
    g: str, values: dict[str, Tensor | float], groups: int, norm: Norm | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y in the layout of z, and the mean norm that ρ was measured by."""
    y, radius = torch.empty_like(z), 0 if not relative else 2 if mean is None else 1
    m = torch.empty((), dtype=torch.float32, device=z.device) if mean is None else mean
    of_norm = (z, z, z, 0.0) if norm is None else (norm.mean, norm.variance, norm.weight, norm.eps)
    programs.respond[grid_of(z, groups)](
        z, y, n, z if bias is None else bias, partials, m, parts, n.numel(), *of_norm, *flat(values), *shape_of(z, groups),
        *strides(z), RADIUS=radius, BIAS=bias is not None, NORMALISED=norm is not None, RELU=norm is not None and norm.relu,
        PARTS=triton.next_power_of_2(parts), **compiled_for(h, g, values, z.shape[1] // groups),
    )  # fmt: skip
    return y, m


def respond_backward(
    dy: Tensor, z: Tensor, n: Tensor, mean: Tensor, relative: bool, h: str, g: str, values: dict[str, Tensor | float],
    wanted: list[str], groups: int, norm: Norm | None = None, bias: Tensor | None = None, sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dz, dn, and the gradients of the wanted values (values, filters), that of ρ being that of ρ·m.

    Behind a norm, `bias` and `sums` are its β, and Σd and Σd·f̂ of each filter.
    """
    dy, dz, dn, grid = dense(dy), torch.empty_like(z), torch.empty_like(n), grid_of(z, groups)
    shares = torch.empty(grid[0], max(1, len(wanted)), z.shape[1], dtype=torch.float32, device=z.device)
    places = sum((1 + wanted.index(name)) << (4 * place) for place, name in enumerate(NAMES) if name in wanted)
    of_norm = (z, z, z, z, 0.0, z) if norm is None else (bias, norm.mean, norm.variance, norm.weight, norm.eps, sums)
    programs.respond_backward[grid](
        dy, z, dz, n, dn, mean, *of_norm, shares, shares.stride(0), *flat(values), *shape_of(z, groups), *strides(z),
        *strides(dy), RADIUS=int(relative), WANTED=places, NORMALISED=norm is not None,
        RELU=norm is not None and norm.relu, **compiled_for(h, g, values, z.shape[1] // groups),
    )  # fmt: skip
    return dz, dn, add_up(shares)


def add_up(shares: Tensor) -> Tensor:
    """Σ shares over the programs, which are the first axis."""
    totals = torch.empty(shares.shape[1:], dtype=torch.float32, device=shares.device)
    programs.add_up[(triton.cdiv(totals.numel(), ACROSS),)](
        shares, totals, len(shares), totals.numel(), PROGRAMS=triton.next_power_of_2(len(shares)), ENTRIES=ACROSS
    )
    return totals


def add_norm_gradient(
    dx: Tensor, x: Tensor, n: Tensor, dn: Tensor, dmean: Tensor | None, groups: int, view: Windows
) -> None:
    """dx += x · Σ (dn + dm/count)/n over the windows that see a position, in place."""
    batch, channels, positions = len(x), x.shape[1] // groups, math.prod(view.size)
    spread = torch.empty(batch, groups, positions, dtype=torch.float32, device=x.device)
    count = spread.numel()
    programs.spread_norms[(triton.cdiv(count, BLOCK),)](
        dn, n, n if dmean is None else dmean, spread, count, n.numel(), *view.arguments, THROUGH_MEAN=dmean is not None,
        TAPS0=view.kernel[0], TAPS1=view.kernel[1], TAPS2=view.kernel[2], BLOCK=BLOCK,
    )  # fmt: skip
    width = min(triton.next_power_of_2(channels), 256)
    rows = max(1, TILE // width)
    programs.add_norm_gradient[(triton.cdiv(batch * positions, rows), groups)](
        dx, x, spread, batch * positions, positions, groups, channels, *strides(dx), *strides(x), ROWS=rows, CHANNELS=width
    )
