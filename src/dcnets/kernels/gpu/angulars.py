"""Every g of `dcnets.angular` for the GPU: its value and its slopes, in float32.

A twin g_<name> takes (c, k, p) and returns (g, ∂g/∂c, ∂g/∂k, ∂g/∂p), 0.0 for what it does not depend on. A new one also
has its line in `angular`; `dcnets.kernels.gpu.magnitudes` says why.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from dcnets.kernels.gpu.magnitudes import exact_tanh

TWINS: dict[str, int] = {}
"""The numbers of the twins by the names of their angular functions."""
END = tl.constexpr(1.0 - 2.0**-23)
"""How near to ±1 the arc sine goes: float32's rounding unit, as in `dcnets.angular`."""
FLOOR = tl.constexpr(1e-6)
"""|c| below which `power_cosine` is a straight line."""


def twin(function: Any) -> Any:
    """Number a compiled function, in the order of this file."""
    TWINS[function.fn.__name__.removeprefix("g_")] = len(TWINS)
    return function


@triton.jit
def arc(c):
    """asin(c), held off ±1, and its slope, which is zero there.

    A polynomial up to 1/2; above, asin(a) = π/2 − 2·asin(√((1 − a)/2)), which keeps all digits near 1.
    """
    rest = 1.0 - c * c
    slope = tl.where(rest > 1.7881393e-7, tl.rsqrt(tl.maximum(rest, 1e-10)), 0.0)
    a = tl.minimum(tl.abs(c), END)
    far = a > 0.5
    t = tl.where(far, tl.sqrt(0.5 * (1.0 - a)), a)
    s = t * t
    tail = ((4.2163199048e-2 * s + 2.4181311049e-2) * s + 4.5470025998e-2) * s + 7.4953002686e-2
    small = t + t * s * (tail * s + 1.6666752422e-1)
    angle = tl.where(far, 1.5707963267948966 - 2.0 * small, small)
    return tl.where(c < 0.0, -angle, angle), slope


@twin
@triton.jit
def g_cosine(c, k, p):
    """g = c."""
    return c, 1.0, 0.0, 0.0


@twin
@triton.jit
def g_square_cosine(c, k, p):
    """g = c·|c|."""
    size = tl.abs(c)
    return c * size, 2.0 * size, 0.0, 0.0


@twin
@triton.jit
def g_relu_cosine(c, k, p):
    """g = max(0, c)."""
    return tl.maximum(c, 0.0), tl.where(c > 0.0, 1.0, 0.0), 0.0, 0.0


@twin
@triton.jit
def g_linear(c, k, p):
    """g = (2/π)·asin(c)."""
    angle, slope = arc(c)
    return 0.6366197723675814 * angle, 0.6366197723675814 * slope, 0.0, 0.0


@twin
@triton.jit
def g_sigmoid(c, k, p):
    """g = t/T, t = tanh(asin(c)/2k), T = tanh(π/4k)."""
    angle, slope = arc(c)
    inverse = 1.0 / k + tl.zeros([1, 1], dtype=tl.float32)
    inverse_top = 1.0 / exact_tanh(0.7853981633974483 * inverse, tl.exp(-1.5707963267948966 * inverse))
    a = tl.abs(angle) * inverse
    e = tl.exp(-a)  # so that 1 − t² = 4e/(1 + e)² is exact where t is all but ±1
    whole = 1.0 + e
    t = exact_tanh(0.5 * a, e)
    t = tl.where(angle < 0, -t, t)
    rise = 4.0 * e / (whole * whole)
    g = t * inverse_top
    half = 0.5 * inverse * inverse_top
    g_k = (1.5707963267948966 * (1.0 - 1.0 / (inverse_top * inverse_top)) * g - rise * angle) * (half * inverse)
    return g, rise * slope * half, g_k, 0.0


@twin
@triton.jit
def g_power_cosine(c, k, p):
    """g = c·|c|^(p−1), a straight line below FLOOR."""
    size = tl.maximum(tl.abs(c), FLOOR)
    logarithm = tl.log(size)
    power = tl.exp((p - 1.0) * logarithm)
    g = c * power
    return g, tl.where(tl.abs(c) >= FLOOR, p, 1.0) * power, 0.0, g * logarithm


@triton.jit
def angular(c, k, p, G: tl.constexpr):
    """The twin of a number."""
    if G == 0:
        return g_cosine(c, k, p)
    elif G == 1:
        return g_square_cosine(c, k, p)
    elif G == 2:
        return g_relu_cosine(c, k, p)
    elif G == 3:
        return g_linear(c, k, p)
    elif G == 4:
        return g_sigmoid(c, k, p)
    else:
        return g_power_cosine(c, k, p)
