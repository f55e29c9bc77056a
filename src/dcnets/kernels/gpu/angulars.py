"""Every g of `dcnets.angular` for the GPU: its value and its slopes, in float32.

A twin takes (c, k, p) and returns (g, ∂g/∂c, ∂g/∂k, ∂g/∂p).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TWINS: dict[str, Any] = {}
"""The twins by the names of their angular functions."""
END = tl.constexpr(1.0 - 2.0**-23)
"""How near to ±1 the arc sine goes: float32's rounding unit, as in `dcnets.angular`."""
FLOOR = tl.constexpr(1e-6)
"""|c| below which `power_cosine` is a straight line."""


def twin(function: Any) -> Any:
    """Register a compiled function under its name."""
    TWINS[function.fn.__name__] = function
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
def cosine(c, k, p):
    """g = c."""
    none = 0.0 * c
    return c, none + 1.0, none, none


@twin
@triton.jit
def square_cosine(c, k, p):
    """g = c·|c|."""
    none = 0.0 * c
    size = tl.abs(c)
    return c * size, 2.0 * size, none, none


@twin
@triton.jit
def relu_cosine(c, k, p):
    """g = max(0, c)."""
    none = 0.0 * c
    return tl.maximum(c, 0.0), tl.where(c > 0.0, 1.0 + none, none), none, none


@twin
@triton.jit
def linear(c, k, p):
    """g = (2/π)·asin(c)."""
    none = 0.0 * c
    angle, slope = arc(c)
    return 0.6366197723675814 * angle, 0.6366197723675814 * slope, none, none


@twin
@triton.jit
def sigmoid(c, k, p):
    """g = t/T, t = tanh(asin(c)/2k), T = tanh(π/4k)."""
    none = 0.0 * c
    angle, slope = arc(c)
    low = tl.exp(-1.5707963267948966 / k + none)
    top = (1.0 - low) / (1.0 + low)
    t = 2.0 / (1.0 + tl.exp(-angle / k)) - 1.0
    rise = 1.0 - t * t
    g = t / top
    g_k = (1.5707963267948966 * (1.0 - top * top) * g - rise * angle) / (2.0 * k * k * top)
    return g, rise * slope / (2.0 * k * top), g_k, none


@twin
@triton.jit
def power_cosine(c, k, p):
    """g = c·|c|^(p−1), a straight line below FLOOR."""
    none = 0.0 * c
    size = tl.maximum(tl.abs(c), FLOOR)
    logarithm = tl.log(size)
    power = tl.exp((p - 1.0) * logarithm)
    g = c * power
    return g, tl.where(tl.abs(c) >= FLOOR, p + none, 1.0 + none) * power, none, g * logarithm
