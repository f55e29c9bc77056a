"""What `dcnets attack` reads: distances as 8/255, steps as eps/4, lists of attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcnets.cli.words import Word
from dcnets.naming import choose, quotient

ATTACKS = ("fgsm", "bim", "pgd", "square", "autoattack")
GRID = "grid"


@dataclass(frozen=True)
class Steps:
    """The length of a step: a number, or a part of ε."""

    length: float | None = None
    parts: float | None = None

    def at(self, eps: float) -> float:
        """The length where the ball is that of ε."""
        return eps / self.parts if self.parts else self.length or 0.0


def number(option: str, text: str) -> float:
    """A finite number, 0 or more, as 0.03 or 8/255."""
    try:
        value = quotient(text)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option} is a number, 0 or more, as 8/255 or 0.03, got {text!r}")
    return value


def one_amount(option: str) -> Word:
    """A distance."""
    return Word("number", lambda text: number(option, text), lambda: ())


def amounts(option: str) -> Word:
    """Distances in rising order, or the word grid."""

    def read(text: str) -> list[float]:
        if text.strip() == GRID:
            from dcnets.experiments.robustness import curves

            return list(curves.GRID)
        return sorted({number(option, part) for part in text.split(",")})

    return Word("numbers", read, lambda: (GRID,))


def step_length() -> Word:
    """The length of a step."""

    def read(text: str) -> Steps:
        head, slash, parts = text.strip().partition("/")
        if head.strip() not in ("eps", "ε"):
            return Steps(length=number("--step", text))
        value = number("--step", parts) if slash else 1.0
        if not value:
            raise ValueError(f"--step is a number or a part of ε, as eps/4, got {text!r}")
        return Steps(parts=value)

    return Word("number", read, lambda: ("eps/4",))


def chosen() -> Word:
    """Attacks, each once, in the order given."""

    def read(text: str) -> list[str]:
        return list(dict.fromkeys(choose("attack", part.strip(), ATTACKS) for part in text.split(",")))

    return Word("attacks", read, lambda: ATTACKS)
