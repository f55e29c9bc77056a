"""A trial: one attack with everything that decides what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcnets import attacks
from dcnets.attacks.batches import Batch, batches
from dcnets.attacks.checks import checked_amount, checked_eps, device_of
from dcnets.attacks.gradients import GradientError
from dcnets.attacks.norms import NORMS
from dcnets.checks import whole_number
from dcnets.naming import choose

TAKES = {
    "fgsm": (),
    "bim": ("step", "steps"),
    "pgd": ("step", "steps", "restarts", "seed"),
    "square": ("queries", "seed"),
    "autoattack": ("seed",),
}
"""The attacks, and what each of them takes besides ε and the norm."""
SPOKEN = {"fgsm": "FGSM", "bim": "BIM", "pgd": "PGD", "square": "Square", "autoattack": "AutoAttack"}
ROUNDING = 1e-6

Watch = Callable[[str, Sequence[Batch]], Iterable[Batch]]
"""What goes through the batches of something with a title, and may draw a bar meanwhile."""


def unwatched(title: str, batches: Sequence[Batch]) -> Iterable[Batch]:
    """The batches and no bar."""
    return batches


@dataclass(frozen=True)
class Trial:
    """An attack with its settings; those that it does not take stay as they are by default.

    `step` and `steps` of BIM and PGD must be able to reach ε: an attack that stops short says nothing about ε.
    """

    attack: str
    eps: float
    norm: str = "linf"
    step: float | None = None
    steps: int | None = None
    restarts: int = 1
    queries: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        takes = TAKES[choose("attack", self.attack, TAKES)]
        self.keep("eps", checked_eps(self.eps, choose("norm", self.norm, NORMS)))
        for name in ("step", "steps", "queries"):
            value = getattr(self, name)
            if (value is not None) != (name in takes):
                raise ValueError(f"{SPOKEN[self.attack]} " + (f"needs {name}" if value is None else f"takes no {name}"))
        self.keep("seed", whole_number("seed", self.seed, least=0))
        for name in ("restarts", "steps", "queries"):
            if getattr(self, name) is not None:
                self.keep(name, whole_number(name, getattr(self, name)))
        if self.restarts != 1 and "restarts" not in takes:
            raise ValueError(f"{SPOKEN[self.attack]} takes no restarts, got {self.restarts}")
        if self.step is not None and self.steps is not None:
            self.keep("step", checked_amount("step", self.step))
            reach = self.step * self.steps
            if reach < self.eps * (1 - ROUNDING):
                raise ValueError(
                    f"{self.steps} steps of {self.step:g} reach {reach:g}, which is less than ε = {self.eps:g}; "
                    "take more steps or longer ones"
                )

    def keep(self, name: str, value: float) -> None:
        """A field as a number of Python's own, whose equals are equal and have one JSON."""
        object.__setattr__(self, name, value)

    def at(self, eps: float) -> Trial:
        """The same with another ε, to which the step stays in proportion."""
        step = None if self.step is None else self.step * (eps / self.eps if self.eps else 0.0)
        return replace(self, eps=eps, step=step)

    def settings(self) -> dict[str, Any]:
        """What decides the outcome, by name: for people and for lines of results."""
        return {"eps": self.eps, "norm": self.norm} | {name: getattr(self, name) for name in TAKES[self.attack]}

    def __str__(self) -> str:
        ball = f"ε = {eps_told(self.eps)}" + (" in L2" if self.norm == "l2" else "")
        return ", ".join([SPOKEN[self.attack], ball, *self.words()])

    def words(self, step: str | None = None) -> list[str]:
        """The settings besides ε, for people; `step` is what is said of its length."""
        told = []
        if self.steps is not None and self.step is not None:
            told.append(f"{self.steps} steps of {step or eps_told(self.step)}")
        if self.restarts > 1:
            told.append(f"{self.restarts} restarts")
        if self.queries is not None:
            told.append(f"{self.queries} queries")
        return told

    def examples(self, model: nn.Module, x: Tensor, y: Tensor, *, batch: int, watch: Watch = unwatched) -> Tensor:
        """The images x (n, channels, height, width) after the attack on the model, `batch` of them at a time, where x is.

        Of a `GradientError` the examples are those of all images, not of a batch.
        """
        given = self.settings()
        seed = given.pop("seed", None)
        if self.attack == "autoattack":
            given |= {"seed": seed, "batch": batch}
        elif seed is not None:
            given["generator"] = torch.Generator().manual_seed(seed)
        attack, device = getattr(attacks, self.attack), device_of(model, x)
        found, broken = [], []
        for images, labels in watch(str(self), batches(x, y, batch)):
            try:
                made = attack(model, images.to(device), labels.to(device), **given)
                broken.append(torch.zeros_like(labels, dtype=torch.bool))
            except GradientError as error:
                made = error.examples
                broken.append(error.broken.to(labels.device))
            found.append(made.to(x.device))
        examples, unfollowed = torch.cat(found), torch.cat(broken)
        if unfollowed.any():
            raise GradientError(examples, unfollowed)
        return examples


def eps_told(eps: float) -> str:
    """A distance as people write it: 8/255 where it is a number of quarter grey levels and no short decimal."""
    quarters = round(4 * 255 * eps)
    if quarters and abs(4 * 255 * eps - quarters) < 1e-3 and abs(eps - round(eps, 3)) > 1e-9:
        return f"{quarters / 4:g}/255"
    return f"{eps:.4g}"
