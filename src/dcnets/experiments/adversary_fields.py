"""The fields of a recipe that each adversary takes, and what they may be; without torch, as recipes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEPS = ("adversary_eps", "adversary_step", "adversary_steps")
TAKES: dict[str | None, tuple[str, ...]] = {
    None: (),
    "fgsm": ("adversary_eps", "clean_share"),
    "pgd": (*STEPS, "clean_share"),
    "trades": (*STEPS, "trades_weight"),
}
"""What an adversary needs; anything else it has no use for."""
FIELDS = (*STEPS, "clean_share", "trades_weight")


def check_adversary(values: Mapping[str, Any]) -> None:
    """Refuse a field that is missing, one that would be ignored, and a value out of range."""
    adversary = values["adversary"]
    takes = TAKES[adversary]
    missing = [name for name in takes if values[name] is None]
    if missing:
        raise ValueError(f"adversary {adversary} needs {' and '.join(missing)} too; it takes {', '.join(takes)}")
    for name in FIELDS:
        value = values[name]
        if value is not None and name not in takes:
            to_whom = f"to adversary {adversary}" if adversary else "without an adversary"
            raise ValueError(f"{name}={value!r} means nothing {to_whom}; leave it out")
        if value is not None and not allowed(name, value):
            raise ValueError(f"{name} must be {RANGES[name]}, got {value!r}")


RANGES = {
    "adversary_eps": "above 0 and at most 1, a pixel's whole range (as 8/255)",
    "adversary_step": "above 0 and at most 1, a pixel's whole range (as 2/255)",
    "adversary_steps": "1 or more",
    "clean_share": "from 0 to less than 1 (at 1 no example would count: leave out the adversary)",
    "trades_weight": "above 0",
}


def allowed(name: str, value: float) -> bool:
    """Whether a value is in the range of its field."""
    if name in ("adversary_eps", "adversary_step"):
        return 0 < value <= 1
    return 0 <= value < 1 if name == "clean_share" else value > 0


def with_useless_emptied(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a recipe; where they choose another adversary, what that one has no use for is emptied, unless given."""
    if "adversary" not in changes:
        return dict(changes)
    takes = TAKES.get(changes["adversary"], FIELDS)
    return {name: None for name in FIELDS if name not in takes} | dict(changes)
