"""Lines that cannot be used, early and in words: those of a later dcnets may have fields and attacks that ours lacks."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Mapping
from types import NoneType
from typing import Any

from dcnets.experiments.recipe import Recipe, kind_of, refuse_unknown_fields
from dcnets.experiments.robustness.setting import RULES
from dcnets.experiments.robustness.trials import TAKES, Trial
from dcnets.experiments.study_parts import PARTS
from dcnets.naming import choose

Line = Mapping[str, Any]
NUMBER = (int, float)
HELD: dict[str, dict[str, Any]] = {
    "masking": {"clean": NUMBER, "robust": NUMBER, "attacks": dict, "verdict": str, "plan": dict},
    "lipschitz": dict.fromkeys(("constant", "slope", "reach"), dict),
}
"""What the numbers of a part have, which stand in a line under its name."""


def left_out(why: Mapping[str, int]) -> str:
    """How many lines are left out, each kind with its reason, as a sentence; empty where there are none."""
    told = [f"{count} {'line' if count == 1 else 'lines'} {reason}" for reason, count in why.items()]
    return f"Left out: {'; '.join(told)}." if told else ""


def sorted_out(lines: list[Line]) -> tuple[list[Line], Counter[str]]:
    """The lines that can be read, and how many cannot, by the reason."""
    reasons = [illegible(line) for line in lines]
    legible = [line for line, why in zip(lines, reasons, strict=True) if not why]
    return legible, Counter(f"that this dcnets cannot read ({why})" for why in reasons if why)


def illegible(line: Line) -> str | None:
    """Why a line of a study, or of `dcnets attack`, which is of no part, cannot be read; None where it can."""
    try:
        check(line)
    except (TypeError, ValueError) as error:
        return " ".join(str(error).partition(";")[0].split())
    return None


def check(line: Line) -> None:
    """Raise a ValueError or TypeError that tells the first thing in a line that is missing or unknown."""
    check_network(line)
    has(line, {"dcnets": str, "precision": str, "images": int})
    if "part" in line:
        has(line, {"part": str, "first": int})
        if line["part"] == "setting":
            check_setting(line)
            return
        choose("part", line["part"], PARTS)
        has(line, {"makers": dict})
    has(line, {"clean": NUMBER, "attacks": list})
    for maker in line.get("makers", {}).values():
        check_network(maker)
    for attack in line["attacks"]:
        check_attack(attack, line)
    if line.get("part") in HELD:
        has(line, {line["part"]: dict})
        has(line[line["part"]], HELD[line["part"]])
    if line.get("part") == "lipschitz":
        for name in HELD["lipschitz"]:
            has(line["lipschitz"][name], {"q50": (*NUMBER, str)})  # as text where it is not finite


def check_network(line: Line) -> None:
    """The same for what a line tells of a network."""
    has(line, {"step": int, "recipe": dict})
    recipe = line["recipe"]
    has(recipe, {"name": str, "data": str, "network": str, "seed": int})
    refuse_unknown_fields(recipe)
    values: Any = {name: tuple(value) if kind_of(name) is tuple else value for name, value in recipe.items()}
    Recipe(**values)


def check_setting(line: Line) -> None:
    """The same for what was sought."""
    has(line, {"seeds": list, "levels": NUMBER, "rule": str, "tried": list, "published": list})
    choose("rule", line["rule"], RULES)
    for each in line["tried"]:
        has(each, {"levels": NUMBER, "rule": str, "fgsm": NUMBER, "bim": NUMBER})


def check_attack(attack: Any, line: Line) -> None:
    """The same for an attack."""
    has(attack, {"attack": str, "accuracy": NUMBER})
    names = ("eps", "norm", *TAKES[choose("attack", attack["attack"], TAKES)])
    Trial(attack["attack"], **{name: attack[name] for name in names if name in attack})
    if "part" in line:
        has(attack, {"made_on": (str, NoneType)})
    maker = attack.get("made_on")
    if maker is not None and maker not in line.get("makers", {}):
        raise ValueError(f"an attack is made on {maker!r}, of which it tells nothing")


def has(where: Any, wanted: Mapping[str, Any]) -> None:
    """Raise for the first name that is not there, or that has a value of another kind."""
    if not isinstance(where, Mapping):
        raise TypeError(f"{reprlib.repr(where)} stands where names and values are expected")
    for name, kind in wanted.items():
        if name not in where:
            raise ValueError(f"it has no {name}")
        if not isinstance(where[name], kind):
            raise TypeError(f"its {name} is {reprlib.repr(where[name])}")
