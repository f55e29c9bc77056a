"""Every h of `dcnets.magnitude` for the GPU: its value and its slopes, in float32.

A twin takes (n, rho, alpha, beta, weight_norm, FAST) and returns (h, ∂h/∂n, ∂h/∂ρ, ∂h/∂α, ∂h/∂β, ∂h/∂‖w‖), 0.0 for what it
does not depend on; slopes that nobody asks for are not computed. FAST allows an error of 2⁻¹¹, for tensors of 16 bits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TWINS: dict[str, Any] = {}
"""The twins by the names of their magnitudes."""


def twin(function: Any) -> Any:
    """Register a compiled function under its name."""
    TWINS[function.fn.__name__] = function
    return function


@triton.jit
def quick_tanh(u):
    """tanh(u) by the GPU's own instruction, within 2⁻¹¹."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1)


@twin
@triton.jit
def sphere(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = 1."""
    return 1.0, 0.0, 0.0, 0.0, 0.0, 0.0


@twin
@triton.jit
def ball(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = min(n, ρ)/ρ."""
    inverse = 1.0 / rho
    h_n = tl.where(n < rho, inverse, 0.0)
    return tl.minimum(n, rho) * inverse, h_n, -h_n * n * inverse, 0.0, 0.0, 0.0


@twin
@triton.jit
def tanh(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = tanh(n/ρ); for small n/ρ by its series, where 1 − e^−2u would cancel."""
    inverse = 1.0 / rho
    u = n * inverse
    if FAST:
        h = quick_tanh(u)
        h_n = (1.0 - h * h) * inverse
    else:
        e = tl.exp(-2.0 * u)
        s = u * u
        series = u * (1.0 - s * (1.0 / 3.0 - s * (2.0 / 15.0 - s * (17.0 / 315.0))))
        h = tl.where(u < 0.15, series, (1.0 - e) / (1.0 + e))
        h_n = 4.0 * e / ((1.0 + e) * (1.0 + e)) * inverse
    return h, h_n, -h_n * u, 0.0, 0.0, 0.0


@twin
@triton.jit
def linear(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = n."""
    return n, 1.0, 0.0, 0.0, 0.0, 0.0


@twin
@triton.jit
def segmented(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = αn inside ρ, and β(n − ρ) + αρ outside."""
    lesser = tl.minimum(n, rho)
    h_n = tl.where(n < rho, alpha, beta)
    return beta * n + (alpha - beta) * lesser, h_n, alpha - h_n, lesser, n - lesser, 0.0


@triton.jit
def log1p(n):
    """log(1 + n) with all its digits for small n: what 1 + n rounds off is made good."""
    u = 1.0 + n
    return tl.where(u == 1.0, n, tl.log(u) * n / tl.where(u == 1.0, 1.0, u - 1.0))


@twin
@triton.jit
def log(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = log(1 + n)."""
    return log1p(n), 1.0 / (1.0 + n), 0.0, 0.0, 0.0, 0.0


@twin
@triton.jit
def mixed(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = αn + β log(1 + n)."""
    logarithm = log1p(n)
    return alpha * n + beta * logarithm, alpha + beta / (1.0 + n), 0.0, n, logarithm, 0.0


@twin
@triton.jit
def inner_product(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = ‖w‖·n."""
    return weight_norm * n, weight_norm, 0.0, 0.0, 0.0, n
