"""A model under attack: how it is held still, what it answers, and what the attack wants of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.attacks.checks import check_logits, check_model, check_span, checked_images, checked_labels, device_of
from dcnets.checks import yes_or_no
from dcnets.losses import full_precision
from dcnets.modes import evaluating


class NoGradientError(ValueError):
    """Logits that have no gradient in the images."""


def fooled(model: nn.Module, x: Tensor, y: Tensor, *, targeted: bool = False) -> Tensor:
    """Which images (n) the model takes for another class than y, or for y itself where that is the target."""
    with under_attack(model, x, y, targeted) as (aim, x):
        logits = aim.logits(x)
        if logits.isnan().any():
            raise ValueError("the model's logits are NaN: no answer, right or wrong; mend the model, or use float32")
        return aim.judge(logits)[0]


@contextmanager
def under_attack(model: nn.Module, x: Tensor, y: Tensor, targeted: bool) -> Iterator[tuple[Aim, Tensor]]:
    """The aim and a copy of the images, both checked, while the model is undisturbed."""
    check_model(model)
    yes_or_no("targeted", targeted)
    with torch.inference_mode(False), torch.no_grad():
        x = checked_images(x)
        y = checked_labels(y, x)
        with undisturbed(model, x.device):
            yield Aim(model, y, targeted, (int(y.min()), int(y.max()))), x


def classes_of(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """How many classes the model knows, by its answer to the first image; refuse those of y (n) that it does not."""
    device = device_of(model, x)
    with under_attack(model, x[:1].to(device), y[:1].to(device), False) as (aim, image):
        return replace(aim, span=(int(y.min()), int(y.max()))).logits(image).shape[1]


@contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model held still; then the random numbers too are as they were."""
    gpus = {device.index} if device.type == "cuda" else set()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gpus.add(torch.cuda.current_device())
    with torch.random.fork_rng(devices=list(gpus)), still(model):
        yield


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients of parameters; then every flag is as it was."""
    learned = [p for p in model.parameters() if p.requires_grad and not p.is_inference()]  # theirs stays
    try:
        with evaluating(model):
            for parameter in learned:
                parameter.requires_grad_(False)
            yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


@dataclass(frozen=True)
class Aim:
    """A model, and the classes y (n) to get away from, or to get to where `targeted`.

    `span` is the lowest and the highest of the classes, where they are to be checked.
    """

    model: nn.Module
    y: Tensor
    targeted: bool = False
    span: tuple[int, int] | None = None

    def part(self, some: Tensor) -> Aim:
        """The aim at some of the images."""
        return replace(self, y=self.y[some])

    def logits(self, x: Tensor) -> Tensor:
        """The model's logits (n, classes) in float32 or better; x is rounded to the model's own precision."""
        weight = next((p for p in self.model.parameters() if p.is_floating_point()), x)
        logits: Tensor = self.model(x.to(weight.dtype, copy=True))  # a copy: a model may normalise in place
        check_logits(logits, len(x))
        check_span(self.span, logits.shape[1])
        return full_precision(logits)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient, in x, of the cross-entropy summed over the images."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            logits = self.logits(x)
            gradient = None
            if logits.requires_grad:
                loss = F.cross_entropy(logits, self.y, reduction="sum")
                (gradient,) = torch.autograd.grad(loss, x, allow_unused=True)
        if gradient is None:
            raise NoGradientError(
                "the model's logits have no gradient in x: it detaches them, or computes without autograd; "
                "mend that, or use a gradient-free attack: attacks.square, attacks.transfer"
            )
        return gradient

    def judged(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which images fool the model, and how far each has got (both n).

        How far: the margin by which another class leads, or minus the cross-entropy of the target.
        """
        return self.judge(self.logits(x))

    def judge(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the logits. NaN is no class: neither the right one nor a target."""
        answers, silent = logits.argmax(1), logits.isnan().any(1)
        if self.targeted:
            reached = -F.cross_entropy(logits, self.y, reduction="none")
            return (answers == self.y) & ~silent, reached.masked_fill(silent, -torch.inf)
        own = self.y[:, None]
        others = logits.scatter(1, own, -torch.inf).amax(1)
        return (answers != self.y) | silent, (others - logits.gather(1, own).squeeze(1)).masked_fill(silent, torch.inf)
