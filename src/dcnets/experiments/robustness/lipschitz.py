"""How steep a network is near its images: empirical local Lipschitz constants, and the slope of its margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import Aim, under_attack
from dcnets.attacks.batches import batches
from dcnets.attacks.checks import checked_amount, checked_eps, device_of
from dcnets.attacks.gradients import ascend
from dcnets.attacks.norms import NORMS, Draws
from dcnets.checks import whole_number
from dcnets.experiments.robustness.trials import Trial, Watch, unwatched
from dcnets.naming import choose

QUANTILES = (0.1, 0.5, 0.9)
RIGHT = "right"
"""What a line says of the images that slope, margin and reach are summarised over; older lines say nothing: all of them."""
ORDERS: dict[str, tuple[float, float]] = {"linf": (torch.inf, 1), "l2": (2, 2)}
"""The norm of a change of the image, and the one of the logits' change and of a slope: its dual."""


@dataclass(frozen=True, eq=False)
class Local:
    """Of each image (n): a lower bound of the local constant, the margin, the margin's slope at the image.

    `constant` is the largest ‖f(x′) − f(x)‖/‖x′ − x‖ that was found in the ball: ‖·‖₁ over ‖·‖∞, or ‖·‖₂ over ‖·‖₂. The true
    one may be larger. `margin` is z_y − max z_j, below 0 where the image is wrong, and `slope` its gradient's dual norm.
    """

    constant: Tensor
    margin: Tensor
    slope: Tensor

    @property
    def reach(self) -> Tensor:
        """margin/slope: how far the nearest mistake is if the network were linear; unlike a constant it has no scale."""
        return self.margin / self.slope

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean and quantiles: of the constant over all images, of the rest over those that are right as they are.

        A wrong image has no way to go to a mistake. Values that are not finite are left out.
        """
        right = self.margin > 0
        return {"constant": spread(self.constant)} | {
            name: spread(getattr(self, name)[right]) for name in ("slope", "margin", "reach")
        }


def local_lipschitz(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, step: float, steps: int, norm: str = "linf", seed: int = 0,
    batch: int, watch: Watch = unwatched,
) -> Local:  # fmt: skip
    """Ascend ‖f(x′) − f(x)‖ within the ball of ε and [0, 1], from a random point, and keep the largest ratio on the way.

    The ratio is the one that Yang et al. (2020) take. It is a lower bound by construction, as no ascent finds the maximum.
    """
    choose("norm", norm, NORMS)
    eps, step, steps = checked_eps(eps, norm), checked_amount("step", step), whole_number("steps", steps)
    if not eps:
        raise ValueError("eps must be above 0: a constant needs a ball")
    device, generator = device_of(model, x), torch.Generator().manual_seed(seed)
    found: list[Local] = []
    for images, labels in watch(f"Lipschitz constants within ε = {eps:.4g}", batches(x, y, batch)):
        with under_attack(model, images.to(device), labels.to(device), False) as (aim, z):
            start = (z + NORMS[norm].draw(z, eps, Draws(generator, z))).clamp(0, 1)
            constant = steepest(aim, z, start, norm, eps, step, steps)
            margin, slope = margin_slope(aim, z, norm)
            found.append(Local(constant.to(x.device), margin.to(x.device), slope.to(x.device)))
    return Local(*(torch.cat([getattr(each, name) for each in found]) for name in ("constant", "margin", "slope")))


def within(model: nn.Module, x: Tensor, y: Tensor, ball: Trial, *, batch: int, watch: Watch = unwatched) -> Local:
    """The same with the ball, the steps and the seed of a trial of PGD."""
    return local_lipschitz(
        model, x, y, eps=ball.eps, step=ball.step or 0, steps=ball.steps or 1, norm=ball.norm, seed=ball.seed, batch=batch,
        watch=watch,
    )  # fmt: skip


def told(ball: Trial, local: Local) -> dict[str, Any]:
    """What a line of results says."""
    return {**ball.settings(), "of": RIGHT, **local.summary()}


def steepest(aim: Aim, x: Tensor, start: Tensor, norm: str, eps: float, step: float, steps: int) -> Tensor:
    """The largest ratio (n) that an ascent from `start` meets."""
    here, best = aim.logits(x), x.new_zeros(len(x))
    order, dual = ORDERS[norm]

    def gradient(z: Tensor) -> Tensor:
        nonlocal best
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            change = torch.linalg.vector_norm(aim.logits(z) - here, dual, 1)
            slope = torch.autograd.grad(change.sum(), z)[0] if change.requires_grad else torch.zeros_like(z)
        moved = torch.linalg.vector_norm((z - x).flatten(1), order, 1).detach()
        best = torch.maximum(best, torch.where(moved > 0, change.detach() / moved, 0).to(best.dtype))
        return slope

    end = ascend(gradient, x, start, norm=norm, eps=eps, step=step, steps=steps)
    gradient(end)
    return best


def margin_slope(aim: Aim, x: Tensor, norm: str) -> tuple[Tensor, Tensor]:
    """z_y − max z_j of each image (n), and the dual norm of its gradient (n), 0 where there is none."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits, own = aim.logits(x), aim.y[:, None]
        margin = logits.gather(1, own).squeeze(1) - logits.scatter(1, own, -torch.inf).amax(1)
        slope = torch.autograd.grad(margin.sum(), x)[0] if margin.requires_grad else torch.zeros_like(x)
    return margin.detach(), torch.linalg.vector_norm(slope.flatten(1), ORDERS[norm][1], 1)


def spread(values: Tensor) -> dict[str, float]:
    """Mean and quantiles of the finite values (n)."""
    finite = values[values.isfinite()].double().cpu()
    if not len(finite):
        return {"mean": torch.nan, **{f"q{round(100 * q)}": torch.nan for q in QUANTILES}}
    quantiles = finite.quantile(torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
    return {"mean": finite.mean().item(), **{f"q{round(100 * q)}": v for q, v in zip(QUANTILES, quantiles, strict=True)}}
