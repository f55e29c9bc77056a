"""Everything that is measured of some networks in one go, and a line of results for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dcnets.experiments import results
from dcnets.experiments.checkpoint import short_name
from dcnets.experiments.robustness.accuracy import Withstood, clean
from dcnets.experiments.robustness.curves import Curve, curve, worst_curve
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.lipschitz import Local, local_lipschitz
from dcnets.experiments.robustness.masking import Report, examine
from dcnets.experiments.robustness.subjects import Subject
from dcnets.experiments.robustness.transfer import Matrix, transfer_matrix
from dcnets.experiments.robustness.trials import Trial, Watch, unwatched


@dataclass(frozen=True)
class Wanted:
    """What to measure: attacks at each ε, the attack that is tried by transfer, a masking report, Lipschitz constants.

    The ball and the steps of the Lipschitz constants are those of `lipschitz`, a trial of PGD.
    """

    attacks: tuple[tuple[Trial, ...], ...]
    transfer: Trial | None = None
    masking: Plan | None = None
    lipschitz: Trial | None = None

    def jobs(self, networks: int, substitutes: int) -> int:
        """About how many things are watched, for a bar."""
        each = sum(bool(trial.eps) for trials in self.attacks for trial in trials) + bool(self.lipschitz)
        each += len(self.masking.trials()) + 5 + substitutes if self.masking else 0
        return networks * each + (substitutes if self.transfer else 0)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured of a network; the matrix is that of all networks."""

    subject: Subject
    wanted: Wanted
    clean: Withstood
    curves: tuple[Curve, ...]
    matrix: Matrix | None
    report: Report | None
    local: Local | None
    seconds: float

    @property
    def worst(self) -> Curve:
        """What withstood all attacks at an ε and at smaller ones."""
        return worst_curve(self.curves)


def evaluate(
    subjects: Sequence[Subject], substitutes: Sequence[Subject], x: Tensor, y: Tensor, wanted: Wanted, *, batch: int,
    watch: Watch = unwatched,
) -> list[Evaluation]:  # fmt: skip
    """Measure what is wanted of each network on images x in [0, 1]; the substitutes attack by transfer."""
    victims, others = ({each.name: each.model for each in some} for some in (subjects, substitutes))
    matrix = transfer_matrix(others, victims, x, y, wanted.transfer, batch=batch, watch=watch) if wanted.transfer else None
    return [measured(each, others, x, y, wanted, matrix, batch, watch) for each in subjects]


def measured(
    subject: Subject, substitutes: dict[str, Any], x: Tensor, y: Tensor, wanted: Wanted, matrix: Matrix | None, batch: int,
    watch: Watch,
) -> Evaluation:  # fmt: skip
    """The same for one network, whose own examples are no black box."""
    begin, model = time.perf_counter(), subject.model
    before = clean(model, x, y, batch=batch)
    curves = tuple(curve(model, x, y, trials, batch=batch, before=before, watch=watch) for trials in wanted.attacks)
    report = local = None
    if wanted.lipschitz:
        ball = wanted.lipschitz
        local = local_lipschitz(
            model, x, y, eps=ball.eps, step=ball.step or 0, steps=ball.steps or 1, norm=ball.norm, seed=ball.seed,
            batch=batch, watch=watch,
        )  # fmt: skip
    if wanted.masking:
        others = {name: other for name, other in substitutes.items() if name != subject.name}
        report = examine(model, x, y, wanted.masking, batch=batch, substitutes=others, watch=watch)
    return Evaluation(subject, wanted, before, curves, matrix, report, local, time.perf_counter() - begin)


def line(found: Evaluation, device: str, precision: torch.dtype) -> dict[str, Any]:
    """The evaluation of a network for `results/`: accuracies are shares of the images."""
    wanted, rebuilt = found.wanted, found.subject.rebuilt
    told: dict[str, Any] = {
        **results.environment(device), "network": found.subject.name, "checkpoint": short_name(rebuilt.checkpoint.path),
        "step": rebuilt.checkpoint.step, "recipe": asdict(rebuilt.recipe), "images": found.clean.count,
        "precision": str(precision).removeprefix("torch."), "clean": found.clean.accuracy,
        "attacks": [
            {"attack": trial.attack, **trial.settings(), "accuracy": outcome.accuracy, "error": outcome.error}
            for curve, trials in zip(found.curves, wanted.attacks, strict=True)
            for outcome, trial in zip(curve.outcomes, trials, strict=True)
        ],
        "worst": dict(zip(map(str, found.worst.eps), found.worst.accuracies, strict=True)),
    }  # fmt: skip
    if found.matrix and wanted.transfer:
        cells = {row: accuracies[found.subject.name] for row, accuracies in found.matrix.accuracies().items()}
        told["transfer"] = {"attack": wanted.transfer.attack, **wanted.transfer.settings(), "accuracy": cells}
    if found.report:
        told["masking"] = found.report.line()
    if found.local and wanted.lipschitz:
        told["lipschitz"] = {**wanted.lipschitz.settings(), **found.local.summary()}
    return {**told, "seconds": round(found.seconds, 2)}
