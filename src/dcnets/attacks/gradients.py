"""Gradient attacks: FGSM, BIM and PGD are one ascent with different steps and starts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import Aim, under_attack
from dcnets.attacks.checks import checked_amount, checked_eps
from dcnets.attacks.norms import NORMS, Draws, in_reach
from dcnets.checks import whole_number, yes_or_no
from dcnets.naming import choose


class GradientError(ValueError):
    """Gradients that are not finite: `examples` is what an attack made nevertheless, `broken` (n) those images of it."""

    def __init__(self, examples: Tensor, broken: Tensor) -> None:
        super().__init__(
            f"the model's gradient in x is not finite for {int(broken.sum())} of {len(broken)} images, so it leads nowhere; "
            "mend it, or use float32"
        )
        self.examples, self.broken = examples, broken


def fgsm(model: nn.Module, x: Tensor, y: Tensor, *, eps: float, norm: str = "linf", targeted: bool = False) -> Tensor:
    """FGSM (Goodfellow et al., 2015): x + ε·sign(∇L), in [0, 1]; with norm="l2", x + ε·∇L/‖∇L‖₂.

    L is the cross-entropy of y; where `targeted`, y is the class to reach, and the step goes down.
    """
    return bim(model, x, y, eps=eps, step=eps, steps=1, norm=norm, targeted=targeted)


def bim(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, step: float, steps: int, norm: str = "linf",
    targeted: bool = False,
) -> Tensor:  # fmt: skip
    """BIM (Kurakin et al., 2017): `steps` steps of length `step`, each brought back into the ball of ε and into [0, 1]."""
    return pgd(model, x, y, eps=eps, step=step, steps=steps, norm=norm, targeted=targeted, random_start=False)


def pgd(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, step: float, steps: int, norm: str = "linf",
    targeted: bool = False, random_start: bool = True, restarts: int = 1, generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """PGD (Madry et al., 2018): `bim` from a point drawn evenly from the ball, `restarts` times.

    A restart goes on with the images that have not fooled the model yet. Of each image the example that fools it is
    returned, else the one that came nearest to it. Without a generator two calls start alike, unless torch's own CPU
    generator has moved between them.
    """
    choose("norm", norm, NORMS)
    eps, step = checked_eps(eps, norm), checked_amount("step", step)
    steps, restarts = whole_number("steps", steps), whole_number("restarts", restarts)
    if not yes_or_no("random_start", random_start) and restarts > 1:
        raise ValueError("restarts without a random start are all alike; set random_start=True or restarts=1")
    with under_attack(model, x, y, targeted) as (aim, x):
        draws, broken = Draws(generator, x), torch.zeros_like(y, dtype=torch.bool, device=x.device)

        def run(some: Tensor) -> Tensor:
            part, images = aim.part(some), x[some]
            start = (images + NORMS[norm].draw(images, eps, draws)).clamp(0, 1) if random_start else images

            def gradient(z: Tensor) -> Tensor:
                found = part.gradient(z)
                finite = found.isfinite()
                broken[some] |= ~finite.flatten(1).all(1)  # read at the end: an image that stands still looks robust
                return torch.where(finite, found, 0)

            return ascend(gradient, images, start, norm=norm, eps=eps, step=-step if targeted else step, steps=steps)

        best = run(torch.arange(len(x), device=x.device))
        best = best if restarts == 1 else kept(aim, best, run, restarts - 1)
        if broken.any():
            raise GradientError(best, broken)
        return best


def ascend(
    gradient: Callable[[Tensor], Tensor], x: Tensor, start: Tensor, *, norm: str, eps: float, step: float, steps: int
) -> Tensor:
    """z ← in_reach(z + step·direction(gradient(z))), from `start`; a step below 0 descends."""
    z = start
    for _ in range(steps):
        z = in_reach(z + step * NORMS[norm].direction(gradient(z)), x, norm, eps)
    return z


def kept(aim: Aim, best: Tensor, run: Callable[[Tensor], Tensor], more: int) -> Tensor:
    """The best of each image after some more runs, each on what is left."""
    done, far = aim.judged(best)
    for _ in range(more):
        left = (~done).nonzero().squeeze(1)
        if len(left) == 0:
            break
        rival = run(left)
        wins, reached = aim.part(left).judged(rival)
        better = wins | (reached > far[left])
        chosen = left[better]
        best[chosen], far[chosen], done[chosen] = rival[better], reached[better], wins[better]
    return best
