"""The Triton programs: squares, patch norms, the response and its gradients.

They compute in float32, address in int64, mask every load, and add up in a fixed order. A tile has some rows (a row is a
position of an image) and all filters of a group; a program walks over tiles, so that its partial sums are few.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def settled(value, KIND: tl.constexpr, at, inside):
    """A value for each filter of a tile, or one for all; KIND: 0 a number, 1 a tensor of all filters, 2 of one element."""
    if KIND == 0:
        return value
    elif KIND == 1:
        return tl.load(value + at, mask=inside, other=1.0).to(tl.float32)[None, :]
    else:
        return tl.load(value).to(tl.float32)


@triton.jit
def operands(rho, alpha, beta, k, p, weight_norm, m, KINDS: tl.constexpr, at, inside):
    """(ρ·m, α, β, ‖w‖) for h and (k, p) for g; KINDS has two bits for each value."""
    radius = settled(rho, KINDS & 3, at, inside) * m
    of_h = (
        radius, settled(alpha, (KINDS >> 2) & 3, at, inside), settled(beta, (KINDS >> 4) & 3, at, inside),
        settled(weight_norm, (KINDS >> 10) & 3, at, inside),
    )  # fmt: skip
    return of_h, (settled(k, (KINDS >> 6) & 3, at, inside), settled(p, (KINDS >> 8) & 3, at, inside))


@triton.jit
def square_sums(
    x, sums, rows, positions, groups, channels, step_batch, step_position, step_channel,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """sums[b, g, position] = Σ x² over the channels of a group."""
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    batch, position = row // positions, row % positions
    start = x + batch * step_batch + position * step_position
    total = tl.zeros([ROWS], dtype=tl.float32)
    for first in range(0, channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS).to(tl.int64)
        inside = live[:, None] & (channel < channels)[None, :]
        at = start[:, None] + ((group * channels + channel) * step_channel)[None, :]
        value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(value * value, axis=1)
    tl.store(sums + (batch * groups + group) * positions + position, total, mask=live)


@triton.jit
def patch_norms(
    sums, norms, partials, count, eps, depth, height, width, out_depth, out_height, out_width,
    step0, step1, step2, pad0, pad1, pad2, gap0, gap1, gap2,
    TAPS0: tl.constexpr, TAPS1: tl.constexpr, TAPS2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """norms = √(Σ sums over each window + ε); partials: the sum of the norms that each program made."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    out_positions = out_depth * out_height * out_width
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        at = (tl.zeros([BLOCK], dtype=tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
        live = at < count
        image, place = at // out_positions, at % out_positions
        d = place // (out_height * out_width) * step0 - pad0
        h = place // out_width % out_height * step1 - pad1
        w = place % out_width * step2 - pad2
        s = tl.zeros([BLOCK], dtype=tl.float32)
        for i in tl.static_range(TAPS0):
            for j in tl.static_range(TAPS1):
                for k in tl.static_range(TAPS2):
                    z, y, x = d + i * gap0, h + j * gap1, w + k * gap2
                    seen = live & (z >= 0) & (z < depth) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
                    s += tl.load(sums + ((image * depth + z) * height + y) * width + x, mask=seen, other=0.0)
        n = tl.sqrt(s + eps)
        tl.store(norms + at, n, mask=live)
        total += tl.where(live, n, 0.0)
    tl.store(partials + tl.program_id(0), tl.sum(total, axis=0))


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


@triton.jit
def rows_of(tile, rows, positions, ROWS: tl.constexpr):
    """The rows of a tile: which are there, and the image and position of each."""
    row = (tl.zeros([ROWS], dtype=tl.int64) + tile) * ROWS + tl.arange(0, ROWS)
    return row < rows, row // positions, row % positions


@triton.jit
def respond(
    z, y, norms, bias, partials, mean, parts, count, centre, variance, gamma, bn_eps,
    rho, alpha, beta, k, p, weight_norm, stretch, scale,
    rows, positions, groups, filters, step_batch, step_position, step_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, BIAS: tl.constexpr,
    NORMALISED: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """f = scale · h(stretch · n) · g(z/n), where NORMALISED γ·(f − centre)/√(variance + ε), plus bias, and its ReLU.

    Where the radius is measured by the batch's mean norm, the first program writes it.
    """
    group = tl.program_id(1).to(tl.int64)
    of_group = tl.arange(0, FILTERS).to(tl.int64)
    inside = of_group < filters
    at = group * filters + of_group
    m = mean_norm(partials, mean, parts, count, RADIUS, PARTS)
    if RADIUS == 2:
        if (tl.program_id(0) == 0) & (group == 0):
            tl.store(mean, m)
    of_h, of_g = operands(rho, alpha, beta, k, p, weight_norm, m, KINDS, at, inside)
    stretched, factor = settled(stretch, (KINDS >> 12) & 3, at, inside), settled(scale, (KINDS >> 14) & 3, at, inside)
    offset = tl.zeros([1, FILTERS], dtype=tl.float32)
    if BIAS:
        offset += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    if NORMALISED:
        rstd = 1.0 / tl.sqrt(tl.load(variance + at, mask=inside, other=1.0) + bn_eps)
        slope = (rstd * tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32))[None, :]
        offset -= slope * tl.load(centre + at, mask=inside, other=0.0)[None, :]
        factor = factor * slope
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        live, batch, position = rows_of(tile, rows, positions, ROWS)
        n = tl.load(norms + (batch * groups + group) * positions + position, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * step_batch + position * step_position)[:, None] + (at * step_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        h, _, _, _, _, _ = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, _, _, _ = G(c, of_g[0], of_g[1])
        value = h * g * factor + offset
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + place, value, mask=both)


@triton.jit
def respond_backward(
    dy, z, dz, norms, dnorms, mean, bias, centre, variance, gamma, bn_eps, totals, shares, step,
    rho, alpha, beta, k, p, weight_norm, stretch, scale,
    rows, positions, groups, filters, z_batch, z_position, z_filter, d_batch, d_position, d_filter,
    H: tl.constexpr, G: tl.constexpr, RADIUS: tl.constexpr, KINDS: tl.constexpr, WANTED: tl.constexpr,
    NORMALISED: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """dz, dn of the patch norms (without the mean's part), and for each wanted value a program's share of its gradient.

    Where NORMALISED, ∂L/∂f is γ·rstd·(d − Σd/N − f̂·Σ(d·f̂)/N) by the totals Σd and Σd·f̂, else d itself. KINDS has two bits
    for each value, and WANTED four: 0, or 1 + its place in `shares` (programs, values, filters).
    """
    group = tl.program_id(1).to(tl.int64)
    of_group = tl.arange(0, FILTERS).to(tl.int64)
    inside = of_group < filters
    at = group * filters + of_group
    m = mean_norm(mean, mean, 1, 1, RADIUS, 1)
    of_h, of_g = operands(rho, alpha, beta, k, p, weight_norm, m, KINDS, at, inside)
    stretched, scaled = settled(stretch, (KINDS >> 12) & 3, at, inside), settled(scale, (KINDS >> 14) & 3, at, inside)
    if NORMALISED:
        rstd = (1.0 / tl.sqrt(tl.load(variance + at, mask=inside, other=1.0) + bn_eps))[None, :]
        middle = tl.load(centre + at, mask=inside, other=0.0)[None, :]
        weight = tl.load(gamma + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        offset = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        plain = (tl.load(totals + at, mask=inside, other=0.0) / rows)[None, :]
        along = (tl.load(totals + groups * filters + at, mask=inside, other=0.0) / rows)[None, :]
    zero = tl.zeros([FILTERS], dtype=tl.float32)
    t_rho, t_alpha, t_beta, t_k, t_p, t_weight_norm, t_stretch, t_scale = zero, zero, zero, zero, zero, zero, zero, zero
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        live, batch, position = rows_of(tile, rows, positions, ROWS)
        at_norm = (batch * groups + group) * positions + position
        n = tl.load(norms + at_norm, mask=live, other=1.0)[:, None]
        both = live[:, None] & inside[None, :]
        place = (batch * z_batch + position * z_position)[:, None] + (at * z_filter)[None, :]
        c = tl.load(z + place, mask=both, other=0.0).to(tl.float32) / n
        from_there = (batch * d_batch + position * d_position)[:, None] + (at * d_filter)[None, :]
        d = tl.load(dy + from_there, mask=both, other=0.0).to(tl.float32)
        h, h_n, h_rho, h_alpha, h_beta, h_w = H(n * stretched, of_h[0], of_h[1], of_h[2], of_h[3])
        g, g_c, g_k, g_p = G(c, of_g[0], of_g[1])
        df = d
        if NORMALISED:
            hat = (h * g * scaled - middle) * rstd
            if RELU:
                d = tl.where(hat * weight + offset > 0.0, d, 0.0)
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


@triton.jit
def spread_norms(
    dnorms, norms, dmean, spread, count, out_count, depth, height, width, out_depth, out_height, out_width,
    step0, step1, step2, pad0, pad1, pad2, gap0, gap1, gap2,
    THROUGH_MEAN: tl.constexpr, TAPS0: tl.constexpr, TAPS1: tl.constexpr, TAPS2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """spread = Σ (dn + dm/count) / n over the windows that see each position of the input."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    positions = depth * height * width
    image, place = at // positions, at % positions
    d = place // (height * width) + pad0
    h = place // width % height + pad1
    w = place % width + pad2
    share = 0.0
    if THROUGH_MEAN:
        share = tl.load(dmean).to(tl.float32) / out_count
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(TAPS0):
        for j in tl.static_range(TAPS1):
            for k in tl.static_range(TAPS2):
                z, y, x = d - i * gap0, h - j * gap1, w - k * gap2
                seen = live & (z >= 0) & (y >= 0) & (x >= 0)
                seen = seen & (z % step0 == 0) & (y % step1 == 0) & (x % step2 == 0)
                z, y, x = z // step0, y // step1, x // step2
                seen = seen & (z < out_depth) & (y < out_height) & (x < out_width)
                window = ((image * out_depth + z) * out_height + y) * out_width + x
                dn = tl.load(dnorms + window, mask=seen, other=0.0) + share
                total += tl.where(seen, dn / tl.load(norms + window, mask=seen, other=1.0), 0.0)
    tl.store(spread + at, total, mask=live)


@triton.jit
def add_norm_gradient(
    dx, x, spread, rows, positions, groups, channels, d_batch, d_position, d_channel, x_batch, x_position, x_channel,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dx += x · spread."""
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    batch, position = row // positions, row % positions
    e = tl.load(spread + (batch * groups + group) * positions + position, mask=live, other=0.0)[:, None]
    for first in range(0, channels, CHANNELS):
        of_group = first + tl.arange(0, CHANNELS).to(tl.int64)
        both = live[:, None] & (of_group < channels)[None, :]
        at = group * channels + of_group
        there = dx + (batch * d_batch + position * d_position)[:, None] + (at * d_channel)[None, :]
        value = tl.load(
            x + (batch * x_batch + position * x_position)[:, None] + (at * x_channel)[None, :], mask=both, other=0.0
        )
        tl.store(there, tl.load(there, mask=both, other=0.0).to(tl.float32) + value.to(tl.float32) * e, mask=both)


@triton.jit
def add_up(sums, totals, programs, entries, PROGRAMS: tl.constexpr, ENTRIES: tl.constexpr):
    """totals[entry] = Σ sums[program, entry] over all programs, in a fixed order."""
    program = tl.arange(0, PROGRAMS).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    both = (program < programs)[:, None] & (at < entries)[None, :]
    own = tl.load(sums + (program * entries)[:, None] + at[None, :], mask=both, other=0.0)
    tl.store(totals + at, tl.sum(own, axis=0), mask=at < entries)
