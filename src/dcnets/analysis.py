"""What can be said of an operator without data: its bound and its Lipschitz constant, found on fine grids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dcnets.operator import Operator

GRID: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}


def norm_grid(least: float = 1e-8) -> Tensor:
    """Norms from `least` to 1e16, twenty to the decade."""
    return torch.logspace(math.log10(least), 16, round(20 * (16 - math.log10(least))) + 1, **GRID)


def bound(operator: Operator) -> float | None:
    """Sup |f| over all w and x; infinite where f is unbounded, None where h or g is a learned module."""
    if operator.h.is_module or operator.g.is_module:
        return None
    if operator.weighting == "linear":
        return math.inf
    n = norm_grid()
    h, _ = magnitudes(operator, n, rho=1.0, weight_norm=1.0)
    g, _ = angles(operator)
    if h[-1] > h[-2] * (1 + 1e-6):
        return math.inf
    factor = magnitude_of_weight(operator, n[-1].item(), rho=1.0)
    return round(factor * h.max().item() * g.abs().max().item(), 6)


def lipschitz(operator: Operator, radius: float, weight_norm: float) -> float | None:
    """The largest ‖∂f/∂x‖ over all norms from √ε on and all angles; m counts as a constant, as it is in evaluation.

    Along x the gradient is h′·g, across it (h/‖x‖)·∂g/∂θ. ε acts as one more coordinate of x that is always √ε, so it
    bounds the norm from below and changes nothing else.
    """
    if operator.h.is_module or operator.g.is_module:
        return None
    n = norm_grid(math.sqrt(operator.eps))
    h, h_n = magnitudes(operator, n, radius, weight_norm)
    g, g_theta = angles(operator)
    steepest = torch.hypot(h_n[:, None] * g, (h / n)[:, None] * g_theta).amax(1)
    if steepest[-1] > steepest[-2] * (1 + 1e-3):
        return math.inf
    return magnitude_of_weight(operator, weight_norm, radius) * steepest.max().item()


def magnitudes(operator: Operator, n: Tensor, rho: float, weight_norm: float) -> tuple[Tensor, Tensor]:
    """|h| and |∂h/∂n| at the norms n, with α where h is not weighted separately, without a weight's factor."""
    stretch = weight_norm if operator.weighting == "product" else 1.0
    separate = operator.weighting == "separate"
    values = {
        "rho": rho,
        "alpha": 1.0 if separate else operator.alpha,
        "beta": operator.beta or 0.0,
        "weight_norm": weight_norm,
    }
    grown = n.clone().requires_grad_()
    with torch.enable_grad():
        h = operator.h(grown * stretch, values) + 0 * grown  # a constant h has a slope too: zero
        if not separate and "alpha" not in operator.h.parameters:
            h = h * operator.alpha
        (h_n,) = torch.autograd.grad(h.sum(), grown)
    return h.detach().abs(), h_n.abs()


def magnitude_of_weight(operator: Operator, weight_norm: float, rho: float) -> float:
    """What a weighting multiplies h(‖x‖) by: ‖w‖ where it is linear, α·h₁(‖w‖; ρ) where it is separate."""
    if operator.weighting == "linear":
        return weight_norm
    if operator.weighting == "separate":
        h, _ = magnitudes(operator, torch.tensor([weight_norm], **GRID), rho, weight_norm)
        return abs(operator.alpha) * h.item()
    return 1.0


def angles(operator: Operator) -> tuple[Tensor, Tensor]:
    """g and ∂g/∂θ on a grid of angles; its ends stop short of 0 and π, where the arc sine's slope is capped."""
    theta = torch.linspace(1e-6, math.pi - 1e-6, 4001, **GRID, requires_grad=True)
    with torch.enable_grad():
        g = operator.g(theta.cos(), {name: getattr(operator, name) for name in operator.g.parameters})
        (g_theta,) = torch.autograd.grad(g.sum(), theta)
    return g.detach(), g_theta
