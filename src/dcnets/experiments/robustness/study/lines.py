"""The lines of a study: what each says, and which measurements are there already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import dcnets
from dcnets.experiments import jsonlines, results
from dcnets.experiments.checkpoint import short_name
from dcnets.experiments.recipe import DEFAULTS
from dcnets.experiments.robustness.accuracy import Withstood
from dcnets.experiments.robustness.lipschitz import RIGHT
from dcnets.experiments.robustness.setting import GRID, Frozen, Setting, distance, published
from dcnets.experiments.robustness.study.arena import Span
from dcnets.experiments.robustness.study.legible import illegible
from dcnets.experiments.robustness.study.networks import Network, family_of
from dcnets.experiments.robustness.study.tasks import Exam, Task

Line = Mapping[str, Any]


def read(path: Path) -> tuple[list[Line], list[str]]:
    """The lines of a study's file, and what is told of torn ones."""
    lines, told = jsonlines.read_and_tell(path)
    return [line for line in lines if "part" in line], told


# -- what is there -----------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A value as a text that equal values share."""
    return json.dumps(jsonlines.plain(value), sort_keys=True)


def who(recipe: Mapping[str, Any], step: int) -> str:
    """A network in a key: every field of its recipe and its update; fields younger than a line had their default."""
    return text([{**DEFAULTS, **recipe}, step])


def key(line: Line) -> tuple[str, ...]:
    """What all measurements of a line share: version, part, network, images, arithmetic."""
    version, precision = str(line["dcnets"]), str(line["precision"])
    return version, line["part"], who(line["recipe"], line["step"]), text([line["first"], line["images"]]), precision


def known(lines: Iterable[Line]) -> set[tuple[str, ...]]:
    """The keys of all measurements in some lines."""
    found: set[tuple[str, ...]] = set()
    for line in lines:
        if line["part"] == "setting" or illegible(line):
            continue
        made_on = {name: who(each["recipe"], each["step"]) for name, each in line.get("makers", {}).items()}
        for each in line.get("attacks", []):
            settings = {name: value for name, value in each.items() if name not in ("accuracy", "error", "made_on")}
            found.add((*key(line), text(settings), made_on.get(each["made_on"], "")))
        if "masking" in line:
            found.add((*key(line), text(line["masking"]["plan"]), text(sorted(made_on.values()))))
        if "lipschitz" in line:
            ball = {name: line["lipschitz"][name] for name in line["lipschitz"] if name not in MEASURED}
            found.add((*key(line), "lipschitz", text(ball)))
    return found


MEASURED = ("constant", "slope", "margin", "reach")


def left(task: Task, there: set[tuple[str, ...]]) -> Task | None:
    """What of a task is not there; None where all of it is."""
    own = key(head(task))
    if task.plan:
        others = sorted(who(asdict(each.recipe), each.step) for each in task.substitutes)
        return None if (*own, text(asdict(task.plan)), text(others)) in there else task
    if task.ball:
        return None if (*own, "lipschitz", text({**task.ball.settings(), "of": RIGHT})) in there else task
    exams = tuple(
        exam for exam in task.exams
        if (*own, text(settings(exam)), who(asdict(exam.maker.recipe), exam.maker.step) if exam.maker else "") not in there
    )  # fmt: skip
    return replace(task, exams=exams) if exams else None


# -- what a line says --------------------------------------------------------------------------------------------------


def settings(exam: Exam) -> dict[str, Any]:
    """An attack with all that decides it."""
    return {"attack": exam.trial.attack, **exam.trial.settings()}


def head(task: Task) -> dict[str, Any]:
    """What a task's line begins with."""
    return {"dcnets": dcnets.__version__, "part": task.part, **described(task.victim), "first": task.span[0],
            "images": task.count, "precision": "float32"}  # fmt: skip


def described(network: Network) -> dict[str, Any]:
    """A network: its name, its recipe, its checkpoint."""
    return {"network": network.name, "checkpoint": short_name(network.checkpoint), "step": network.step,
            "recipe": asdict(network.recipe)}  # fmt: skip


def exam_line(task: Task, device: str, clean: Withstood, outcomes: Sequence[Withstood]) -> dict[str, Any]:
    """The line of some attacks; accuracies are shares of the images."""
    makers = {exam.maker.name: described(exam.maker) for exam in task.exams if exam.maker}
    attacks = [
        {**settings(exam), "made_on": exam.maker.name if exam.maker else None, "accuracy": outcome.accuracy,
         "error": outcome.error}
        for exam, outcome in zip(task.exams, outcomes, strict=True)
    ]  # fmt: skip
    return {**results.environment(device), **head(task), "clean": clean.accuracy, "attacks": attacks, "makers": makers}


def setting_line(
    baselines: Sequence[Network], device: str, span: Span, found: Mapping[Setting, tuple[float, float]], chosen: Setting,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """The line that freezes a setting: all that was tried on the baselines, and which was nearest to the paper's."""
    tried = [
        {"levels": each.levels, "rule": each.rule, "fgsm": fgsm, "bim": bim, "distance": distance(fgsm, bim)}
        for each, (fgsm, bim) in found.items()
    ]
    return {
        **results.environment(device), "part": "setting", **described(baselines[0]),
        "seeds": [each.recipe.seed for each in baselines], "first": span[0], "images": span[1] - span[0],
        "precision": "float32", "published": published(), "levels": chosen.levels, "rule": chosen.rule, "tried": tried,
        "seconds": round(seconds, 2),
    }  # fmt: skip


def frozen_in(lines: Iterable[Line], family: tuple[str, str, float]) -> Frozen | None:
    """The setting that was frozen with the baselines of a family: the first that was found stays."""
    for line in lines:
        if line["part"] == "setting" and not illegible(line) and family_of(line["recipe"]) == family:
            found = (each for each in GRID if (each.levels, each.rule) == (line["levels"], line["rule"]))
            return next((Frozen(each, line["first"]) for each in found), None)
    return None
