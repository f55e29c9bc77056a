"""Robust accuracy: which images are still right after an attack, and after the worst of several."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from dcnets import attacks
from dcnets.attacks.aim import under_attack
from dcnets.attacks.batches import batches
from dcnets.attacks.checks import device_of
from dcnets.experiments.robustness.trials import Trial, Watch, unwatched


@dataclass(frozen=True, eq=False)
class Withstood:
    """Which images (n) are right as they are and after all that was tried: an attacker may also leave an image alone."""

    survived: Tensor

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self.survived)

    @property
    def right(self) -> int:
        """The number of images that withstood."""
        return int(self.survived.sum())

    @property
    def accuracy(self) -> float:
        """The share of images that withstood."""
        return self.right / self.count

    @property
    def error(self) -> float:
        """One standard error of the accuracy, by the number of images: √(p(1 − p)/n)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.count)

    def __and__(self, other: Withstood) -> Withstood:
        return Withstood(self.survived & other.survived)


def clean(model: nn.Module, x: Tensor, y: Tensor, *, batch: int) -> Withstood:
    """The images (n) that the model gets right as they are given; the answer lies where x does.

    NaN is no right answer. A model that gives no other is an error.
    """
    found, device = judged(model, x, y, batch=batch), device_of(model, x)
    if not found.right:
        attacks.fooled(model, x[:1].to(device), y[:1].to(device))  # which says so where it is NaN
    return found


def judged(model: nn.Module, x: Tensor, y: Tensor, *, batch: int) -> Withstood:
    """The same for examples, on which any model may break."""
    wrong, device = [], device_of(model, x)
    for some, own in batches(x, y, batch):
        with under_attack(model, some.to(device), own.to(device), False) as (aim, z):
            wrong.append(aim.judged(z)[0].to(x.device))
    return Withstood(~torch.cat(wrong))


def withstood(
    model: nn.Module, x: Tensor, y: Tensor, trial: Trial, *, batch: int, among: Withstood | None = None,
    on: nn.Module | None = None, watch: Watch = unwatched,
) -> Withstood:  # fmt: skip
    """Those of the images `among` (by default those right as they are) that an attack leaves right.

    The examples are made on the model, or on another one, and tried on the model. Others are not attacked.
    """
    before = among or clean(model, x, y, batch=batch)
    left = before.survived.nonzero().squeeze(1)
    after = torch.zeros_like(before.survived)
    if len(left):
        examples = trial.examples(on or model, x[left], y[left], batch=batch, watch=watch)
        after[left] = judged(model, examples, y[left], batch=batch).survived
    return Withstood(after)


def worst_case(outcomes: Iterable[Withstood]) -> Withstood:
    """The images that withstood everything: an attacker may choose the attack for each image."""
    outcomes = tuple(outcomes)
    if not outcomes:
        raise ValueError("there are no outcomes, so none is the worst; give one or more of withstood or clean")
    return reduce(Withstood.__and__, outcomes)
