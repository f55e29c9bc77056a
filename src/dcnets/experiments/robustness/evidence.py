"""What a masking report rests on: looks at the gradients, and every attack of a plan that can be made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import classes_of
from dcnets.attacks.gradients import GradientError
from dcnets.checks import whole_number
from dcnets.experiments.robustness.accuracy import Withstood, clean, judged, worst_case
from dcnets.experiments.robustness.looks import Looks, look
from dcnets.experiments.robustness.mended import Averaged, Rescaled
from dcnets.experiments.robustness.trials import Trial, Watch, unwatched

AVERAGED = 8
"""The looks that PGD takes the mean of where a network answers at random."""
FAR_STEP = 2.5
"""How far PGD can go at a large ε, in ε."""
BLOCKED = (ValueError, ImportError)
"""What an attack raises that cannot be made: no gradient, none that is finite, too few classes, a missing package."""
FOREIGN = (*BLOCKED, AssertionError, RuntimeError)
"""What another's package may raise; a report that has everything else is not lost for it."""
FGSM, BIM, PGD, RESTARTED, RESCALED, MEAN, SQUARE, TRANSFER, AUTO, FAR = (
    "FGSM", "BIM", "PGD", "PGD with restarts", "PGD on rescaled logits", "PGD on the mean of looks", "Square",
    "transfer from ", "AutoAttack", "PGD at larger ε",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is tried: PGD as in `trial`, then with restarts, Square with queries, AutoAttack where it is asked for."""

    trial: Trial
    restarts: int = 5
    queries: int = 500
    autoattack: bool = False

    def __post_init__(self) -> None:
        if self.trial.attack != "pgd" or self.trial.restarts != 1 or not self.trial.eps:
            raise ValueError(f"a masking report begins with PGD without restarts at an ε above 0, got {self.trial}")
        whole_number("restarts", self.restarts, least=2)
        whole_number("queries", self.queries)

    def trials(self) -> dict[str, Trial]:
        """The attacks on the network itself, at ε."""
        one, many = self.trial, replace(self.trial, restarts=self.restarts)
        same: dict[str, Any] = {"eps": one.eps, "norm": one.norm}
        found = {
            FGSM: Trial("fgsm", **same), BIM: Trial("bim", **same, step=one.step, steps=one.steps), PGD: one,
            RESTARTED: many, SQUARE: Trial("square", **same, queries=self.queries, seed=one.seed),
        }  # fmt: skip
        return found | ({AUTO: Trial("autoattack", **same, seed=one.seed)} if self.autoattack else {})

    def far(self, x: Tensor) -> list[Trial]:
        """PGD at larger ε, up to the whole range of pixels, with steps long enough to go anywhere."""
        whole = 1.0 if self.trial.norm == "linf" else math.sqrt(x[0].numel())
        grid = sorted({eps for eps in (4 * self.trial.eps, whole / 2, whole) if self.trial.eps < eps <= whole})
        return [replace(self.trial, eps=eps, step=FAR_STEP * eps / (self.trial.steps or 1)) for eps in grid]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was seen and what withstood, by the names of the attacks; `blocked` says why some could not be made."""

    plan: Plan
    classes: int
    clean: Withstood
    looks: Looks
    outcomes: Mapping[str, Withstood]
    blocked: Mapping[str, str]
    far: Mapping[float, Withstood]

    @property
    def apparent(self) -> Withstood:
        """What withstands FGSM, BIM and PGD, each in one run: the robustness that is usually told."""
        return worst_case([self.clean, *self.some(FGSM, BIM, PGD)])

    @property
    def white(self) -> Withstood:
        """What withstands all gradient attacks on the network's own loss."""
        return worst_case([self.apparent, *self.some(RESTARTED)])

    @property
    def robust(self) -> Withstood:
        """What withstands everything that was tried."""
        return worst_case([self.clean, *self.outcomes.values()])

    @property
    def transferred(self) -> list[Withstood]:
        """What withstands the examples of each substitute."""
        return [outcome for name, outcome in self.outcomes.items() if name.startswith(TRANSFER)]

    def some(self, *names: str) -> list[Withstood]:
        """What withstood these attacks, as far as they were made."""
        return [self.outcomes[name] for name in names if name in self.outcomes]


def gather(
    model: nn.Module, x: Tensor, y: Tensor, plan: Plan, *, batch: int, substitutes: Mapping[str, nn.Module] | None = None,
    watch: Watch = unwatched,
) -> Evidence:  # fmt: skip
    """Try everything in the plan on the images x that the model gets right."""
    before = clean(model, x, y, batch=batch)
    if not before.right:
        raise ValueError(
            f"the model gets none of the {len(x)} images right, so there is nothing to attack; is it trained, and are its "
            "images normalised as in training?"
        )
    trial, right = plan.trial, before.survived
    looks = look(model, x[right], y[right], eps=trial.eps, norm=trial.norm, batch=batch, seed=trial.seed, watch=watch)
    outcomes: dict[str, Withstood] = {}
    blocked: dict[str, str] = {}

    def attempt(name: str, each: Trial, on: nn.Module | None = None) -> tuple[Withstood, Tensor] | None:
        """What withstood, and of which images (n) the gradient led nowhere."""
        errors = FOREIGN if name == AUTO else BLOCKED
        after, broken = torch.zeros_like(right), torch.zeros_like(right)
        try:
            examples = each.examples(on or model, x[right], y[right], batch=batch, watch=watch)
        except torch.OutOfMemoryError:
            raise
        except GradientError as error:
            examples, broken[right] = error.examples, error.broken
            if error.broken.all():
                blocked[name] = str(error)
        except errors as error:
            blocked[name] = str(error) or type(error).__name__
            return None
        after[right] = judged(model, examples, y[right], batch=batch).survived
        return Withstood(after), broken

    def keep(name: str, each: Trial, on: nn.Module | None = None) -> None:
        if found := attempt(name, each, on):
            outcome, broken = found
            if name not in blocked:
                outcomes[name] = outcome
            if on is None and looks.finite is not None:
                looks.finite.logical_and_(~broken[right].cpu())

    for name, each in plan.trials().items():
        if name == AUTO and looks.zero is None:
            blocked[name] = "the logits have no gradient in the image"
        else:
            keep(name, each)
    keep(RESCALED, trial, Rescaled(model))
    if looks.varies.any():
        keep(MEAN, trial, Averaged(model, AVERAGED))
    for name, substitute in (substitutes or {}).items():
        keep(TRANSFER + name, trial, substitute)
    far = {}
    for each in plan.far(x) if PGD in outcomes else []:
        if (found := attempt(FAR, each)) and not found[1][right].all():
            far[each.eps] = Withstood(found[0].survived & ~found[1])  # a gradient that breaks out there hides nothing at ε
    return Evidence(plan, classes_of(model, x, y), before, looks, outcomes, blocked, far)
