"""The Triton programs that a block has beside a layer's: the statistics of batch norm, forward and backward.

The response f is never stored: each pass computes it anew from z and n. With f̂ = (f − mean)·rstd, y = γ·f̂ + β and
d = ∂L/∂y after the ReLU, the first pass backward adds up Σd and Σd·f̂, and the second has
∂L/∂f = γ·rstd·(d − Σd/N − f̂·Σ(d·f̂)/N) at hand, of which dz, dn and the values' gradients follow.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dcnets.kernels.gpu.programs import mean_norm, operands, rows_of, settled


@triton.jit
def statistics(
    z, norms, partials, mean, parts, count, moments, step,
    rho, alpha, beta, k, p, weight_norm, stretch, scale,
    rows, positions, groups, filters, step_batch, step_position, step_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """moments (programs, 3, filters): each program's number of rows, mean of f and Σ(f − mean)²."""
    group = tl.program_id(1).to(tl.int64)
    of_group = tl.arange(0, FILTERS).to(tl.int64)
    inside = of_group < filters
    at = group * filters + of_group
    m = mean_norm(partials, mean, parts, count, RADIUS, PARTS)
    if RADIUS == 2:
        if (tl.program_id(0) == 0) & (group == 0):
            tl.store(mean, m)
    of_h, of_g = operands(rho, alpha, beta, k, p, weight_norm, m, KINDS, at, inside)
    stretched, scaled = settled(stretch, (KINDS >> 12) & 3, at, inside), settled(scale, (KINDS >> 14) & 3, at, inside)
    seen = tl.zeros([FILTERS], dtype=tl.float32)
    shift, first, second = seen, seen, seen
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        live, batch, position = rows_of(tile, rows, positions, ROWS)
        n = tl.load(norms + (batch * groups + group) * positions + position, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * step_batch + position * step_position)[:, None] + (at * step_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        h, _, _, _, _, _ = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, _, _, _ = G(c, of_g[0], of_g[1])
        f = h * g * scaled
        # the first row as origin keeps the squares small where the mean is far from 0
        shift = tl.where(seen == 0.0, tl.sum(tl.where((tl.arange(0, ROWS) == 0)[:, None], f, 0.0), axis=0), shift)
        off = tl.where(both, f - shift[None, :], 0.0)
        first += tl.sum(off, axis=0)
        second += tl.sum(off * off, axis=0)
        seen += tl.sum(both.to(tl.float32), axis=0)
    there = moments + tl.program_id(0).to(tl.int64) * step + at
    size = groups * filters
    share = first / tl.maximum(seen, 1.0)
    tl.store(there, seen, mask=inside)
    tl.store(there + size, shift + share, mask=inside)
    tl.store(there + 2 * size, second - first * share, mask=inside)


@triton.jit
def combine(moments, mean, variance, programs, filters, PROGRAMS: tl.constexpr, FILTERS: tl.constexpr):
    """The mean and the (biased) variance of all programs' rows."""
    program = tl.arange(0, PROGRAMS).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * FILTERS + tl.arange(0, FILTERS)
    both = (program < programs)[:, None] & (at < filters)[None, :]
    place = moments + (program * 3 * filters)[:, None] + at[None, :]
    seen = tl.load(place, mask=both, other=0.0)
    own = tl.load(place + filters, mask=both, other=0.0)
    around = tl.load(place + 2 * filters, mask=both, other=0.0)
    total = tl.maximum(tl.sum(seen, axis=0), 1.0)
    centre = tl.sum(seen * own, axis=0) / total
    off = own - centre[None, :]
    tl.store(mean + at, centre, mask=at < filters)
    tl.store(variance + at, tl.sum(around + seen * off * off, axis=0) / total, mask=at < filters)


@triton.jit
def block_sums(
    dy, z, norms, radius_mean, mean, variance, gamma, beta_bn, bn_eps, sums, step,
    rho, alpha, beta, k, p, weight_norm, stretch, scale,
    rows, positions, groups, filters, z_batch, z_position, z_filter, d_batch, d_position, d_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """sums (programs, 2, filters): each program's Σd and Σd·f̂."""
    group = tl.program_id(1).to(tl.int64)
    of_group = tl.arange(0, FILTERS).to(tl.int64)
    inside = of_group < filters
    at = group * filters + of_group
    m = mean_norm(radius_mean, radius_mean, 1, 1, RADIUS, 1)
    of_h, of_g = operands(rho, alpha, beta, k, p, weight_norm, m, KINDS, at, inside)
    stretched, scaled = settled(stretch, (KINDS >> 12) & 3, at, inside), settled(scale, (KINDS >> 14) & 3, at, inside)
    rstd = (1.0 / tl.sqrt(tl.load(variance + at, mask=inside, other=1.0) + bn_eps))[None, :]
    centre = tl.load(mean + at, mask=inside, other=0.0)[None, :]
    weight = tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(beta_bn + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    plain = tl.zeros([FILTERS], dtype=tl.float32)
    along = plain
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        live, batch, position = rows_of(tile, rows, positions, ROWS)
        at_norm = (batch * groups + group) * positions + position
        n = tl.load(norms + at_norm, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * z_batch + position * z_position)[:, None] + (at * z_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        from_there = (batch * d_batch + position * d_position)[:, None] + (at * d_filter)[None, :]
        d = tl.load(dy + from_there, mask=both, other=0.0).to(tl.float32)
        h, _, _, _, _, _ = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, _, _, _ = G(c, of_g[0], of_g[1])
        hat = (h * g * scaled - centre) * rstd
        if RELU:
            d = tl.where(hat * weight + bias > 0.0, d, 0.0)
        plain += tl.sum(d, axis=0)
        along += tl.sum(tl.where(both, d * hat, 0.0), axis=0)
    there = sums + tl.program_id(0).to(tl.int64) * step + at
    size = groups * filters
    tl.store(there, plain, mask=inside)
    tl.store(there + size, along, mask=inside)
