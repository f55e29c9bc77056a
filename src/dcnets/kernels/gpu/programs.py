"""The Triton programs of a layer: filters, patch norms, the response and its gradients.

They compute in float32, address in int64 and add up in a fixed order. A tile has ROWS rows (a row is a position of an image)
and WIDTH filters, a chunk of a group's; CHUNKS of them are a group. FLAT says that there is one group and that rows follow
each other at the same distance in every tensor, WHOLE that tiles end where rows and filters do, so that no mask is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dcnets.kernels.gpu.angulars import angular
from dcnets.kernels.gpu.magnitudes import magnitude


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


@triton.jit
def normalise_filter(filter, weight, unit, size, eps, BLOCK: tl.constexpr):
    """ŵ = w/√(Σw² + ε) of one filter, whose elements follow each other in memory."""
    start = filter.to(tl.int64) * size
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        w = tl.load(weight + start + at, mask=at < size, other=0.0).to(tl.float32)
        squares += w * w
    inverse = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) + real(eps))
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        w = tl.load(weight + start + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(unit + start + at, w * inverse, mask=at < size)


@triton.jit
def filter_backward(filter, dunit, weight, dweight, size, eps, BLOCK: tl.constexpr):
    """dw = dŵ/‖w‖ − w·⟨w, dŵ⟩/‖w‖³ of one filter."""
    start = filter.to(tl.int64) * size
    squares, products = tl.zeros([BLOCK], dtype=tl.float32), tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        w = tl.load(weight + start + at, mask=at < size, other=0.0).to(tl.float32)
        squares += w * w
        products += w * tl.load(dunit + start + at, mask=at < size, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) + real(eps))
    along = tl.sum(products, axis=0) * inverse * inverse
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        w = tl.load(weight + start + at, mask=at < size, other=0.0).to(tl.float32)
        d = tl.load(dunit + start + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(dweight + start + at, (d - w * along) * inverse, mask=at < size)


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
    total = tl.zeros([ROWS, CHANNELS], dtype=tl.float32)
    for first in range(0, channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS).to(tl.int64)
        inside = live[:, None] & (channel < channels)[None, :]
        at = start[:, None] + ((group * channels + channel) * step_channel)[None, :]
        value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + (batch * groups + group) * positions + position, tl.sum(total, axis=1), mask=live)


@triton.jit
def prepare(
    weight, unit, sums, norms, partials, size, parts, count, eps, depth, height, width, out_depth, out_height, out_width,
    step0, step1, step2, pad0, pad1, pad2, gap0, gap1, gap2,
    TAPS0: tl.constexpr, TAPS1: tl.constexpr, TAPS2: tl.constexpr, BLOCK: tl.constexpr, FILTER: tl.constexpr,
):  # fmt: skip
    """What a layer needs before its convolution and passes: `parts` programs make patch norms, the others unit filters.

    norms = √(Σ sums over each window + ε); partials: the sum of the norms that each program made.
    """
    if tl.program_id(0) >= parts:
        normalise_filter(tl.program_id(0) - parts, weight, unit, size, eps, FILTER)
    else:
        total = tl.zeros([BLOCK], dtype=tl.float32)
        out_positions = out_depth * out_height * out_width
        for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), parts):
            at = (tl.zeros([BLOCK], dtype=tl.int64) + block) * BLOCK + tl.arange(0, BLOCK)
            live = at < count
            image, place = at // out_positions, (at % out_positions).to(tl.int32)
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
            n = tl.sqrt_rn(s + real(eps))
            tl.store(norms + at, n, mask=live)
            total += tl.where(live, n, 0.0)
        tl.store(partials + tl.program_id(0), tl.sum(total, axis=0))


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
def mean_gradient(totals, rho, filters, floor, KIND: tl.constexpr, RAW: tl.constexpr, at, inside):
    """dm = Σ ρ·d over all filters, d being the gradient of ρ·m."""
    radius = tl.reshape(settled(rho, KIND, at, inside) + tl.zeros([1, at.shape[0]], dtype=tl.float32), [at.shape[0]])
    if RAW:
        radius = radius * radius + real(floor)
    return tl.sum(tl.where(inside, tl.load(totals + at, mask=inside, other=0.0) * radius, 0.0), axis=0)


@triton.jit
def radius_gradient(
    totals, rho, mean, dradius, dmean, filters, floor,
    KIND: tl.constexpr, RAW: tl.constexpr, RELATIVE: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """From the gradients of ρ·m: dm, and the gradients of ρ, or of r where ρ = r² + floor."""
    at = tl.arange(0, FILTERS)
    inside = at < filters
    d = tl.load(totals + at, mask=inside, other=0.0)
    if RELATIVE:
        tl.store(dmean, mean_gradient(totals, rho, filters, floor, KIND, RAW, at, inside))
        d = d * tl.load(mean).to(tl.float32)
    if RAW:
        own = settled(rho, KIND, at, inside) + tl.zeros([1, FILTERS], dtype=tl.float32)
        d = d * 2.0 * tl.reshape(own, [FILTERS])
    tl.store(dradius + at, d, mask=inside)


@triton.jit
def finish(
    dnorms, norms, dsums, dunit, weight, dweight, totals, rho, mean, dradius, dmean,
    blocks, size, filters, eps, floor, count, out_count, depth, height, width, out_depth, out_height, out_width,
    step0, step1, step2, pad0, pad1, pad2, gap0, gap1, gap2,
    KIND: tl.constexpr, RAW: tl.constexpr, RADIUS: tl.constexpr, THROUGH_MEAN: tl.constexpr, CHUNKS: tl.constexpr,
    FILTERS: tl.constexpr, TAPS0: tl.constexpr, TAPS1: tl.constexpr, TAPS2: tl.constexpr, BLOCK: tl.constexpr,
    FILTER: tl.constexpr,
):  # fmt: skip
    """What is left after the passes and the convolution's gradients: one program for the radius, `blocks` for the norms, and
    the others for filters.

    RADIUS: 0 none is wanted, 1 absolute, 2 relative. dsums = ½·Σ (dn + dm/count) / n over the windows that see each position
    of the input; dn comes in CHUNKS parts.
    """
    if tl.program_id(0) == 0:
        if RADIUS > 0:
            radius_gradient(totals, rho, mean, dradius, dmean, filters, floor, KIND, RAW, RADIUS == 2, FILTERS)
    elif tl.program_id(0) > blocks:
        filter_backward(tl.program_id(0) - 1 - blocks, dunit, weight, dweight, size, eps, FILTER)
    else:
        at = (tl.program_id(0) - 1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        live = at < count
        positions = depth * height * width
        image, place = at // positions, (at % positions).to(tl.int32)
        d = place // (height * width) + pad0
        h = place // width % height + pad1
        w = place % width + pad2
        share = 0.0
        if THROUGH_MEAN:
            column = tl.arange(0, FILTERS)
            share = mean_gradient(totals, rho, filters, floor, KIND, RAW, column, column < filters) / out_count
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
                    dn = tl.zeros([BLOCK], dtype=tl.float32) + share
                    for chunk in tl.static_range(CHUNKS):
                        dn += tl.load(dnorms + chunk * out_count + window, mask=seen, other=0.0)
                    total += tl.where(seen, dn / tl.load(norms + window, mask=seen, other=1.0), 0.0)
        tl.store(dsums + at, 0.5 * total, mask=live)


@triton.jit
def add_norm_gradient(
    dx, x, dsums, rows, positions, groups, channels, d_batch, d_position, d_channel, x_batch, x_position, x_channel,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dx += 2 · x · dsums."""
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    batch, position = row // positions, row % positions
    e = 2.0 * tl.load(dsums + (batch * groups + group) * positions + position, mask=live, other=0.0)[:, None]
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
