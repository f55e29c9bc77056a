"""The lines of a study as numbers to tell: by network and seed, by attack, mean and spread, rank correlation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcnets.experiments.robustness.study.words import words_for
from dcnets.experiments.robustness.trials import Trial
from dcnets.experiments.scaling import scale_of, stem_of
from dcnets.experiments.study_parts import FROZEN

Line = Mapping[str, Any]


@dataclass
class Collected:
    """Lines of one scale of schedules; of the same measurement the last line counts."""

    scale: float
    setting: Line | None = None
    lines: dict[tuple[str, str, int], list[Line]] = field(default_factory=dict)
    """By part, recipe and seed."""

    def stems(self, part: str) -> list[str]:
        """The recipes that have lines of a part, in the order of the tables: of several processes the quickest is first."""
        found = {stem: lines[0]["recipe"] for (own, stem, _), lines in self.lines.items() if own == part}
        return sorted(found, key=lambda stem: words_for(found[stem]).place)

    def seeds(self, part: str, stem: str) -> list[int]:
        """The seeds of a recipe."""
        return sorted(seed for own, name, seed in self.lines if (own, name) == (part, stem))

    def values(self, part: str, stem: str, get: Callable[[Line], Any]) -> dict[int, Any]:
        """What lines of a part say of a recipe, by seed; the last line that says anything counts."""
        found: dict[int, Any] = {}
        for seed in self.seeds(part, stem):
            for line in self.lines[part, stem, seed]:
                if (value := get(line)) is not None:
                    found[seed] = value
        return found

    def percents(self, part: str, stem: str, get: Callable[[Line], Any]) -> dict[int, float]:
        """The same for shares, in percent."""
        return {seed: 100 * share for seed, share in self.values(part, stem, get).items()}

    def accuracies(self, part: str, stem: str, trial: Trial | None, maker: str | None = None) -> dict[int, float]:
        """The accuracies in percent, by seed, under an attack that was made on the network itself or on a recipe's."""
        return self.percents(part, stem, lambda line: accuracy(line, trial, maker))

    def only(self, fits: Callable[[Line], bool]) -> Collected:
        """The same of some lines alone."""
        some = {key: [line for line in own if fits(line)] for key, own in self.lines.items()}
        return Collected(self.scale, self.setting, {key: own for key, own in some.items() if own})


def collect(lines: Iterable[Line], scale: float | None = None) -> Collected:
    """The lines of a scale; without one those of the longest schedules.

    Numbers in a sought setting that are of images that it was sought on are left out.
    """
    lines = list(lines)
    scales = [scale_of(line["recipe"]["name"]) for line in lines]
    if scale is None:
        scale = max(scales, default=1.0)
    lines = [line for line, own in zip(lines, scales, strict=True) if own == scale]
    found = Collected(scale, next((line for line in lines if line["part"] == "setting"), None))
    for line in lines:
        if line["part"] != "setting" and not (line["part"] == FROZEN and found.setting and overlap(line, found.setting)):
            found.lines.setdefault((line["part"], stem_of(line["recipe"]["name"]), line["recipe"]["seed"]), []).append(line)
    return found


def overlap(one: Line, other: Line) -> bool:
    """Whether two lines share images."""
    return bool(one["first"] < other["first"] + other["images"] and other["first"] < one["first"] + one["images"])


def accuracy(line: Line, trial: Trial | None, maker: str | None) -> float | None:
    """A share of a line: as the images are, or under an attack; `maker` is the recipe that they were made on."""
    if trial is None:
        return float(line["clean"])
    for each in line.get("attacks", []):
        made_on = line["makers"].get(each["made_on"], {}).get("recipe")
        if (stem_of(made_on["name"]) if made_on else None) != maker:
            continue
        if each["attack"] == trial.attack and all(same(each[name], value) for name, value in trial.settings().items()):
            return float(each["accuracy"])
    return None


def same(one: Any, other: Any) -> bool:
    """Equal, numbers but for rounding."""
    return abs(one - other) < 1e-9 if isinstance(one, float) and isinstance(other, float | int) else one == other


def spread(values: Iterable[float], digits: int = 1) -> str:
    """Mean ± standard deviation over seeds; a dash where there is nothing."""
    values = list(values)
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"
