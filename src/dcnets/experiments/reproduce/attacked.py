"""Cells that are accuracies under attack: their networks are trained by now, and are attacked here in the main setting."""

from __future__ import annotations

from pathlib import Path

from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.plan import Plan
from dcnets.experiments.robustness.study.networks import Network, trained
from dcnets.experiments.robustness.study.tasks import Exam, Task


def tasks(plan: Plan, images: int | None) -> tuple[list[Task], list[str]]:
    """What is to be measured, one task a network that is there, and what is told of networks that cannot be attacked."""
    exams: dict[tuple[Network, int], dict[Exam, None]] = {}
    networks: dict[Job, Network | None] = {}
    told: list[str] = []

    def network(job: Job) -> Network | None:
        if job not in networks:
            some, why = trained([job.folder]) if plan.at_hand(job) else ([], [])
            told.extend(why)
            networks[job] = some[0] if some else None
        return networks[job]

    for target in plan.unmeasured:
        for maker in target.makers:
            victim, made_on = network(target.job), network(maker)
            if victim and made_on:
                own = exams.setdefault((victim, target.count(images)), {})
                own[Exam(target.trial, None if made_on == victim else made_on)] = None
    return [Task("tables", victim, (0, count), tuple(some)) for (victim, count), some in exams.items()], told


def beside_file(results_file: Path) -> Path:
    """The file of the lines of attacks: beside that of the runs."""
    return results_file.with_name("attacks.jsonl")
