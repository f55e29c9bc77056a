"""The learning rate over a run: fixed steps, division on a plateau, or a cosine, each after a linear warm-up."""

from __future__ import annotations

import math
from typing import Any

from dcnets.experiments.recipe import Recipe


class Schedule:
    """The rate at each step of a run of `total` steps.

    `steps` multiplies it by `factor` at each drop; `plateau` does so when the training loss has not fallen for `patience`
    tests (the test set has no say in it); `cosine` lets it fall to 0 at the end.
    """

    def __init__(self, recipe: Recipe, total: int) -> None:
        self.recipe, self.total = recipe, total
        self.best, self.waited, self.reductions = math.inf, 0, 0

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        recipe = self.recipe
        if step < recipe.warmup:
            return recipe.rate * (step + 1) / recipe.warmup
        if recipe.schedule == "cosine":
            done = (step - recipe.warmup) / max(1, self.total - recipe.warmup)
            return recipe.rate * 0.5 * (1 + math.cos(math.pi * done))
        drops = self.reductions if recipe.schedule == "plateau" else sum(step >= drop for drop in recipe.drops)
        return recipe.rate * recipe.factor**drops

    def observe(self, loss: float) -> None:
        """Take note of the mean training loss from one test to the next."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= self.recipe.patience:
            self.waited, self.reductions = 0, self.reductions + 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": None if math.isinf(self.best) else self.best, "waited": self.waited, "reductions": self.reductions}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.best = math.inf if state["best"] is None else state["best"]
        self.waited, self.reductions = state["waited"], state["reductions"]
