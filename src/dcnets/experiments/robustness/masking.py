"""The masking report: is a network robust, or do its gradients just lead nowhere?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from dcnets.experiments.robustness.accuracy import Withstood
from dcnets.experiments.robustness.checks import CHECKS
from dcnets.experiments.robustness.evidence import AUTO, BIM, FGSM, PGD, RESTARTED, Evidence, Plan, gather
from dcnets.experiments.robustness.findings import Finding, at_least, gap, percent
from dcnets.experiments.robustness.trials import Watch, eps_told, unwatched

NOT_ROBUST, MASKED, NOT_SHOWN = "not robust", "not robust: masked", "robustness not shown: masked"
NOT_ATTACKED = "robustness not shown: not attacked"
NEEDED = (FGSM, BIM, PGD, RESTARTED)
"""What has to be made before a network can be called robust."""
RULES = (
    "A guess without a look at the image is right for one image in as many as there are classes, whatever ε is: what is not "
    "surely above that is not robust.",
    f"No check speaks of masking: {NOT_ROBUST!r}, or robust for the share of images that withstood everything, as far as "
    "tried; checks that were not made are named.",
    f"Some check does, but FGSM, BIM and PGD alone show that it is not robust: {NOT_ROBUST!r}; nothing was hidden.",
    "Some check does, and what withstood everything is not surely above a guess, or less than half of what withstood FGSM, "
    f"BIM and PGD: {MASKED!r}.",
    "Otherwise, AutoAttack alone does: robust for the share that withstood it too. It climbs other losses and aims at every "
    "class, by the same gradients: PGD was weak, not misled.",
    f"Another check does, and nothing that was tried broke it: {NOT_SHOWN!r}; what withstood was not attacked in earnest.",
    f"Nothing is called robust without FGSM, BIM and PGD with restarts: {NOT_ATTACKED!r}, where one was not made.",
)
"""How the verdict follows from the findings."""


@dataclass(frozen=True, eq=False)
class Report:
    """What was found of a network, and the verdict in words."""

    evidence: Evidence
    findings: tuple[Finding, ...]
    verdict: str

    @property
    def clean(self) -> Withstood:
        """The images that are right as they are."""
        return self.evidence.clean

    @property
    def robust(self) -> Withstood:
        """The images that withstood everything that was tried."""
        return self.evidence.robust

    @property
    def signs(self) -> list[str]:
        """The checks that speak of masking."""
        return [finding.name for finding in self.findings if finding.masking]

    def line(self) -> dict[str, Any]:
        """The report for a line of results."""
        found, plan = self.evidence, self.evidence.plan
        return {
            "verdict": self.verdict, "eps": plan.trial.eps, "norm": plan.trial.norm, "images": found.clean.count,
            "clean": found.clean.accuracy, "apparent": found.apparent.accuracy, "robust": found.robust.accuracy,
            "robust_error": found.robust.error, "plan": asdict(plan),
            "attacks": {name: outcome.accuracy for name, outcome in found.outcomes.items()}, "blocked": dict(found.blocked),
            "findings": [asdict(finding) for finding in self.findings],
        }  # fmt: skip


def examine(
    model: nn.Module, x: Tensor, y: Tensor, plan: Plan, *, batch: int, substitutes: Mapping[str, nn.Module] | None = None,
    watch: Watch = unwatched,
) -> Report:  # fmt: skip
    """Try everything in the plan on images x in [0, 1], and say whether their gradients are masked.

    `substitutes` are networks of pixels in [0, 1] that were trained apart from this one; their examples are tried on it.
    """
    return reported(gather(model, x, y, plan, batch=batch, substitutes=substitutes, watch=watch))


def reported(found: Evidence) -> Report:
    """The findings and the verdict that follow from the evidence."""
    findings = tuple(check(found) for check in CHECKS.values())
    return Report(found, findings, verdict(found, findings))


def verdict(found: Evidence, findings: tuple[Finding, ...]) -> str:
    """The words that the rules lead to."""
    robust, apparent = found.robust, found.apparent
    signs = [finding.name for finding in findings if finding.masking]
    missing = [finding.name for finding in findings if finding.masking is None]
    silent = f"sign of masking (not made: {', '.join(missing)})" if missing else "sign of masking"
    if not (above_guess(robust, found.classes) or (signs and above_guess(apparent, found.classes))):
        hidden = f" (signs of masking, which hid nothing: {', '.join(signs)})" if signs else f", and no {silent}"
        return NOT_ROBUST + hidden
    weak = signs == [AUTO]
    broken = not above_guess(robust, found.classes) or gap(apparent, robust).exceeds(apparent.accuracy / 2)
    if signs and (broken or not weak):
        return f"{MASKED if broken else NOT_SHOWN} ({', '.join(signs)})"
    if lacking := [name for name in NEEDED if name not in found.outcomes]:
        return f"{NOT_ATTACKED} ({', '.join(lacking)})"
    trial = found.plan.trial
    ball = f"L∞ ε = {eps_told(trial.eps)}" if trial.norm == "linf" else f"L2 ε = {eps_told(trial.eps)}"
    ending = f"; {AUTO} is much stronger than PGD, with no other {silent}" if weak else f", and no {silent}"
    return f"robust to {ball} for {percent(robust.accuracy)} of the images as far as tried{ending}"


def above_guess(outcome: Withstood, classes: int) -> bool:
    """Whether surely more than one image in `classes` withstood."""
    return at_least(outcome.right, outcome.count) > 1 / classes
