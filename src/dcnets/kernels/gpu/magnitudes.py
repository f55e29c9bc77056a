"""Every h of `dcnets.magnitude` for the GPU: its value and its slopes, in float32.

A twin h_<name> takes (n, rho, alpha, beta, weight_norm, FAST) and returns (h, ∂h/∂n, ∂h/∂ρ, ∂h/∂α, ∂h/∂β, ∂h/∂‖w‖), 0.0 for
what it does not depend on; slopes that nobody asks for are not computed. FAST allows an error of 2⁻¹¹, for tensors of 16
bits. A new one also has its line in `magnitude`: torch.compile writes a program's constants into a file, where a number can
stand and a function cannot; and as it writes all functions into that file, no two have the same name.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TWINS: dict[str, int] = {}
"""The numbers of the twins by the names of their magnitudes."""


def twin(function: Any) -> Any:
    """Number a compiled function, in the order of this file."""
    TWINS[function.fn.__name__.removeprefix("h_")] = len(TWINS)
    return function


@triton.jit
def quick_tanh(u):
    """tanh(u) by the GPU's own instruction, within 2⁻¹¹."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def exact_tanh(u, e):
    """tanh(u) for u ≥ 0 and e = e^−2u; for small u by its series, where 1 − e would cancel."""
    s = u * u
    series = u * (1.0 - s * (1.0 / 3.0 - s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    return tl.where(u < 0.15, series, (1.0 - e) / (1.0 + e))


@twin
@triton.jit
def h_sphere(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = 1."""
    return 1.0, 0.0, 0.0, 0.0, 0.0, 0.0


@twin
@triton.jit
def h_ball(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = min(n, ρ)/ρ."""
    inverse = 1.0 / rho
    h_n = tl.where(n < rho, inverse, 0.0)
    return tl.minimum(n, rho) * inverse, h_n, -h_n * n * inverse, 0.0, 0.0, 0.0


@twin
@triton.jit
def h_tanh(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = tanh(n/ρ)."""
    inverse = 1.0 / rho
    u = n * inverse
    if FAST:
        h = quick_tanh(u)
        h_n = (1.0 - h * h) * inverse
    else:
        e = tl.exp(-2.0 * u)
        h = exact_tanh(u, e)
        h_n = 4.0 * e / ((1.0 + e) * (1.0 + e)) * inverse
    return h, h_n, -h_n * u, 0.0, 0.0, 0.0


@twin
@triton.jit
def h_linear(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = n."""
    return n, 1.0, 0.0, 0.0, 0.0, 0.0


@twin
@triton.jit
def h_segmented(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
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
def h_log(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = log(1 + n)."""
    return log1p(n), 1.0 / (1.0 + n), 0.0, 0.0, 0.0, 0.0


@twin
@triton.jit
def h_mixed(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = αn + β log(1 + n)."""
    logarithm = log1p(n)
    return alpha * n + beta * logarithm, alpha + beta / (1.0 + n), 0.0, n, logarithm, 0.0


@twin
@triton.jit
def h_inner_product(n, rho, alpha, beta, weight_norm, FAST: tl.constexpr):
    """h = ‖w‖·n."""
    return weight_norm * n, weight_norm, 0.0, 0.0, 0.0, n


@triton.jit
def magnitude(n, rho, alpha, beta, weight_norm, H: tl.constexpr, FAST: tl.constexpr):
    """The twin of a number."""
    if H == 0:
        return h_sphere(n, rho, alpha, beta, weight_norm, FAST)
    elif H == 1:
        return h_ball(n, rho, alpha, beta, weight_norm, FAST)
    elif H == 2:
        return h_tanh(n, rho, alpha, beta, weight_norm, FAST)
    elif H == 3:
        return h_linear(n, rho, alpha, beta, weight_norm, FAST)
    elif H == 4:
        return h_segmented(n, rho, alpha, beta, weight_norm, FAST)
    elif H == 5:
        return h_log(n, rho, alpha, beta, weight_norm, FAST)
    elif H == 6:
        return h_mixed(n, rho, alpha, beta, weight_norm, FAST)
    else:
        return h_inner_product(n, rho, alpha, beta, weight_norm, FAST)
