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
    """sup |f| over all w and x, at radius 1; infinite where f is unbounded, None where h or g is a learned module."""
    if operator.h.is_module or operator.g.is_module:
        return None
    if operator.weighting == "linear":
        return math.inf
    n = norm_grid()
    h, _ = magnitudes(operator, n, rho=1.0, weight_norm=1.0)
    g, _ = angles(operator, torch.linspace(-1, 1, 4001, **GRID))
    if h[-1] > h[-2] * (1 + 1e-6):
        return math.inf
    factor = magnitude_of_weight(operator, n[-1].item(), rho=1.0)
    return float(f"{factor * h.max().item() * g.abs().max().item():.7g}")  # the grid is no finer


def lipschitz(operator: Operator, radius: float, weight_norm: float) -> float | None:
    """The largest ‖∂f/∂x‖ over all lengths of x and all angles φ to w; m counts as a constant, as it is in evaluation.

    With r = ‖x‖, n = √(r² + ε) and c = (r/n)·cos φ, the gradient h′·g·x/n + h·g′·(ŵ − c·x/n)/n has one part along x and
    one across it.
    """
    if operator.h.is_module or operator.g.is_module:
        return None

    def steepness(r: Tensor, phi: Tensor) -> Tensor:
        r, phi = r[:, None], phi[None]
        n = (r * r + operator.eps).sqrt()
        h, h_n = magnitudes(operator, n, radius, weight_norm)
        g, g_c = angles(operator, r / n * phi.cos())
        along = h_n * g * r / n + h * g_c * phi.cos() * (operator.eps / n**3)
        return torch.hypot(along, h * g_c * phi.sin() / n)

    r, phi = norm_grid(), torch.linspace(1e-6, math.pi - 1e-6, 1001, **GRID)
    found = steepness(r, phi)
    last, before = found[-1].max(), found[-2].max()
    if last > before * (1 + 1e-3):
        return math.inf
    for _ in range(4):  # zoom in on the steepest place
        row, column = divmod(int(found.argmax()), len(phi))
        r = torch.linspace(r[max(row - 1, 0)].item(), r[min(row + 1, len(r) - 1)].item(), 101, **GRID)
        phi = torch.linspace(phi[max(column - 1, 0)].item(), phi[min(column + 1, len(phi) - 1)].item(), 101, **GRID)
        found = steepness(r, phi)
    return magnitude_of_weight(operator, weight_norm, radius) * found.max().item()


def magnitudes(operator: Operator, n: Tensor, rho: float, weight_norm: float) -> tuple[Tensor, Tensor]:
    """|h| and ∂|h|/∂n at the norms n, with α where h is not weighted separately, without a weight's factor."""
    stretch = weight_norm if operator.weighting == "product" else 1.0
    separate = operator.weighting == "separate"
    alpha = 1.0 if separate else operator.alpha
    values = {"rho": rho, "alpha": alpha, "beta": operator.beta or 0.0, "weight_norm": weight_norm}
    grown = n.clone().requires_grad_()
    with torch.enable_grad():
        h = operator.h(grown * stretch, values) + 0 * grown  # a constant h has a slope too: zero
        if "alpha" not in operator.h.parameters:
            h = h * alpha
        (h_n,) = torch.autograd.grad(h.abs().sum(), grown)
    return h.detach().abs(), h_n


def magnitude_of_weight(operator: Operator, weight_norm: float, rho: float) -> float:
    """What a weighting multiplies h(‖x‖) by: ‖w‖ where it is linear, α·h₁(‖w‖; ρ) where it is separate."""
    if operator.weighting == "linear":
        return weight_norm
    if operator.weighting == "separate":
        h, _ = magnitudes(operator, torch.tensor([weight_norm], **GRID), rho, weight_norm)
        return abs(operator.alpha) * h.item()
    return 1.0


def angles(operator: Operator, c: Tensor) -> tuple[Tensor, Tensor]:
    """g and ∂g/∂c at the cosines c."""
    c = c.clone().requires_grad_()
    with torch.enable_grad():
        g = operator.g(c, {name: getattr(operator, name) for name in operator.g.parameters})
        (g_c,) = torch.autograd.grad(g.sum(), c)
    return g.detach(), g_c
