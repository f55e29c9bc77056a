"""The passes over a layer: the buffers of each and its launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dcnets.kernels.gpu import edge_programs, norm_programs, programs
from dcnets.kernels.gpu.edges import BLOCK, FILTER, UNROLLED
from dcnets.kernels.gpu.launcher import ceiling, power_of_two, run
from dcnets.kernels.gpu.layout import Windows, steps_of
from dcnets.kernels.gpu.plan import Tiling, plan_for
from dcnets.options import RADIUS_FLOOR

NAMES = ("rho", "alpha", "beta", "k", "p", "weight_norm", "stretch", "scale")
"""The values of an operator in the order of the programs' arguments."""
WANTED = (*NAMES, "bias")
"""What a backward pass can be asked for beside dz and dn."""
ADDED = 4096
"""Partial sums that one program adds up, of all programs before it and some filters."""
STATISTICS = Tiling(4096, 4, 3, 3)
RESPOND = Tiling(4096, 4, 3, 0)
GRADIENT_SUMS = Tiling(2048, 4, 3, 4)
RESPOND_BACKWARD = Tiling(1024, 2, 3, 12)


@dataclass(frozen=True)
class Norm:
    """Batch norm behind a layer: mean and (biased) variance of the response, weight γ and ε."""

    mean: Tensor
    variance: Tensor
    weight: Tensor
    eps: float


class Layer:
    """The passes over a layer's products z and norms n, by its operator.

    `raw` says that values["rho"] is r, of which ρ = r² + 1e-4.
    """

    def __init__(
        self, z: Tensor, n: Tensor, h: str, g: str, values: dict[str, Tensor | float], raw: bool, relative: bool, groups: int
    ) -> None:
        self.z, self.n, self.relative, self.raw = z, n, relative, raw
        self.values = [value.contiguous() if isinstance(value, Tensor) else float(value) for value in all_of(values)]
        self.kinds = kinds(self.values) | raw << 16
        self.plan = plan_for(z.shape, z.stride(), z.dtype, z.device, h, g, self.kinds, groups)

    def radius(self, mean: Tensor | None) -> int:
        """How the programs find the mean norm that ρ is measured by."""
        return 0 if not self.relative else 2 if mean is None else 1

    def statistics(self, mean: Tensor | None, m: Tensor, partials: Tensor) -> Tensor:
        """Mean, biased and unbiased variance (3, filters) of the response; m is written unless a mean norm is given."""
        z, n, grid, width = self.z, self.n, self.plan.walk(STATISTICS), self.z.shape[1]
        moments = torch.empty(grid[0], 3, width, dtype=torch.float32, device=z.device)
        parts = partials.shape[0]
        run(
            norm_programs.statistics, grid, (z, n, partials, m, moments, *self.values),
            (RADIUS_FLOOR, parts, n.numel(), 3 * width, *self.plan.sizes),
            {"RADIUS": self.radius(mean), "PARTS": power_of_two(parts), **self.plan.cut(STATISTICS)}, STATISTICS.warps,
        )  # fmt: skip
        results = torch.empty(3, width, dtype=torch.float32, device=z.device)
        rows, columns = added(grid[0])
        run(
            norm_programs.combine, (ceiling(width, columns), 1, 1), (moments, results), (grid[0], width),
            {"PROGRAMS": rows, "FILTERS": columns},
        )  # fmt: skip
        return results

    def respond(
        self, mean: Tensor | None, m: Tensor, partials: Tensor, bias: Tensor | None, norm: Norm | None,
        residual: Tensor | None, relu: bool, wants_sums: bool, wants_token: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """y in the layout of z, Σy² for the layer that follows, and zeros in y's shape; empty where they are not wanted."""
        z, n, parts = self.z, self.n, partials.shape[0]
        y = torch.empty_like(z)
        size = (z.shape[0], 1, self.plan.positions) if wants_sums else (0,)
        sums = torch.empty(size, dtype=torch.float32, device=z.device)
        token = z.new_empty(1 if wants_token else 0)
        of_norm = (z, z, z) if norm is None else (norm.mean, norm.variance, norm.weight)
        added = z if residual is None else residual
        of_added = steps_of(added)
        cut = self.plan.cut(RESPOND, of_added)
        run(
            programs.respond, (ceiling(self.plan.rows, cut["ROWS"]), self.plan.groups, 1),
            (
                z, y, n, added, sums if wants_sums else n, token, z if bias is None else bias, partials, m, *of_norm,
                *self.values,
            ),
            (RADIUS_FLOOR, 0.0 if norm is None else norm.eps, parts, n.numel(), *self.plan.sizes, *of_added),
            {
                "RADIUS": self.radius(mean), "BIAS": bias is not None, "NORMALISED": norm is not None,
                "RESIDUAL": residual is not None, "RELU": relu, "SUMS": wants_sums, "TOKEN": wants_token,
                "PARTS": power_of_two(parts), **cut,
            }, RESPOND.warps,
        )  # fmt: skip
        return y, sums, token.expand(z.shape) if wants_token else token

    def gradient_sums(
        self, dy: Tensor, dsums: Tensor | None, y: Tensor | None, m: Tensor, bias: Tensor, norm: Norm, relu: bool,
        dtoken: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Σd and Σd·f̂ (2, filters); with y, which has a residual in it, also d itself."""
        z, n, d, grid = self.z, self.n, steps_of(dy), self.plan.walk(GRADIENT_SUMS)
        t = d if dtoken is None else steps_of(dtoken)
        masked = None if y is None else torch.empty_like(z)
        shares = torch.empty(grid[0], 2, z.shape[1], dtype=torch.float32, device=z.device)
        run(
            norm_programs.gradient_sums, grid,
            (
                dy, z, n, z if y is None else y, n if dsums is None else dsums, dy if dtoken is None else dtoken,
                z if masked is None else masked, m, norm.mean, norm.variance, norm.weight, bias, shares, *self.values,
            ),
            (RADIUS_FLOOR, norm.eps, 2 * z.shape[1], *self.plan.sizes, *d, *t),
            {
                "RADIUS": int(self.relative), "RESIDUAL": y is not None, "RELU": relu, "SUMS": dsums is not None,
                "TOKEN": dtoken is not None, **self.plan.cut(GRADIENT_SUMS, d, t),
            }, GRADIENT_SUMS.warps,
        )  # fmt: skip
        return add_up(shares), masked

    def respond_backward(
        self, dy: Tensor, dsums: Tensor | None, m: Tensor, bias: Tensor | None, norm: Norm | None, sums: Tensor | None,
        relu: bool, wanted: list[str],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """dz, the parts of dn, and the gradients of what is wanted (wanted, filters), that of ρ being that of ρ·m.

        Behind a norm, `sums` are Σd and Σd·f̂ of each filter.
        """
        z, n, d, grid = self.z, self.n, steps_of(dy), self.plan.walk(RESPOND_BACKWARD)
        dz = torch.empty_like(z)
        dn = torch.empty(self.plan.chunks, *n.shape, dtype=torch.float32, device=z.device)
        count = max(1, len(wanted))
        shares = torch.empty(grid[0], count, z.shape[1], dtype=torch.float32, device=z.device)
        places = sum((1 + wanted.index(name)) << (4 * place) for place, name in enumerate(WANTED) if name in wanted)
        of_norm = (z, z, z, z) if norm is None else (norm.mean, norm.variance, norm.weight, sums)
        run(
            programs.respond_backward, grid,
            (
                dy, z, dz, n, dn, n if dsums is None else dsums, m, z if bias is None else bias, *of_norm, shares,
                *self.values,
            ),
            (RADIUS_FLOOR, 0.0 if norm is None else norm.eps, count * z.shape[1], *self.plan.sizes, *d),
            {
                "RADIUS": int(self.relative), "WANTED": places, "BIAS": bias is not None, "NORMALISED": norm is not None,
                "RELU": relu, "SUMS": dsums is not None, **self.plan.cut(RESPOND_BACKWARD, d),
            }, RESPOND_BACKWARD.warps,
        )  # fmt: skip
        return dz, dn, add_up(shares) if wanted else shares[0]

    def finish(
        self, dn: Tensor, totals: Tensor | None, m: Tensor, view: Windows, dunit: Tensor | None, weight: Tensor | None,
        eps: float, need_sums: bool, through_mean: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
        """The gradients of the sums of squares, of the weight by that of ŵ, of the radius and of the mean norm.

        `totals` are the gradients of ρ·m, where they are known; each gradient is None where what it needs is not given.
        """
        n, device = self.n, self.n.device
        batch, groups = n.shape[:2]
        size = (batch, groups, math.prod(view.size)) if need_sums else (0,)
        dsums = torch.empty(size, dtype=torch.float32, device=device)
        blocks = ceiling(dsums.numel(), BLOCK)
        dweight = None
        if dunit is not None and weight is not None:
            if dunit.stride() != weight.stride():
                dunit = torch.empty_like(weight, dtype=dunit.dtype).copy_(dunit)
            dweight = torch.empty_like(weight)
        dradius = None if totals is None else torch.empty_like(totals)
        dmean = None if totals is None else torch.empty((), dtype=torch.float32, device=device)
        kernels, length = (
            (0, 1) if dweight is None or weight is None else (weight.shape[0], weight.numel() // weight.shape[0])
        )
        filters, chunks = self.z.shape[1], dn.shape[0]
        if chunks * math.prod(view.kernel) > UNROLLED:
            dn, chunks = add_up(dn), 1
        run(
            edge_programs.finish, (1 + blocks + kernels, 1, 1),
            (
                dn, n, dsums, *((n, n, n) if dweight is None else (dunit, weight, dweight)),
                *((n, 1.0, m, n, n) if totals is None else (totals, self.values[0], m, dradius, dmean)),
            ),
            (blocks, length, filters, eps, RADIUS_FLOOR, dsums.numel(), n.numel(), *view.arguments),
            {
                "KIND": self.kinds & 3 if totals is not None else 3, "RAW": self.raw,
                "RADIUS": 0 if totals is None else 2 if self.relative else 1,
                "THROUGH_MEAN": through_mean and totals is not None, "CHUNKS": chunks,
                "FILTERS": power_of_two(filters), **view.taps, "BLOCK": BLOCK, "FILTER": FILTER,
            },
        )  # fmt: skip
        return dsums if need_sums else None, dweight, dradius, dmean


def all_of(values: dict[str, Tensor | float]) -> list[Tensor | float]:
    """The values in the programs' order; 1 stands for one that is not there."""
    return [values.get(name, 1.0) for name in NAMES]


def kinds(values: list[Tensor | float]) -> int:
    """Two bits for each value: 0 a number, 1 a tensor of all filters, 2 of one element, 3 the number 1."""
    found = 0
    for place, value in enumerate(values):
        kind = (3 if value == 1 else 0) if not isinstance(value, Tensor) else 2 if value.numel() == 1 else 1
        found |= kind << (2 * place)
    return found


def added(programs: int) -> tuple[int, int]:
    """The tile of partial sums that one program adds up: all programs before it, and some filters."""
    rows = power_of_two(programs)
    return rows, max(1, min(16, ADDED // rows))


def add_up(shares: Tensor) -> Tensor:
    """Σ shares over the programs, which are the first axis."""
    totals = torch.empty(shares.shape[1:], dtype=torch.float32, device=shares.device)
    rows, columns = added(shares.shape[0])
    run(
        programs.add_up, (ceiling(totals.numel(), columns), 1, 1), (shares, totals), (shares.shape[0], totals.numel()),
        {"PROGRAMS": rows, "ENTRIES": columns},
    )  # fmt: skip
    return totals
