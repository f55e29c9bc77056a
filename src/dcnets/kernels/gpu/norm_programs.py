"""The Triton programs that batch norm adds to a layer: its statistics forward, and its two sums backward.

The response f is never stored: each pass computes it anew from z and n. With f̂ = (f − mean)·rstd, y = γ·f̂ + β and
d = ∂L/∂y after the ReLU, the first pass backward adds up Σd and Σd·f̂, and the second has
∂L/∂f = γ·rstd·(d − Σd/N − f̂·Σ(d·f̂)/N) at hand, of which dz, dn and the values' gradients follow.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dcnets.kernels.gpu.angulars import angular
from dcnets.kernels.gpu.magnitudes import magnitude
from dcnets.kernels.gpu.pieces import columns_of, fetch, keep, mean_norm, operands, real, rows_of


@triton.jit
def response_at(
    z, norms, row, positions, group, groups, step_batch, step_position, columns, inside,
    radius, a, b, w, k, p, stretched, scaled, H: tl.constexpr, G: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """f of one row, (1, filters): as origin it keeps squares small where the mean is far from 0."""
    batch, position = row.to(tl.int64) // positions, row.to(tl.int64) % positions
    n = tl.load(norms + (batch * groups + group) * positions + position) + tl.zeros([1, 1], dtype=tl.float32)
    place = batch * step_batch + position * step_position + columns[None, :]
    h, _, _, _, _, _ = magnitude(n * stretched, radius, a, b, w, H, FAST)
    g, _, _, _ = angular(tl.load(z + place, mask=inside[None, :], other=0.0).to(tl.float32) * (1.0 / n), k, p, G)
    return h * g * scaled


@triton.jit
def statistics(
    z, norms, partials, mean, moments,
    rho, alpha, beta, k, p, weight_norm, stretch, scale, floor, parts, count, step,
    rows, positions, groups, filters, step_batch, step_position, step_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, PARTS: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """moments (programs, 3, filters): each program's number of rows, mean of f and Σ(f − mean)²."""
    group, at, inside = columns_of(tl.program_id(1), filters, CHUNKS, WIDTH)
    m = mean_norm(partials, mean, parts, count, RADIUS, PARTS)
    if RADIUS == 2:
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(mean, m)
    radius, a, b, w, k_, p_, stretched, scaled = operands(
        rho, alpha, beta, k, p, weight_norm, stretch, scale, m, floor, KINDS, at, inside
    )
    origin = response_at(
        z, norms, tl.program_id(0) * ROWS, positions, group, groups, step_batch, step_position, at * step_filter, inside,
        radius, a, b, w, k_, p_, stretched, scaled, H, G, FAST,
    )  # fmt: skip
    seen = 0
    first, second = tl.zeros([ROWS, WIDTH], dtype=tl.float32), tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        live, batch, position, at_norm = rows_of(tile, rows, positions, group, groups, ROWS, FLAT)
        both = live[:, None] & inside[None, :]
        place = (batch * step_batch + position * step_position)[:, None] + (at * step_filter)[None, :]
        product = fetch(z + place, both, 0.0, WHOLE)
        n = fetch(norms + at_norm, live, 1.0, WHOLE)[:, None]
        h, _, _, _, _, _ = magnitude(n * stretched, radius, a, b, w, H, FAST)
        g, _, _, _ = angular(product * (1.0 / n), k_, p_, G)
        off = h * g * scaled - origin
        if not WHOLE:
            off = tl.where(both, off, 0.0)
        first += off
        second += off * off
        seen += tl.minimum(rows - tile * ROWS, ROWS)
    there = moments + tl.program_id(0).to(tl.int64) * step + at
    size = groups * filters
    total, squares = tl.sum(first, axis=0), tl.sum(second, axis=0)
    share = total / seen
    tl.store(there, tl.zeros([WIDTH], dtype=tl.float32) + seen, mask=inside)
    tl.store(there + size, tl.reshape(origin, [WIDTH]) + share, mask=inside)
    tl.store(there + 2 * size, squares - total * share, mask=inside)


@triton.jit
def combine(moments, results, programs, filters, PROGRAMS: tl.constexpr, FILTERS: tl.constexpr):
    """results (3, filters): mean, biased variance and unbiased variance of all programs' rows."""
    program = tl.arange(0, PROGRAMS).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * FILTERS + tl.arange(0, FILTERS)
    both = (program < programs)[:, None] & (at < filters)[None, :]
    place = moments + (program * 3 * filters)[:, None] + at[None, :]
    seen = tl.load(place, mask=both, other=0.0)
    own = tl.load(place + filters, mask=both, other=0.0)
    around = tl.load(place + 2 * filters, mask=both, other=0.0)
    total = tl.maximum(tl.sum(seen, axis=0), 1.0)
    origin = tl.sum(tl.where((program == 0)[:, None], own, 0.0), axis=0)
    mean = origin + tl.sum(seen * (own - origin[None, :]), axis=0) / total
    off = own - mean[None, :]
    squares = tl.sum(around + seen * off * off, axis=0)
    tl.store(results + at, mean, mask=at < filters)
    tl.store(results + filters + at, squares / total, mask=at < filters)
    tl.store(results + 2 * filters + at, squares / tl.maximum(total - 1.0, 1.0), mask=at < filters)


@triton.jit
def gradient_sums(
    dy, z, norms, y, dsums, dtoken, masked, mean, centre, variance, gamma, bias, shares,
    rho, alpha, beta, k, p, weight_norm, stretch, scale, floor, bn_eps, step,
    rows, positions, groups, filters, z_batch, z_position, z_filter, d_batch, d_position, d_filter,
    t_batch, t_position, t_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, RESIDUAL: tl.constexpr,
    RELU: tl.constexpr, SUMS: tl.constexpr, TOKEN: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """shares (programs, 2, filters): each program's Σd and Σd·f̂.

    d is dy, where TOKEN with dtoken and where SUMS with 2·y·dsums added, and 0 where the ReLU cut y off. With a RESIDUAL y
    is read, and d stored in `masked`, in y's layout, since it is the residual's gradient too; without, y is computed anew.
    """
    group, at, inside = columns_of(tl.program_id(1), filters, CHUNKS, WIDTH)
    m = mean_norm(mean, mean, 1, 1, RADIUS, 1)
    radius, a, b, w, k_, p_, stretched, scaled = operands(
        rho, alpha, beta, k, p, weight_norm, stretch, scale, m, floor, KINDS, at, inside
    )
    rstd = tl.rsqrt(tl.load(variance + at, mask=inside, other=1.0).to(tl.float32) + real(bn_eps))[None, :]
    middle = tl.load(centre + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    slope = tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    offset = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    plain, along = tl.zeros([ROWS, WIDTH], dtype=tl.float32), tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        live, batch, position, at_norm = rows_of(tile, rows, positions, group, groups, ROWS, FLAT)
        both = live[:, None] & inside[None, :]
        place = (batch * z_batch + position * z_position)[:, None] + (at * z_filter)[None, :]
        from_there = (batch * d_batch + position * d_position)[:, None] + (at * d_filter)[None, :]
        product = fetch(z + place, both, 0.0, WHOLE)
        d = fetch(dy + from_there, both, 0.0, WHOLE)
        if TOKEN:
            there = (batch * t_batch + position * t_position)[:, None] + (at * t_filter)[None, :]
            d += fetch(dtoken + there, both, 0.0, WHOLE)
        n = fetch(norms + at_norm, live, 1.0, WHOLE)[:, None]
        h, _, _, _, _, _ = magnitude(n * stretched, radius, a, b, w, H, FAST)
        g, _, _, _ = angular(product * (1.0 / n), k_, p_, G)
        hat = (h * g * scaled - middle) * rstd
        if RELU or SUMS:
            value = fetch(y + place, both, 0.0, WHOLE) if RESIDUAL else hat * slope + offset
            if SUMS:
                d += value * (2.0 * fetch(dsums + at_norm, live, 0.0, WHOLE)[:, None])
            if RELU:
                d = tl.where(value > 0.0, d, 0.0)
        if RESIDUAL:
            keep(masked + place, d, both, WHOLE)
        plain += d
        along += d * hat
    share = shares + tl.program_id(0).to(tl.int64) * step + at
    tl.store(share, tl.sum(plain, axis=0), mask=inside)
    tl.store(share + groups * filters, tl.sum(along, axis=0), mask=inside)
