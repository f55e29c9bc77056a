"""What can be seen of a network at its images: the gradient, the loss along it, and whether the answers stay."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.attacks.aim import Aim, under_attack
from dcnets.attacks.batches import batches
from dcnets.attacks.checks import device_of
from dcnets.attacks.norms import NORMS, Draws, in_reach
from dcnets.experiments.robustness.trials import Watch, unwatched

PATH = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""The places on the way to ε at which the loss is looked at."""
LOOKS = 4
"""How often the network is asked about the same images."""
SAME = 1e-3
"""Logits of two looks that differ by less, as a share of the largest, are the same but for rounding."""
SHORT = 0.1
"""A rise below this share of what the gradient promises is no rise."""
TURNED = 0.5
"""The loss has turned back where at ε it is below this share of its highest on the way."""


@dataclass(frozen=True, eq=False)
class Looks:
    """Of each image (n), bool but for `zero_parts`; a network whose logits have no gradient has None in what needs it."""

    varies: Tensor
    """The logits are not the same at each look."""
    changes: Tensor
    """Nor is the answer."""
    finite: Tensor | None
    """The gradient is finite, and so it is wherever the attacks of a report follow it within ε."""
    zero: Tensor | None
    """The whole gradient is exactly 0."""
    zero_parts: Tensor | None
    """The share of its components that are exactly 0."""
    aimless: Tensor | None
    """On the way to ε the loss rises no higher along the gradient than in a random direction."""
    short: Tensor | None
    """At ε/16 it has risen by less than a tenth of what the gradient promised."""
    turned: Tensor | None
    """At ε it is less than half of its highest on the way."""


def look(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, norm: str, batch: int, seed: int = 0, watch: Watch = unwatched
) -> Looks:
    """Look at images x (n, …) that the model gets right; the answers lie on the CPU."""
    device, generator = device_of(model, x), torch.Generator().manual_seed(seed)
    found = []
    for images, labels in watch("looking at gradients", batches(x, y, batch)):
        with under_attack(model, images.to(device), labels.to(device), False) as (aim, z):
            found.append(at_once(aim, z, eps, norm, Draws(generator, z)))
    parts = {each.name: [getattr(one, each.name) for one in found] for each in fields(Looks)}
    whole: dict[str, Any] = {
        name: None if any(value is None for value in values) else torch.cat(values).cpu() for name, values in parts.items()
    }
    return Looks(**whole)


def at_once(aim: Aim, x: Tensor, eps: float, norm: str, draws: Draws) -> Looks:
    """The same for one batch."""
    logits = torch.stack([aim.logits(x) for _ in range(LOOKS)])
    size = logits.abs().amax((0, 2)).clamp(min=torch.finfo(logits.dtype).tiny)
    varies = ~((logits - logits[0]).abs().amax((0, 2)) <= SAME * size)  # NaN varies too
    answers = logits.argmax(2)
    changes = (answers != answers[0]).any(0)
    try:
        gradient = aim.gradient(x)
    except ValueError:
        return Looks(varies, changes, *(None,) * 6)
    flat, finite = gradient.flatten(1), gradient.isfinite().flatten(1).all(1)
    along, promised = losses(aim, x, NORMS[norm].direction(gradient), gradient, eps, norm)
    random = NORMS[norm].direction(draws.normal(*x.shape))
    beside, _ = losses(aim, x, random, gradient, eps, norm)
    start, highest = along[0], along[1:].amax(0)
    return Looks(
        varies, changes, finite, (flat == 0).all(1), (flat == 0).double().mean(1),
        ~(highest > torch.maximum(start, beside[1:].amax(0))), ~(along[1] - start > SHORT * promised),
        along[-1] < TURNED * highest,
    )  # fmt: skip


def losses(aim: Aim, x: Tensor, direction: Tensor, gradient: Tensor, eps: float, norm: str) -> tuple[Tensor, Tensor]:
    """The cross-entropy at x and on the way to x + ε·direction (places, n), and the first rise as the gradient has it (n).

    It is computed in float64, in which e^−margin does not drown beside 1.
    """
    places = [x, *(in_reach(x + share * eps * direction, x, norm, eps) for share in PATH)]
    found = torch.stack([F.cross_entropy(aim.logits(z).double(), aim.y, reduction="none") for z in places])
    return found, ((places[1] - x) * gradient).flatten(1).double().sum(1)
