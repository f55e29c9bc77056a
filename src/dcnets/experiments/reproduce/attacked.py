"""Cells that are accuracies under attack: their networks are trained by now, and are attacked here in the main setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import dcnets
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.jsonlines import plain
from dcnets.experiments.paper import Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.recipe import DEFAULTS
from dcnets.experiments.reproduce.lines import Line
from dcnets.experiments.reproduce.plan import Job, Plan
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.study.networks import Network, trained
from dcnets.experiments.robustness.study.tasks import Exam, Task
from dcnets.experiments.robustness.trials import Trial
from dcnets.experiments.scaling import stem_of

TRIALS = {"fgsm": MAIN.fgsm, "bim": MAIN.bim}
"""The paper tells no setting; that under which its baseline is met best is for `dcnets study` to find."""


@dataclass(frozen=True)
class Target:
    """A cell's run of one seed, and that of the network which its images are made on; `beside` is another such."""

    cell: Cell
    job: Job
    maker: Job
    beside: Job | None = None

    @property
    def trial(self) -> Trial:
        """The cell's attack."""
        return TRIALS[str(self.cell.attack)]

    @property
    def makers(self) -> list[Job]:
        """The runs whose networks make the images."""
        return [self.maker, *([self.beside] if self.beside else [])]


def targets(plan: Plan) -> Iterator[Target]:
    """All that is to be attacked, in the order of the cells, as far as the networks are there and have converged."""
    stems = {(stem_of(job.recipe.name), job.recipe.seed): job for job in plan.jobs}

    def there(job: Job) -> bool:
        return job in plan.there and plan.there[job]["top1_error"] != "N/C" and job.done >= plan.there[job]["steps"]

    for cell, jobs in plan.cells.items():
        if cell.attack not in TRIALS:
            continue
        for job in jobs:
            maker = stems[cell.substitute, SUBSTITUTE_SEED] if cell.substitute else job
            beside = stems[cell.beside, SUBSTITUTE_SEED] if cell.beside else None
            if there(job) and there(maker):
                yield Target(cell, job, maker, beside if beside and there(beside) else None)


def tasks(found: Iterable[Target], images: int | None) -> tuple[list[Task], list[str]]:
    """What is to be measured, one task a network, and what is told of networks that cannot be attacked."""
    exams: dict[Job, dict[Exam, None]] = {}
    networks: dict[Job, Network] = {}
    told: list[str] = []

    def network(job: Job) -> Network | None:
        if job not in networks:
            some, why = trained([job.folder])
            told.extend(why)
            networks.update({job: some[0]} if some else {})
        return networks.get(job)

    for target in found:
        for maker in target.makers:
            made_on = network(maker)
            if network(target.job) and made_on:
                own = maker == target.job
                exams.setdefault(target.job, {})[Exam(target.trial, None if own else made_on)] = None
    return [Task("tables", networks[job], (0, test_images(job, images)), tuple(some)) for job, some in exams.items()], told


def test_images(job: Job, images: int | None) -> int:
    """How many test images are attacked."""
    whole = CATALOGUE[job.recipe.data].test
    return whole if images is None else min(images, whole)


def accuracy(target: Target, maker: Job, lines: Sequence[Line], images: int | None) -> float | None:
    """A target's accuracy in percent, on images made on one of its makers, from the lines; None where it is not there."""
    wanted = plain({"attack": target.trial.attack, **target.trial.settings()})
    count = test_images(target.job, images)
    for line in lines:
        same = (line.get("dcnets"), line.get("first"), line.get("images")) == (dcnets.__version__, 0, count)
        if not (same and fits(line, target.job)):
            continue
        for each in line.get("attacks", []):
            made_on = line["makers"].get(each["made_on"])
            own = fits(made_on, maker) if made_on else maker == target.job
            if own and {name: each.get(name) for name in wanted} == wanted:
                return round(100 * float(each["accuracy"]), 3)
    return None


def fits(line: Line, job: Job) -> bool:
    """Whether what a line describes is a run's network, at its end."""
    return bool(line["step"] == job.updates) and plain({**DEFAULTS, **line["recipe"]}) == plain(asdict(job.recipe))


def beside_file(results_file: Path) -> Path:
    """The file of the lines of attacks: beside that of the runs."""
    return results_file.with_name("attacks.jsonl")
