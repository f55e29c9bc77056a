"""A study carried out: task after task on one device, a line as soon as each is done."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dcnets.experiments import results
from dcnets.experiments.robustness import lipschitz
from dcnets.experiments.robustness.findings import percent
from dcnets.experiments.robustness.masking import examine
from dcnets.experiments.robustness.setting import GRID, Frozen, Setting, nearest
from dcnets.experiments.robustness.study import lines
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.robustness.study.networks import Network
from dcnets.experiments.robustness.study.tasks import Exam, Task
from dcnets.experiments.robustness.subjects import true_float32

Tell = Callable[[str], None]
Done = Callable[[float], None]
"""What is told the cost of a task that has ended."""


def missing(tasks: Iterable[Task], found: Iterable[Mapping[str, Any]]) -> list[Task]:
    """What of the tasks has no line yet."""
    there = lines.known(found)
    return [rest for task in tasks if (rest := lines.left(task, there))]


def expected(tasks: Sequence[Task], arena: Arena) -> float:
    """About how many seconds some tasks take here: gradients are timed on one network of each kind."""
    kinds = {bool(task.victim.recipe.operator): task.victim for task in tasks}
    with true_float32():
        paces = {kind: arena.pace(arena.model(victim)) for kind, victim in kinds.items()}
    return sum(task.cost * paces[bool(task.victim.recipe.operator)] for task in tasks)


@dataclass(frozen=True)
class Ended:
    """A task that was tried: what is told of its line, or of why it failed."""

    task: Task
    told: str
    failed: bool = False


class Book:
    """What has come of some tasks: each is told, its cost is done, and those that failed are kept by their names."""

    def __init__(self, tell: Tell, done: Done) -> None:
        self.tell, self.done, self.failed = tell, done, dict[str, str]()

    def note(self, ended: Ended) -> None:
        """Book a task."""
        if ended.failed:
            self.failed[ended.task.name] = ended.told
        self.tell(f"{ended.task.name}: {'failed: ' if ended.failed else ''}{ended.told}")
        self.done(ended.task.cost)


def carry_out(tasks: Sequence[Task], arena: Arena, file: Path, tell: Tell, done: Done = lambda cost: None) -> dict[str, str]:
    """Do the tasks, each with its line; what is told of those that cannot be done, by their names."""
    book = Book(tell, done)
    for task in tasks:
        book.note(attempt(task, arena, file))
    return book.failed


def attempt(task: Task, arena: Arena, file: Path) -> Ended:
    """Do a task and append its line; an error is told, but for a full memory, which the others would meet too."""
    try:
        with true_float32():
            line = perform(task, arena)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, ImportError, RuntimeError) as error:
        return Ended(task, " ".join(str(error).split()), failed=True)
    results.append(file, line)
    return Ended(task, told(line))


def perform(task: Task, arena: Arena) -> dict[str, Any]:
    """Measure, and make the line."""
    begin = time.perf_counter()
    clean, (x, y) = arena.right(task.victim, task.span), arena.images(task.span)
    model, device = arena.model(task.victim), arena.device.type
    outcomes = [arena.outcome(task.victim, exam.maker or task.victim, exam.trial, task.span) for exam in task.exams]
    line = lines.exam_line(task, device, clean, outcomes)
    if task.plan:
        others = {each.name: arena.model(each) for each in task.substitutes}
        line["makers"] = {each.name: lines.described(each) for each in task.substitutes}
        report = examine(model, x, y, task.plan, batch=arena.batch, substitutes=others, watch=arena.watch)
        line["masking"] = report.line()
    if task.ball:
        local = lipschitz.within(model, x, y, task.ball, batch=arena.batch, watch=arena.watch)
        line["lipschitz"] = lipschitz.told(task.ball, local)
    return {**line, "seconds": round(time.perf_counter() - begin, 2)}


def search(baselines: Sequence[Network], arena: Arena) -> Task:
    """What `seek` is to try, as a task: for what it costs."""
    trials = dict.fromkeys(trial for setting in GRID for trial in setting.trials)
    return Task("setting", baselines[0], arena.halves[1], tuple(Exam(trial) for _ in baselines for trial in trials))


def seek(baselines: Sequence[Network], arena: Arena, file: Path, tell: Tell) -> Frozen:
    """Find the setting under which the baselines, on the mean, come nearest to the paper's, and freeze it in a line.

    It is sought on one half of the test images and told of on the other: the networks have seen all training images, on
    which their margins are those of what is known by heart.
    """
    begin, span = time.perf_counter(), arena.halves[1]
    found: dict[Setting, tuple[float, float]] = {}
    with true_float32():
        for setting in GRID:
            fgsm, bim = (
                statistics.fmean(100 * arena.outcome(each, each, trial, span).accuracy for each in baselines)
                for trial in setting.trials
            )
            found[setting] = fgsm, bim
    chosen = nearest(found)
    spent = time.perf_counter() - begin
    results.append(file, lines.setting_line(baselines, arena.device.type, span, found, chosen, spent))
    tell(f"nearest to the paper's baseline: {chosen}: FGSM {found[chosen][0]:.2f}, BIM {found[chosen][1]:.2f}; frozen")
    return Frozen(chosen, span[0])


def told(line: Mapping[str, Any]) -> str:
    """A line in a few words."""
    if "masking" in line:
        return str(line["masking"]["verdict"])
    if "lipschitz" in line:
        return f"constant {line['lipschitz']['constant']['q50']:.3g}, reach {line['lipschitz']['reach']['q50']:.3g}"
    shown = [f"{each['attack']} {percent(each['accuracy'])}" for each in line["attacks"][:4]]
    more = f" and {len(line['attacks']) - 4} more" if len(line["attacks"]) > 4 else ""
    return f"{percent(line['clean'])} right, " + ", ".join(shown) + more
