"""Adversarial training: examples crafted for each batch, and the loss of what the network answers to them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.attacks.aim import still
from dcnets.attacks.gradients import ascend
from dcnets.attacks.norms import NORMS, Draws
from dcnets.attacks.pixels import LARGEST, Normalised
from dcnets.experiments.recipe import Recipe
from dcnets.losses import full_precision

NOISE = 1e-3
"""Standard deviation of the noise from which TRADES starts, as at x itself the divergence has no slope."""


@runtime_checkable
class Normalising(Protocol):
    """A source that tells the mean and the standard deviation, a channel each, by which it normalises pixels 0 to 255."""

    mean: Any
    std: Any


class Adversary:
    """Examples z of images x with ‖z − x‖∞ ≤ ε in pixels of [0, 1], and the loss. J is the cross-entropy of y.

    fgsm: z = x + ε·sign ∇J(x); L = s·J(x) + (1 − s)·J(z), s being the clean share
    pgd: z climbs J from a point drawn evenly from the ball; L as above
    trades: z climbs KL(p(x) ‖ p(z)) from x + 0.001·N(0, 1); L = J(x) + β·KL(p(x) ‖ p(z))

    Crafting sees the network in evaluation mode and without label smoothing. In training x and z go through the network as
    one batch: batch norm and relative radii, which have one running mean for both, are measured over both.
    """

    def __init__(
        self, model: nn.Module, source: object, recipe: Recipe, *, device: torch.device,
        arithmetic: Callable[[], AbstractContextManager[Any]], compiled: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(source, Normalising):
            raise ValueError(
                f"{type(source).__name__} does not tell how it normalises, so that ε could be measured in pixels; "
                "give it the attributes mean and std, one number a channel each, of pixels from 0 to 255"
            )
        self.model, self.arithmetic, self.kind = model, arithmetic, recipe.adversary
        self.eps, self.steps = recipe.adversary_eps or 0.0, recipe.adversary_steps or 1
        self.step = recipe.adversary_step or self.eps
        self.share, self.weight, self.smoothing = recipe.clean_share, recipe.trades_weight or 0.0, recipe.label_smoothing
        self.normalise = Normalised(nn.Identity(), source.mean, source.std, scale=LARGEST).to(device)
        self.answer = torch.compile(self.answered, dynamic=False) if compiled else self.answered

    def batch(self, x: Tensor, y: Tensor) -> Tensor:
        """What the network is trained on: the examples, with the images before them where these count too."""
        z = self.crafted(x, y)
        return z if self.share == 0 else torch.cat([x, z])

    def loss(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """L from the logits of such a batch, and the logits of the examples."""
        if self.share == 0:
            return F.cross_entropy(logits, y, label_smoothing=self.smoothing), logits
        clean, crafted = logits.chunk(2)
        loss = F.cross_entropy(clean, y, label_smoothing=self.smoothing)
        if self.share is None:
            return loss + self.weight * divergence(clean, crafted, "batchmean"), crafted
        return self.share * loss + (1 - self.share) * F.cross_entropy(crafted, y, label_smoothing=self.smoothing), crafted

    @torch.no_grad()
    def crafted(self, x: Tensor, y: Tensor) -> Tensor:
        """z of normalised images x (n, channels, height, width) of classes y (n), normalised too; nothing else changes.

        Random starts move torch's own generator of the device, as dropout does, so that a resumed run or a captured one
        draws what it should.
        """
        with still(self.model):
            x = self.pixels(x)
            z: Tensor = self.normalise(self.ascended(*self.aim(x, y), x))
        return z

    def aim(self, x: Tensor, y: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """The loss that examples of x climb, as a function of their logits, and where they start."""
        cuda = x.device.type == "cuda"
        draws = Draws(torch.cuda.default_generators[x.device.index] if cuda else torch.default_generator, x)
        if self.kind == "trades":
            clean = self.answer(x)
            return lambda logits: divergence(clean, logits, "sum"), x + NOISE * draws.normal(*x.shape)
        start = (x + NORMS["linf"].draw(x, self.eps, draws)).clamp(0, 1) if self.kind == "pgd" else x
        return lambda logits: F.cross_entropy(logits, y, reduction="sum"), start

    def ascended(self, loss: Callable[[Tensor], Tensor], start: Tensor, x: Tensor) -> Tensor:
        """The ascent of a loss of the logits around x; NaN, and with it the loss of the update, where a slope is not finite.

        Torch's sign of NaN is 0: the example would stand still, and the training be a natural one.
        """
        unsound = x.new_zeros(())

        def gradient(z: Tensor) -> Tensor:
            nonlocal unsound
            with torch.enable_grad():
                z = z.detach().requires_grad_()
                (found,) = torch.autograd.grad(loss(self.answer(z)), z)
            unsound = unsound + 0 * found.abs().amax()
            return found

        return ascend(gradient, x, start, norm="linf", eps=self.eps, step=self.step, steps=self.steps) + unsound

    def answered(self, x: Tensor) -> Tensor:
        """The logits of pixels in [0, 1]."""
        with self.arithmetic():
            logits: Tensor = self.model(self.normalise(x))
        return full_precision(logits)

    def pixels(self, x: Tensor) -> Tensor:
        """What was normalised, in [0, 1]."""
        return ((x * self.normalise.std + self.normalise.mean) / LARGEST).clamp(0, 1)


def divergence(clean: Tensor, crafted: Tensor, reduction: str) -> Tensor:
    """KL(p ‖ q) = Σ p·(log p − log q) of softmax logits, added up over the images or averaged."""
    return F.kl_div(F.log_softmax(crafted, 1), F.log_softmax(clean, 1), reduction=reduction, log_target=True)
