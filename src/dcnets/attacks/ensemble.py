"""AutoAttack: APGD, FAB and Square one after another, by the package pyautoattack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import under_attack
from dcnets.attacks.checks import checked_eps
from dcnets.attacks.norms import NORMS, in_reach
from dcnets.attacks.squares import check_sides
from dcnets.checks import whole_number
from dcnets.naming import choose

LEAST_CLASSES = {"standard": 4, "plus": 4, "rand": 3}
"""What the versions' DLR losses compare: the true class with two or three others."""
TARGETS = 9
"""The classes that a targeted part tries, where there are as many."""


def autoattack(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, norm: str = "linf", version: str = "standard", batch: int = 250,
    seed: int = 0,
) -> Tensor:  # fmt: skip
    """AutoAttack (Croce and Hein, 2020) on images x (n, channels, height, width), `batch` of them at a time.

    `version` is "standard", "plus" (longer) or "rand" (for models that answer at random). An image that withstood
    everything, or that the model takes for another class as it is, comes back unchanged. With fewer than ten classes the
    targeted parts try all the others. The package computes in float32, whatever x and the model are in; what it warns of
    goes to the logger "auto-attack".
    """
    eps = checked_eps(eps, choose("norm", norm, NORMS))
    choose("version", version, LEAST_CLASSES)
    batch, seed = whole_number("batch", batch), whole_number("seed", seed, least=0)
    package = pyautoattack()
    with under_attack(model, x, y, False) as (aim, x), same_trace():
        check_sides(x, norm)
        classes = aim.logits(x[:1]).shape[1]
        if classes < (least := LEAST_CLASSES[version]):
            raise ValueError(
                f"AutoAttack {version!r} needs {least} classes or more, the model has {classes}; use attacks.pgd"
            )
        aim.part(torch.tensor([0])).gradient(x[:1])  # raises where there is none, which the package would not explain
        suite = package.AutoAttack(
            lambda z: aim.logits(z).float(), norm={"linf": "Linf", "l2": "L2"}[norm], eps=eps, seed=seed, version=version,
            device=x.device,
        )  # fmt: skip
        suite.verbose = False
        suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = min(TARGETS, classes - 1)
        examples: Tensor = suite.run_standard_evaluation(x.float(), aim.y, batch_size=batch)[0]
        return examples if x.dtype == examples.dtype else around(x, examples, norm, eps)


def around(x: Tensor, examples: Tensor, norm: str, eps: float) -> Tensor:
    """Examples of x rounded to float32 as examples of x itself; those that were left alone are x."""
    moved = (examples != x.float()).flatten(1).any(1).view(-1, 1, 1, 1)
    return torch.where(moved, in_reach(examples.to(x.dtype), x, norm, eps), x)


def pyautoattack() -> Any:
    """The package, or an ImportError that says how to install it."""
    try:
        return import_module("pyautoattack")
    except ImportError as error:
        raise ImportError(f"autoattack needs the package pyautoattack ({error}); pip install 'dcnets[attacks]'") from error


@contextmanager
def same_trace() -> Iterator[None]:
    """Put back the trace function of a debugger or of a coverage tool, which the package takes away."""
    before = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(before)
