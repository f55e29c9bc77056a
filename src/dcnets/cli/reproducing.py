"""What `dcnets reproduce` says and settles beforehand: the plan, how long it takes, how many at once, the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from dcnets.cli.failures import one_line
from dcnets.cli.output import show
from dcnets.cli.supply import found, supply
from dcnets.cli.train import spoken_time
from dcnets.experiments.data.catalogue import STREAMS
from dcnets.experiments.data.errors import DataError
from dcnets.experiments.paper import OWN_ROWS, Cell
from dcnets.experiments.report.rule import counted, printed
from dcnets.experiments.reproduce import warmup
from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.perform import Order
from dcnets.experiments.reproduce.place import Place
from dcnets.experiments.reproduce.plan import Other, Plan

Tell = Callable[[str], None]
MANY = 8
"""Lines that are not the same are shown up to this number."""


@dataclass(frozen=True)
class Outlook:
    """What is told before anything is run, and its numbers."""

    told: str
    seconds: float | None
    device: str
    lanes: int


def nothing(_: str) -> None:
    """Say nothing."""


def plan(plan: Plan, cells: Sequence[Cell]) -> None:
    """Each cell that can be run: how many of its runs are there; then the lines that are not the same."""
    columns = ("table", "cell", "paper", "recipe", "there", "to run")
    missing = set(plan.missing)
    rows = [
        (cell.place, cell.name, printed(cell.published), cell.recipe or "",
         str(sum(job not in missing for job in jobs)), str(sum(job in missing for job in jobs)))
        for cell, jobs in plan.cells.items()
    ]  # fmt: skip
    show(columns, rows, ("paper", "there", "to run"), cut=("recipe", "paper"))
    dashes = sum(cell.recipe is None for cell in cells)
    if dashes:
        click.echo(f"left out: {dashes} that are dashes, or that the paper took from elsewhere")
    for cell in (each for some in OWN_ROWS.values() for each in some if each in plan.cells):
        click.echo(f"not in the paper, a row of our own: {cell.name}")
    for other in plan.others[:MANY]:
        click.echo(f"there, but not the same: {described_other(other)}")
    if len(plan.others) > MANY:
        click.echo(f"… and {len(plan.others) - MANY} lines more that are not the same")


def described_other(other: Other) -> str:
    """A line that is not the same, and why."""
    recipe = other.line["recipe"]
    why = ", ".join(f"{name} {old!r}, not {new!r}" for name, (old, new) in other.differences.items())
    return f"{recipe['name']}, seed {recipe['seed']}, of {str(other.line.get('date'))[:10]}: {why}"


def expected(missing: Iterable[Job], order: Order, folder: Path, tell: Tell) -> dict[Job, float | None]:
    """The seconds that each run will take, by a warm-up here; None where it cannot be known."""
    import torch

    if order.device == "cuda" and not torch.cuda.is_available():  # the GPUs are those of a cluster
        return dict.fromkeys(missing)
    paces = warmup.paces(missing, order, folder, tell)
    return {job: pace.seconds(job) if pace else None for job, pace in paces.items()}


def lanes(expected: Mapping[Job, float | None], order: Order, folder: Path, wanted: int, tell: Tell) -> int:
    """The number of runs at once: as wanted, or one where a warm-up of the longest run says that more do not pay."""
    timed = {job: seconds for job, seconds in expected.items() if seconds is not None}
    if not timed:
        return wanted
    longest = max(timed, key=lambda job: timed[job])
    try:
        gain = warmup.gain(longest.recipe, order, folder, wanted, tell)
    except warmup.WarmupError as error:
        tell(f"one run at a time: {error}")
        return 1
    pays = gain >= warmup.PAYS
    tell(
        f"warm-up: {wanted} runs at once do {gain:.2f} times the updates of one ({longest.recipe.name}): "
        + (f"{wanted} at once" if pays else "one at a time")
    )
    return wanted if pays else 1


def outlook(plan: Plan, expected: Mapping[Job, float | None], lanes: int, where: Place, seeds: int, scale: float) -> Outlook:
    """How many cells and runs, how many are there, how long the rest takes."""
    known = [seconds for seconds in expected.values() if seconds is not None]
    seconds = max([sum(known) / lanes, *known]) if known or not expected else None
    runs = f"{counted(len(plan.cells), 'cell')}, {counted(seeds, 'seed')}: {counted(len(plan.jobs), 'run')}"
    there = len(plan.jobs) - len(expected)
    told = f"{runs}, of which {there} {'is' if there == 1 else 'are'} there and {len(expected)} to do"
    if known:
        told += f", in about {spoken_time(seconds or 0)} on {where.name}" + (f", {lanes} at once" if lanes > 1 else "")
    if untimed := len(expected) - len(known):
        told += f"; {untimed} {'is' if untimed == 1 else 'are'} not timed beforehand"
    if plan.unmeasured:
        one = len(plan.unmeasured) == 1
        told += f"\n{len(plan.unmeasured)} {'accuracy' if one else 'accuracies'} under attack {'is' if one else 'are'} then "
        told += "to be measured"
    if scale != 1:
        told += f"\nschedules × {scale:g}: these numbers are not the paper's"
    return Outlook(told, seconds, where.name, lanes)


def supplied(missing: Iterable[Job], folder: Path | None, *, quiet: bool) -> dict[Job, str]:
    """Download the data of the runs; the runs whose images are not there, as they come by hand alone or cannot be had."""
    jobs = list(missing)
    absent: dict[Job, str] = {}
    for name in dict.fromkeys(job.recipe.data for job in jobs):
        ours = [job for job in jobs if job.recipe.data == name]
        if name in STREAMS and found(name, folder) is None:
            absent |= dict.fromkeys(ours, f"its images are not there (data set {name}); --data DIR says where they are")
            continue
        try:
            supply(ours[0].recipe, folder, quiet=quiet)
        except (DataError, OSError) as error:
            absent |= dict.fromkeys(ours, one_line(error))
    return absent
