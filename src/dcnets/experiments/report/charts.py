"""What a figure is before it is drawn: charts of curves, dots or arrows, images, and words for what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Point = tuple[float, float]
Pixel = tuple[int, int, int, int]
"""Red, green, blue and opacity from 0 to 255."""
DIGITS = 5
"""Significant digits of a number in a page."""


@dataclass(frozen=True)
class Axis:
    """An axis: its label, whether it is logarithmic, its ticks where they are not numbers of its own choice, and its ends.

    Ends that are not finite are the axis's own choice too.
    """

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    reach: Point | None = None


@dataclass(frozen=True)
class Series:
    """One curve, one group of dots or rings, arrows from each even point to the odd one after it, or a circle.

    `band` is the lowest and highest value at each point of a curve. `colour` is a place in the palette. `sign` is written
    at the middle of a group of dots.
    """

    name: str
    points: tuple[Point, ...]
    kind: Literal["line", "dots", "rings", "arrows", "circle"] = "line"
    band: tuple[Point, ...] = ()
    colour: int = 0
    sign: str = ""


@dataclass(frozen=True)
class Chart:
    """A plot of some series, and its words for those who do not see it; `equal` axes have one scale.

    `note` stands below it on a page, `mark` below its title in a file.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    alt: str
    equal: bool = False
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Image:
    """Rows of pixels, and what stands below."""

    pixels: Sequence[Sequence[Pixel]]
    title: str
    alt: str
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure: what it shows, its charts and images, in words what it lacks, and how many charts a file has in a row."""

    key: str
    title: str
    told: str
    charts: tuple[Chart, ...] = ()
    images: tuple[Image, ...] = ()
    missing: tuple[str, ...] = ()
    beside: int = 2

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.charts and not self.images


def brief(value: float) -> float | None:
    """A number with few digits; None, which is a gap in a curve, where it is not finite."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def briefly(points: Iterable[Point]) -> list[list[float | None]]:
    """Points with few digits."""
    return [[brief(value) for value in point] for point in points]


def plain(chart: Chart) -> dict[str, Any]:
    """A chart as JSON has it, for the script of the page."""

    def axis(of: Axis) -> dict[str, Any]:
        reach = of.reach if of.reach and all(map(math.isfinite, of.reach)) else None
        return {"label": of.label, "log": of.log, "ticks": [list(tick) for tick in of.ticks], "reach": reach}

    return {
        "title": chart.title, "alt": chart.alt, "equal": chart.equal, "x": axis(chart.x), "y": axis(chart.y),
        "series": [
            {"name": each.name, "kind": each.kind, "colour": each.colour, "sign": each.sign,
             "points": briefly(each.points), "band": briefly(each.band)}
            for each in chart.series
        ],
    }  # fmt: skip
