"""The Triton programs before a layer's convolution and after its gradients: patch norms, unit filters, the radius."""

from __future__ import annotations

import triton
import triton.language as tl

from dcnets.kernels.gpu.pieces import real, rows_of, settled


@triton.jit
def square_sums(
    x, sums, rows, positions, groups, channels, step_batch, step_position, step_channel,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """sums[b, g, position] = Σ x² over the channels of a group."""
    group = tl.program_id(1).to(tl.int64)
    live, batch, position, place = rows_of(tl.program_id(0), rows, positions, group, groups, ROWS, False)
    start = x + batch * step_batch + position * step_position
    total = tl.zeros([ROWS, CHANNELS], dtype=tl.float32)
    for first in range(0, channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS).to(tl.int64)
        inside = live[:, None] & (channel < channels)[None, :]
        at = start[:, None] + ((group * channels + channel) * step_channel)[None, :]
        value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + place, tl.sum(total, axis=1), mask=live)


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
    live, batch, position, place = rows_of(tl.program_id(0), rows, positions, group, groups, ROWS, False)
    e = 2.0 * tl.load(dsums + place, mask=live, other=0.0)[:, None]
    for first in range(0, channels, CHANNELS):
        of_group = first + tl.arange(0, CHANNELS).to(tl.int64)
        both = live[:, None] & (of_group < channels)[None, :]
        at = group * channels + of_group
        there = dx + (batch * d_batch + position * d_position)[:, None] + (at * d_channel)[None, :]
        value = tl.load(
            x + (batch * x_batch + position * x_position)[:, None] + (at * x_channel)[None, :], mask=both, other=0.0
        )
        tl.store(there, tl.load(there, mask=both, other=0.0).to(tl.float32) + value.to(tl.float32) * e, mask=both)
