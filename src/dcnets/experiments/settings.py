"""How a run is carried out, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcnets.experiments.evaluate import Scores
from dcnets.experiments.recipe import Recipe


@dataclass(frozen=True)
class Settings:
    """How a run is carried out; none of it changes what is computed, but for rounding."""

    compiled: bool = False
    captured: bool = False
    pieces: int = 1
    sync_bn: bool = False
    sync_radius: bool = False
    save_seconds: float = 60.0
    fresh: bool = False
    quiet: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if not self.save_seconds >= 0:
            raise ValueError(f"save_seconds must be 0 or more, got {self.save_seconds!r}")


@dataclass
class Outcome:
    """What came of a run: the last test's scores, every test by step, whether and how it diverged, the updates done now."""

    recipe: Recipe
    steps: int
    scores: Scores | None
    history: list[dict[str, Any]]
    seconds: float
    preparation: float
    divergence: str | None = None
    updates: int = 0
