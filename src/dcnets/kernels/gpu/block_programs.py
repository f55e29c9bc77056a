"""The Triton programs of a block: response, batch norm and ReLU in two passes forward and two backward.

The response f is never stored: each pass computes it anew from z and n. With f̂ = (f − mean)·rstd, y = γ·f̂ + β and
d = ∂L/∂y after the ReLU, the first pass backward adds up Σd and Σd·f̂, and the second has
∂L/∂f = γ·rstd·(d − Σd/N − f̂·Σ(d·f̂)/N) at hand, of which dz, dn and the values' gradients follow.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dcnets.kernels.gpu.programs import mean_norm, operands, settled


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
        own = tl.arange(0, ROWS)
        row = (tl.zeros([ROWS], dtype=tl.int64) + tile) * ROWS + own
        live = row < rows
        batch, position = row // positions, row % positions
        n = tl.load(norms + (batch * groups + group) * positions + position, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * step_batch + position * step_position)[:, None] + (at * step_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        h, _, _, _, _, _ = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, _, _, _ = G(c, of_g[0], of_g[1])
        f = h * g * scaled
        # the first row as origin keeps the squares small where the mean is far from 0
        shift = tl.where(seen == 0.0, tl.sum(tl.where((own == 0)[:, None], f, 0.0), axis=0), shift)
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
def normalise(
    z, y, norms, radius_mean, mean, variance, gamma, beta_bn, bn_eps,
    rho, alpha, beta, k, p, weight_norm, stretch, scale,
    rows, positions, groups, filters, step_batch, step_position, step_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """y = γ·f̂ + β, and its ReLU."""
    group = tl.program_id(1).to(tl.int64)
    of_group = tl.arange(0, FILTERS).to(tl.int64)
    inside = of_group < filters
    at = group * filters + of_group
    m = mean_norm(radius_mean, radius_mean, 1, 1, RADIUS, 1)
    of_h, of_g = operands(rho, alpha, beta, k, p, weight_norm, m, KINDS, at, inside)
    stretched, scaled = settled(stretch, (KINDS >> 12) & 3, at, inside), settled(scale, (KINDS >> 14) & 3, at, inside)
    rstd = 1.0 / tl.sqrt(tl.load(variance + at, mask=inside, other=1.0) + bn_eps)
    factor = rstd * tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(beta_bn + at, mask=inside, other=0.0).to(tl.float32)
    offset -= factor * tl.load(mean + at, mask=inside, other=0.0)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (tl.zeros([ROWS], dtype=tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
        live = row < rows
        batch, position = row // positions, row % positions
        n = tl.load(norms + (batch * groups + group) * positions + position, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * step_batch + position * step_position)[:, None] + (at * step_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        h, _, _, _, _, _ = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, _, _, _ = G(c, of_g[0], of_g[1])
        value = h * g * scaled * factor[None, :] + offset[None, :]
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + place, value, mask=both)


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
        row = (tl.zeros([ROWS], dtype=tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
        live = row < rows
        batch, position = row // positions, row % positions
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


@triton.jit
def add_up(sums, totals, programs, entries, PROGRAMS: tl.constexpr, ENTRIES: tl.constexpr):
    """totals[entry] = Σ sums[program, entry] over all programs, in a fixed order."""
    program = tl.arange(0, PROGRAMS).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    both = (program < programs)[:, None] & (at < entries)[None, :]
    own = tl.load(sums + (program * entries)[:, None] + at[None, :], mask=both, other=0.0)
    tl.store(totals + at, tl.sum(own, axis=0), mask=at < entries)


@triton.jit
def block_backward(
    dy, z, dz, norms, dnorms, radius_mean, mean, variance, gamma, beta_bn, bn_eps, totals, shares, step,
    rho, alpha, beta, k, p, weight_norm, stretch, scale,
    rows, positions, groups, filters, z_batch, z_position, z_filter, d_batch, d_position, d_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, WANTED: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """dz, dn of the patch norms (without the mean's part), and for each wanted value a program's share of its gradient.

    From the totals Σd and Σd·f̂. WANTED has four bits a value: 0, or 1 + its place in `shares` (programs, values, filters).
    """
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
    plain = (tl.load(totals + at, mask=inside, other=0.0) / rows)[None, :]
    along = (tl.load(totals + groups * filters + at, mask=inside, other=0.0) / rows)[None, :]
    zero = tl.zeros([FILTERS], dtype=tl.float32)
    t_rho, t_alpha, t_beta, t_k, t_p, t_weight_norm, t_stretch, t_scale = zero, zero, zero, zero, zero, zero, zero, zero
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (tl.zeros([ROWS], dtype=tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
        live = row < rows
        batch, position = row // positions, row % positions
        at_norm = (batch * groups + group) * positions + position
        n = tl.load(norms + at_norm, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * z_batch + position * z_position)[:, None] + (at * z_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        from_there = (batch * d_batch + position * d_position)[:, None] + (at * d_filter)[None, :]
        d = tl.load(dy + from_there, mask=both, other=0.0).to(tl.float32)
        h, h_n, h_rho, h_alpha, h_beta, h_w = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, g_c, g_k, g_p = G(c, of_g[0], of_g[1])
        hat = (h * g * scaled - centre) * rstd
        if RELU:
            d = tl.where(hat * weight + bias > 0.0, d, 0.0)
        df = tl.where(both, weight * rstd * (d - plain - hat * along), 0.0)
        outer, inner = df * scaled * g, df * scaled * h
        dc = inner * g_c
        tl.store(dz + place, dc / n, mask=both)
        dn = tl.sum(outer * h_n * stretched - c * dc / n, axis=1)
        tl.store(dnorms + at_norm, dn, mask=live)
        if (WANTED >> 0) & 15 > 0:
            t_rho += tl.sum(outer * h_rho, axis=0)
        if (WANTED >> 4) & 15 > 0:
            t_alpha += tl.sum(outer * h_alpha, axis=0)
        if (WANTED >> 8) & 15 > 0:
            t_beta += tl.sum(outer * h_beta, axis=0)
        if (WANTED >> 12) & 15 > 0:
            t_k += tl.sum(inner * g_k, axis=0)
        if (WANTED >> 16) & 15 > 0:
            t_p += tl.sum(inner * g_p, axis=0)
        if (WANTED >> 20) & 15 > 0:
            t_weight_norm += tl.sum(outer * h_w, axis=0)
        if (WANTED >> 24) & 15 > 0:
            t_stretch += tl.sum(outer * h_n * n, axis=0)
        if (WANTED >> 28) & 15 > 0:
            t_scale += tl.sum(df * h * g, axis=0)
    there = shares + tl.program_id(0).to(tl.int64) * step + at
    size = groups * filters
    if (WANTED >> 0) & 15 > 0:
        tl.store(there + (((WANTED >> 0) & 15) - 1) * size, t_rho, mask=inside)
    if (WANTED >> 4) & 15 > 0:
        tl.store(there + (((WANTED >> 4) & 15) - 1) * size, t_alpha, mask=inside)
    if (WANTED >> 8) & 15 > 0:
        tl.store(there + (((WANTED >> 8) & 15) - 1) * size, t_beta, mask=inside)
    if (WANTED >> 12) & 15 > 0:
        tl.store(there + (((WANTED >> 12) & 15) - 1) * size, t_k, mask=inside)
    if (WANTED >> 16) & 15 > 0:
        tl.store(there + (((WANTED >> 16) & 15) - 1) * size, t_p, mask=inside)
    if (WANTED >> 20) & 15 > 0:
        tl.store(there + (((WANTED >> 20) & 15) - 1) * size, t_weight_norm, mask=inside)
    if (WANTED >> 24) & 15 > 0:
        tl.store(there + (((WANTED >> 24) & 15) - 1) * size, t_stretch, mask=inside)
    if (WANTED >> 28) & 15 > 0:
        tl.store(there + (((WANTED >> 28) & 15) - 1) * size, t_scale, mask=inside)
