"""Everything that is measured of some networks in one go."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from dcnets.attacks.aim import NoGradientError
from dcnets.attacks.gradients import GradientError
from dcnets.experiments.robustness.accuracy import Withstood, clean
from dcnets.experiments.robustness.curves import Curve, curve, worst_curve
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.lipschitz import Local, within
from dcnets.experiments.robustness.masking import Report, examine
from dcnets.experiments.robustness.transfer import Matrix, transfer_matrix
from dcnets.experiments.robustness.trials import SPOKEN, Trial, Watch, unwatched


@dataclass(frozen=True)
class Wanted:
    """What to measure: attacks at each ε, the attack that is tried by transfer, a masking report, Lipschitz constants.

    The ball and the steps of the Lipschitz constants are those of `lipschitz`, a trial of PGD.
    """

    attacks: Sequence[Sequence[Trial]] = ()
    transfer: Trial | None = None
    masking: Plan | None = None
    lipschitz: Trial | None = None

    def __post_init__(self) -> None:
        for each in self.attacks:
            if isinstance(each, Trial):
                raise TypeError(f"attacks are lists of trials, one trial an ε, got {each}; give [[trial]], or [over(trial)]")

    def jobs(self, networks: int, substitutes: int) -> int:
        """About how many things are watched, for a bar."""
        each = sum(bool(trial.eps) for trials in self.attacks for trial in trials) + bool(self.lipschitz)
        each += len(self.masking.trials()) + 5 + substitutes if self.masking else 0
        return networks * each + (substitutes if self.transfer else 0)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured of a network; the matrix is that of all networks.

    `attacks` are the trials of each curve. `blocked` says, by their names, why other attacks have none.
    """

    name: str
    wanted: Wanted
    clean: Withstood
    curves: tuple[Curve, ...]
    attacks: tuple[Sequence[Trial], ...]
    blocked: Mapping[str, str]
    matrix: Matrix | None
    report: Report | None
    local: Local | None
    seconds: float

    @property
    def worst(self) -> Curve:
        """What withstood all attacks that have a curve, at an ε and at smaller ones."""
        return worst_curve(self.curves)


def evaluate(
    networks: Mapping[str, nn.Module], x: Tensor, y: Tensor, wanted: Wanted, *, batch: int,
    substitutes: Mapping[str, nn.Module] | None = None, watch: Watch = unwatched,
) -> dict[str, Evaluation]:  # fmt: skip
    """Measure what is wanted of each network, by its name, on images x in [0, 1]; the substitutes attack by transfer.

    A gradient that cannot be followed is an error, but for networks that get a masking report, which speaks of it.
    """
    others, matrix = substitutes or {}, None
    if wanted.transfer:
        if not others:
            raise ValueError("wanted.transfer needs substitutes, whose examples are tried; give some, or leave it out")
        matrix = transfer_matrix(others, networks, x, y, wanted.transfer, batch=batch, watch=watch)
    return {name: measured(name, each, others, x, y, wanted, matrix, batch, watch) for name, each in networks.items()}


def measured(
    name: str, model: nn.Module, substitutes: Mapping[str, nn.Module], x: Tensor, y: Tensor, wanted: Wanted,
    matrix: Matrix | None, batch: int, watch: Watch,
) -> Evaluation:  # fmt: skip
    """The same for one network, whose own examples are no black box."""
    begin = time.perf_counter()
    before = clean(model, x, y, batch=batch)
    curves, attacks, blocked = list[Curve](), list[Sequence[Trial]](), dict[str, str]()
    for trials in wanted.attacks:
        try:
            curves.append(curve(model, x, y, trials, batch=batch, before=before, watch=watch))
            attacks.append(trials)
        except (GradientError, NoGradientError) as error:
            if not wanted.masking:
                raise
            blocked[SPOKEN[trials[0].attack]] = str(error)
    report = local = None
    if wanted.lipschitz:
        local = within(model, x, y, wanted.lipschitz, batch=batch, watch=watch)
    if wanted.masking:
        others = {each: other for each, other in substitutes.items() if each != name}
        report = examine(model, x, y, wanted.masking, batch=batch, substitutes=others, watch=watch)
    seconds = time.perf_counter() - begin
    return Evaluation(name, wanted, before, tuple(curves), tuple(attacks), blocked, matrix, report, local, seconds)
