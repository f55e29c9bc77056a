"""The Triton programs of a layer between z and y: the response, and its gradients."""

from __future__ import annotations

import triton
import triton.language as tl

from dcnets.kernels.gpu.angulars import angular
from dcnets.kernels.gpu.magnitudes import magnitude
from dcnets.kernels.gpu.pieces import columns_of, fetch, keep, mean_norm, operands, real, rows_of


@triton.jit
def respond(
    z, y, norms, residual, sums, token, bias, partials, mean, centre, variance, gamma,
    rho, alpha, beta, k, p, weight_norm, stretch, scale, floor, bn_eps, parts, count,
    rows, positions, groups, filters, step_batch, step_position, step_filter, r_batch, r_position, r_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, BIAS: tl.constexpr,
    NORMALISED: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, SUMS: tl.constexpr, TOKEN: tl.constexpr,
    PARTS: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    FLAT: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """f = scale · h(stretch · n) · g(z/n), where NORMALISED γ·(f − centre)/√(variance + ε), plus bias and residual; ReLU.

    Where SUMS, also Σ y² over the filters, for the layer that follows, and where TOKEN a zero. Where the radius is measured
    by the batch's mean norm, the first program writes it.
    """
    m = mean_norm(partials, mean, parts, count, RADIUS, PARTS)
    if RADIUS == 2:
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(mean, m)
    if TOKEN:
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(token, 0.0)
    live, batch, position, at_norm = rows_of(
        tl.program_id(0), rows, positions, tl.program_id(1).to(tl.int64), groups, ROWS, FLAT
    )
    n = fetch(norms + at_norm, live, 1.0, WHOLE)[:, None]
    inverse = 1.0 / n
    start = (batch * step_batch + position * step_position)[:, None]
    squares = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for chunk in tl.range(CHUNKS, num_stages=STAGES):
        _, at, inside = columns_of(tl.program_id(1) * CHUNKS + chunk, filters, CHUNKS, WIDTH)
        radius, a, b, w, k_, p_, stretched, scaled = operands(
            rho, alpha, beta, k, p, weight_norm, stretch, scale, m, floor, KINDS, at, inside
        )
        offset = tl.zeros([1, WIDTH], dtype=tl.float32)
        if BIAS:
            offset += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        if NORMALISED:
            rstd = tl.rsqrt(tl.load(variance + at, mask=inside, other=1.0).to(tl.float32) + real(bn_eps))
            slope = (rstd * tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32))[None, :]
            middle = tl.load(centre + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        both = live[:, None] & inside[None, :]
        place = start + (at * step_filter)[None, :]
        c = fetch(z + place, both, 0.0, WHOLE) * inverse
        h, _, _, _, _, _ = magnitude(n * stretched, radius, a, b, w, H, FAST)
        g, _, _, _ = angular(c, k_, p_, G)
        value = h * g * scaled
        if NORMALISED:
            value = (value - middle) * slope  # the difference first: f and its mean may be alike
        value += offset
        if RESIDUAL:
            there = (batch * r_batch + position * r_position)[:, None] + (at * r_filter)[None, :]
            value += fetch(residual + there, both, 0.0, WHOLE)
        if RELU:
            value = tl.maximum(value, 0.0)
        keep(y + place, value, both, WHOLE)
        if SUMS:
            if not WHOLE:
                value = tl.where(both, value, 0.0)
            squares += value * value
    if SUMS:
        tl.store(sums + at_norm, tl.sum(squares, axis=1), mask=live)


@triton.jit
def keep_share(there, total, inside, size, PLACE: tl.constexpr):
    """Store a program's share of a value's gradient, summed over its rows; PLACE: 0 where it is not wanted."""
    if PLACE > 0:
        tl.store(there + (PLACE - 1) * size, tl.sum(total, axis=0), mask=inside)


@triton.jit
def respond_backward(
    dy, z, dz, norms, dnorms, dsums, mean, bias, centre, variance, gamma, totals, shares,
    rho, alpha, beta, k, p, weight_norm, stretch, scale, floor, bn_eps, step,
    rows, positions, groups, filters, z_batch, z_position, z_filter, d_batch, d_position, d_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, WANTED: tl.constexpr, BIAS: tl.constexpr,
    NORMALISED: tl.constexpr, RELU: tl.constexpr, SUMS: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FLAT: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dz, a chunk's part of dn (without the mean's), and for each wanted value a program's share of its gradient.

    d is dy, where SUMS with 2·y·dsums added, and 0 where the ReLU cut y off. Where NORMALISED, ∂L/∂f is
    γ·rstd·(d − Σd/N − f̂·Σ(d·f̂)/N) by the totals Σd and Σd·f̂, else d itself. KINDS has two bits for each value, and WANTED
    four: 0, or 1 + its place in `shares` (programs, values, filters).
    """
    group, at, inside = columns_of(tl.program_id(1), filters, CHUNKS, WIDTH)
    m = mean_norm(mean, mean, 1, 1, RADIUS, 1)
    radius, a, b, w, k_, p_, stretched, scaled = operands(
        rho, alpha, beta, k, p, weight_norm, stretch, scale, m, floor, KINDS, at, inside
    )
    offset = tl.zeros([1, WIDTH], dtype=tl.float32)
    if BIAS:
        offset += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    slope = 1.0 + tl.zeros([1, WIDTH], dtype=tl.float32)
    if NORMALISED:
        rstd = tl.rsqrt(tl.load(variance + at, mask=inside, other=1.0).to(tl.float32) + real(bn_eps))[None, :]
        middle = tl.load(centre + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        slope = tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        outward = slope * rstd
        plain = -outward * (tl.load(totals + at, mask=inside, other=0.0) / rows)[None, :]
        along = -outward * (tl.load(totals + groups * filters + at, mask=inside, other=0.0) / rows)[None, :]
    zero = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    t_rho, t_alpha, t_beta, t_k, t_p, t_weight_norm, t_stretch, t_scale = zero, zero, zero, zero, zero, zero, zero, zero
    t_bias = zero
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        live, batch, position, at_norm = rows_of(tile, rows, positions, group, groups, ROWS, FLAT)
        both = live[:, None] & inside[None, :]
        place = (batch * z_batch + position * z_position)[:, None] + (at * z_filter)[None, :]
        from_there = (batch * d_batch + position * d_position)[:, None] + (at * d_filter)[None, :]
        product = fetch(z + place, both, 0.0, WHOLE)
        d = fetch(dy + from_there, both, 0.0, WHOLE)
        n = fetch(norms + at_norm, live, 1.0, WHOLE)[:, None]
        inverse = 1.0 / n
        c = product * inverse
        h, h_n, h_rho, h_alpha, h_beta, h_w = magnitude(n * stretched, radius, a, b, w, H, FAST)
        g, g_c, g_k, g_p = angular(c, k_, p_, G)
        hat = h * g * scaled
        if NORMALISED:
            hat = (hat - middle) * rstd
        if RELU or SUMS:
            value = hat * slope + offset
            if SUMS:
                d += value * (2.0 * fetch(dsums + at_norm, live, 0.0, WHOLE)[:, None])
            if RELU:
                d = tl.where(value > 0.0, d, 0.0)
        df = d
        if NORMALISED:
            df = d * outward + (hat * along + plain)
            if not WHOLE:
                df = tl.where(both, df, 0.0)
        shaped = df * scaled
        outer, inner = shaped * g, shaped * h
        dc = inner * g_c * inverse
        keep(dz + place, dc, both, WHOLE)
        dn = tl.sum(outer * h_n * stretched - c * dc, axis=1)
        tl.store(dnorms + (tl.program_id(1) % CHUNKS).to(tl.int64) * rows * groups + at_norm, dn, mask=live)
        if (WANTED >> 0) & 15 > 0:
            t_rho += outer * h_rho
        if (WANTED >> 4) & 15 > 0:
            t_alpha += outer * h_alpha
        if (WANTED >> 8) & 15 > 0:
            t_beta += outer * h_beta
        if (WANTED >> 12) & 15 > 0:
            t_k += inner * g_k
        if (WANTED >> 16) & 15 > 0:
            t_p += inner * g_p
        if (WANTED >> 20) & 15 > 0:
            t_weight_norm += outer * h_w
        if (WANTED >> 24) & 15 > 0:
            t_stretch += outer * h_n * n
        if (WANTED >> 28) & 15 > 0:
            t_scale += df * h * g
        if (WANTED >> 32) & 15 > 0:
            t_bias += df
    there = shares + tl.program_id(0).to(tl.int64) * step + at
    size = groups * filters
    keep_share(there, t_rho, inside, size, (WANTED >> 0) & 15)
    keep_share(there, t_alpha, inside, size, (WANTED >> 4) & 15)
    keep_share(there, t_beta, inside, size, (WANTED >> 8) & 15)
    keep_share(there, t_k, inside, size, (WANTED >> 12) & 15)
    keep_share(there, t_p, inside, size, (WANTED >> 16) & 15)
    keep_share(there, t_weight_norm, inside, size, (WANTED >> 20) & 15)
    keep_share(there, t_stretch, inside, size, (WANTED >> 24) & 15)
    keep_share(there, t_scale, inside, size, (WANTED >> 28) & 15)
    keep_share(there, t_bias, inside, size, (WANTED >> 32) & 15)


@triton.jit
def add_up(sums, totals, programs, entries, PROGRAMS: tl.constexpr, ENTRIES: tl.constexpr):
    """totals[entry] = Σ sums[program, entry] over all programs, in a fixed order."""
    program = tl.arange(0, PROGRAMS).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    both = (program < programs)[:, None] & (at < entries)[None, :]
    own = tl.load(sums + (program * entries)[:, None] + at[None, :], mask=both, other=0.0)
    tl.store(totals + at, tl.sum(own, axis=0), mask=at < entries)
