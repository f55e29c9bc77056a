"""What `dcnets reproduce` says afterwards: what came of each run, the table beside the paper's, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from dcnets.cli.output import show
from dcnets.cli.reproducing import Outlook, described_other
from dcnets.experiments import paper
from dcnets.experiments.paper import Cell, Published
from dcnets.experiments.report.rule import mean_of, printed
from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.lines import Line, value
from dcnets.experiments.reproduce.plan import Plan


def teller(plan: Plan) -> Callable[[Job, Line], str]:
    """What is said of a run that has ended: its cells, its number and the paper's."""

    def tell(job: Job, line: Line) -> str:
        cells = [cell for cell, jobs in plan.cells.items() if job in jobs and not cell.under_attack]
        shown = [f"{printed(value(cell, line))} (paper {printed(cell.published)})" for cell in cells]
        return f"{job.title}: {', '.join(dict.fromkeys(shown)) or printed(line['top1_error'])}"

    return tell


def numbers(plan: Plan) -> None:
    """Each cell beside the paper's."""
    columns = ("table", "cell", "paper", "here", "runs")
    rows = []
    for cell, jobs in plan.cells.items():
        came = values(cell, jobs, plan)
        rows.append((cell.place, cell.name, printed(cell.published), mean_of(came) if came else "–", str(len(came))))
    show(columns, rows, ("paper", "here", "runs"), cut=("runs", "paper"))
    click.echo("in percent: top-1 error, of Table 6 top-5 error, of Tables 7 and 8 accuracy")


def values(cell: Cell, jobs: Iterable[Job], plan: Plan) -> list[Published]:
    """A cell's numbers, those of the runs that are there."""
    found = [number(cell, job, plan) for job in jobs if job in plan.there]
    return [each for each in found if each is not None]


def number(cell: Cell, job: Job, plan: Plan) -> Published:
    """A cell's number from one run: that of its line, or what was measured under attack; None where there is none yet."""
    if job not in plan.there:
        return None
    if cell.under_attack and plan.there[job]["top1_error"] != "N/C":
        return plan.measured.get((cell, job))
    return "N/C" if cell.under_attack else value(cell, plan.there[job])


def metric(cell: Cell) -> str:
    """What a cell counts; a network that only a figure has tells its error."""
    return paper.TABLES[f"table{cell.table}"].metric if cell.table else "top1_error"


def reasons(failed: Mapping[Job, str]) -> str:
    """Why runs failed, each reason once."""
    return "; ".join(dict.fromkeys(failed.values()))


def described(plan: Plan, outlook: Outlook, failed: Mapping[Job, str] | None = None) -> dict[str, Any]:
    """The plan, and what came of it, as one JSON object."""
    missing = set(plan.missing)
    return {
        "device": outlook.device, "seconds": outlook.seconds, "jobs": outlook.lanes, "runs": len(plan.jobs),
        "missing": len(missing),
        "cells": [
            {"table": cell.table or None, "figure": cell.figure, "metric": metric(cell), "cell": cell.name,
             "published": cell.published, "attack": cell.attack,
             "runs": [{"recipe": job.recipe.name, "seed": job.recipe.seed, "there": job not in missing,
                       "value": number(cell, job, plan)} for job in jobs]}
            for cell, jobs in plan.cells.items()
        ],
        "not_the_same": [described_other(other) for other in plan.others],
        "failed": {job.title: told for job, told in (failed or {}).items()},
    }  # fmt: skip
