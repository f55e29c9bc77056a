"""A row of the table as it is shown."""

from __future__ import annotations

from typing import Any

COLUMNS = ("row", "what", "baseline", "measured", "ratio", "control", "bar", "stretch", "met")
NUMBERS = COLUMNS[2:-1]


def cells(found: dict[str, Any]) -> tuple[str, ...]:
    """A row as it is shown, below `COLUMNS`."""
    limits = ["–" if found[name] is None else f"{found[name]:.2f}" for name in ("bar", "stretch")]
    sides = [f"{four_digits(found[name])} {found['unit']}" for name in ("baseline", "measured")]
    return found["row"], found["what"], *sides, f"{found['ratio']:.3f}", f"{found['control']:.3f}", *limits, met(found)


def four_digits(number: float) -> str:
    """A number with four digits, or as many as it has before the point."""
    return f"{number:.4g}" if number < 1000 else f"{number:,.0f}"


def met(found: dict[str, Any]) -> str:
    """Which of its bars a row meets."""
    if found["bar"] is None:
        return "–"
    return "stretch" if found["ratio"] <= found["stretch"] else "yes" if found["ratio"] <= found["bar"] else "no"
