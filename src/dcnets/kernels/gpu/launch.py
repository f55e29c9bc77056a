"""From tensors to the Triton programs: grids, tiles, strides and buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

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


def respond(
    z: Tensor, n: Tensor, bias: Tensor | None, mean: Tensor | None, partials: Tensor, parts: int, relative: bool, h: str,
    g: str, values: dict[str, Tensor | float], groups: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y in the layout of z, and the mean norm that ρ was measured by."""
    y = torch.empty_like(z)
    filters, positions = z.shape[1] // groups, math.prod(z.shape[2:])
    rows, tile = len(z) * positions, tile_of(filters)
    radius = 0 if not relative else 2 if mean is None else 1
    m = torch.empty((), dtype=torch.float32, device=z.device) if mean is None else mean
    grid = (min(triton.cdiv(rows, tile["ROWS"]), programs_for(z)), groups)
    programs.respond[grid](
        z, y, n, z if bias is None else bias, partials, m, parts, n.numel(), *flat(values), rows, positions, groups, filters,
        *strides(z), H=magnitudes.TWINS[h], G=angulars.TWINS[g], RADIUS=radius, BIAS=bias is not None, KINDS=kinds(values),
        STRETCHED="stretch" in values, SCALED="scale" in values, PARTS=triton.next_power_of_2(parts), **tile,
    )  # fmt: skip
    return y, m


def respond_backward(
    dy: Tensor, z: Tensor, n: Tensor, mean: Tensor, relative: bool, h: str, g: str, values: dict[str, Tensor | float],
    wanted: list[str], groups: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dz, dn, and the gradients of the wanted values (values, filters), that of ρ being that of ρ·m."""
    dy, dz, dn = dense(dy), torch.empty_like(z), torch.empty_like(n)
    filters, positions = z.shape[1] // groups, math.prod(z.shape[2:])
    rows, tile = len(z) * positions, tile_of(filters)
    grid = (min(triton.cdiv(rows, tile["ROWS"]), programs_for(z)), groups)
    totals = torch.empty(grid[0], max(1, len(wanted)), z.shape[1], dtype=torch.float32, device=z.device)
    places = sum((1 + wanted.index(name)) << (4 * place) for place, name in enumerate(NAMES) if name in wanted)
    programs.respond_backward[grid](
        dy, z, dz, n, dn, totals, mean, totals, totals.stride(0), *flat(values), rows, positions, groups, filters,
        *strides(z), *strides(dy), H=magnitudes.TWINS[h], G=angulars.TWINS[g], RADIUS=int(relative), KINDS=kinds(values),
        WANTED=places, STRETCHED="stretch" in values, SCALED="scale" in values, **tile,
    )  # fmt: skip
    return dz, dn, totals.sum(0)


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
