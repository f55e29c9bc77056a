"""What a study measures: for each network some attacks, a masking report, Lipschitz constants; and about what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dcnets.experiments.robustness.curves import GRID, over
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.setting import GREY, MAIN, Frozen, Setting
from dcnets.experiments.robustness.study.arena import Span
from dcnets.experiments.robustness.study.networks import Network, makers_for, substitutes_for
from dcnets.experiments.robustness.trials import Trial
from dcnets.experiments.study_parts import FROZEN, PARTS

TODAY = Trial("pgd", MAIN.levels * GREY, step=2 * GREY, steps=50)
RESTARTS, QUERIES = 5, 1000
"""Today's attacks, at the ε of the main setting: PGD-50 with restarts, Square, AutoAttack."""
BALL = Trial("pgd", MAIN.levels * GREY, step=2 * GREY, steps=10)
"""The ball and the ascent of the Lipschitz constants."""
JUDGED = 0.4
"""The cost of an answer, in gradients."""
ENSEMBLE = {"natural": 300, "fgsm": 600}
"""About how many gradients AutoAttack takes for an image, by training; networks that withstand take more."""
STUBBORN = 3000


@dataclass(frozen=True)
class Exam:
    """One attack, on images made on the network itself or on another one."""

    trial: Trial
    maker: Network | None = None


@dataclass(frozen=True)
class Task:
    """What is measured of a network in one go, and gets one line: exams, or a masking report, or Lipschitz constants."""

    part: str
    victim: Network
    span: Span
    exams: tuple[Exam, ...] = ()
    plan: Plan | None = None
    ball: Trial | None = None
    substitutes: tuple[Network, ...] = ()

    @property
    def name(self) -> str:
        """The task in words."""
        return f"{self.victim.name}, {self.part}"

    @property
    def count(self) -> int:
        """The number of images."""
        return self.span[1] - self.span[0]

    @property
    def cost(self) -> float:
        """About how many gradients it takes; images made on another network count there, or are made already."""
        each = sum(JUDGED + (0 if exam.maker else exam.trial.steps or 1) for exam in self.exams)
        if self.ball:
            each += (self.ball.steps or 1) + 2
        if self.plan:
            natural = self.victim.training == "natural"
            steps = self.plan.trial.steps or 1
            runs = 6 + len(self.substitutes) + (self.plan.restarts if not natural else 1)  # BIM, PGD, rescaled, three far ε
            each += steps * runs + JUDGED * self.plan.queries * (0.2 if natural else 0.8)
            each += ENSEMBLE.get(self.victim.training, STUBBORN) if self.plan.autoattack else 0
        return each * self.count


@dataclass(frozen=True)
class Sizes:
    """The images of each measure: all of them, the half that a sought setting is told of, and few where it takes long."""

    whole: Span
    half: Span
    few: Span


Maker = Callable[[Network, Sequence[Network], Sizes], Task | None]


def tables(victim: Network, networks: Sequence[Network], sizes: Sizes) -> Task:
    """Tables 7 and 8 in the main setting: white-box, and by transfer from each substitute."""
    return attacked("tables", victim, substitutes_for(victim, networks), MAIN, sizes.whole)


def attacked(part: str, victim: Network, substitutes: Sequence[Network], setting: Setting, span: Span) -> Task:
    """FGSM and BIM in a setting, on the network itself and on substitutes."""
    exams = [Exam(trial, maker) for maker in (None, *substitutes) for trial in setting.trials]
    return Task(part, victim, span, tuple(exams))


def matrix(victim: Network, networks: Sequence[Network], sizes: Sizes) -> Task | None:
    """BIM in the main setting, made on each operator's network trained alike."""
    exams = tuple(Exam(MAIN.bim, maker) for maker in makers_for(victim, networks))
    return Task("matrix", victim, sizes.whole, exams) if exams else None


def curves(victim: Network, networks: Sequence[Network], sizes: Sizes) -> Task:
    """FGSM and BIM over ε."""
    trials = [trial for each in MAIN.trials for trial in over(each, [eps for eps in GRID if eps])]
    return Task("curves", victim, sizes.few, tuple(Exam(trial) for trial in trials))


def lipschitz(victim: Network, networks: Sequence[Network], sizes: Sizes) -> Task:
    """How steep it is."""
    return Task("lipschitz", victim, sizes.few, ball=BALL)


def masking(victim: Network, networks: Sequence[Network], sizes: Sizes, autoattack: bool = True) -> Task:
    """Today's attacks and the masking report, which are one."""
    plan = Plan(TODAY, restarts=RESTARTS, queries=QUERIES, autoattack=autoattack)
    return Task("masking", victim, sizes.few, plan=plan, substitutes=tuple(substitutes_for(victim, networks)))


def frozen(victim: Network, networks: Sequence[Network], sizes: Sizes, known: Frozen | None) -> Task | None:
    """Tables 7 and 8 in the sought setting, on images before those that it was sought on."""
    span = (0, min(sizes.half[1], known.first)) if known else (0, 0)
    return attacked(FROZEN, victim, substitutes_for(victim, networks), known.setting, span) if known and span[1] else None


MAKERS: dict[str, Maker] = {"tables": tables, "matrix": matrix, "curves": curves, "lipschitz": lipschitz}
"""The parts that need nothing else."""


def wanted(
    networks: Sequence[Network], parts: Sequence[str], sizes: Sizes, known: Mapping[tuple[str, str, float], Frozen],
    autoattack: bool = True,
) -> Iterator[Task]:  # fmt: skip
    """All tasks, part by part, so that what a stopped study has is broad; `known` has the sought settings of families."""
    makers = MAKERS | {
        FROZEN: lambda victim, networks, sizes: frozen(victim, networks, sizes, known.get(victim.family)),
        "masking": lambda victim, networks, sizes: masking(victim, networks, sizes, autoattack),
    }
    for part in (name for name in PARTS if name in parts):
        for victim in (each for each in networks if not each.substitute):
            if task := makers[part](victim, networks, sizes):
                yield task
