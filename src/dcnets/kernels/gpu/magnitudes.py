"""Every h of `dcnets.magnitude` for the GPU: its value and its slopes, in float32.

A twin takes (n, rho, alpha, beta, weight_norm) and returns (h, ∂h/∂n, ∂h/∂ρ, ∂h/∂α, ∂h/∂β, ∂h/∂‖w‖); what it does not depend
on has the slope 0·n, which the compiler removes where nobody asks for it.
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


@twin
@triton.jit
def sphere(n, rho, alpha, beta, weight_norm):
    """h = 1."""
    none = 0.0 * n
    return none + 1.0, none, none, none, none, none


@twin
@triton.jit
def ball(n, rho, alpha, beta, weight_norm):
    """h = min(n, ρ)/ρ."""
    none = 0.0 * n
    h_n = tl.where(n < rho, 1.0 / rho, 0.0)
    return tl.minimum(n, rho) / rho, h_n, -h_n * n / rho, none, none, none


@twin
@triton.jit
def tanh(n, rho, alpha, beta, weight_norm):
    """h = tanh(n/ρ); for small n/ρ by its series, where 1 − e^−2u would cancel."""
    none = 0.0 * n
    u = n / rho
    e = tl.exp(-2.0 * u)
    s = u * u
    series = u * (1.0 - s * (1.0 / 3.0 - s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    h = tl.where(u < 0.15, series, (1.0 - e) / (1.0 + e))
    h_n = 4.0 * e / ((1.0 + e) * (1.0 + e)) / rho
    return h, h_n, -h_n * u, none, none, none


@twin
@triton.jit
def linear(n, rho, alpha, beta, weight_norm):
    """h = n."""
    none = 0.0 * n
    return n + none, none + 1.0, none, none, none, none


@twin
@triton.jit
def segmented(n, rho, alpha, beta, weight_norm):
    """h = αn inside ρ, and β(n − ρ) + αρ outside."""
    none = 0.0 * n
    lesser = tl.minimum(n, rho)
    h_n = tl.where(n < rho, alpha + none, beta + none)
    return beta * n + (alpha - beta) * lesser, h_n, alpha - h_n, lesser, n - lesser, none


@triton.jit
def log1p(n):
    """log(1 + n) with all its digits for small n: what 1 + n rounds off is made good."""
    u = 1.0 + n
    return tl.where(u == 1.0, n, tl.log(u) * n / tl.where(u == 1.0, 1.0, u - 1.0))


@twin
@triton.jit
def log(n, rho, alpha, beta, weight_norm):
    """h = log(1 + n)."""
    none = 0.0 * n
    return log1p(n), 1.0 / (1.0 + n), none, none, none, none


@twin
@triton.jit
def mixed(n, rho, alpha, beta, weight_norm):
    """h = αn + β log(1 + n)."""
    none = 0.0 * n
    logarithm = log1p(n)
    return alpha * n + beta * logarithm, alpha + beta / (1.0 + n), none, n + none, logarithm, none


@twin
@triton.jit
def inner_product(n, rho, alpha, beta, weight_norm):
    """h = ‖w‖·n."""
    none = 0.0 * n
    return weight_norm * n, weight_norm + none, none, none, none, n + none
