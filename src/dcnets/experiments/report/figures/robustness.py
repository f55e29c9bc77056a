"""Accuracy over ε, from the lines of `dcnets study` and of `dcnets attack`; not in the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dcnets.experiments.paper.tables import TARGETS
from dcnets.experiments.report.charts import Axis, Chart, Picture, Point, Series
from dcnets.experiments.report.figures.fitting import fitting
from dcnets.experiments.reproduce.lines import Line
from dcnets.experiments.robustness.study.words import SPOKEN as TRAININGS
from dcnets.experiments.robustness.study.words import column_of, title_of, words_for
from dcnets.experiments.robustness.trials import SPOKEN, eps_told
from dcnets.experiments.scaling import scale_of, telling

WIDE = 8
"""The ratio of the largest to the smallest ε from which each doubling takes as much room as the others."""
TOLD = (
    "Not in the paper: the share of test images that are right as they are and after the attack. The mean over seeds, "
    "shaded from the lowest to the highest."
)


class Panel(NamedTuple):
    """What the networks of a chart share."""

    data: str
    network: str
    scale: float
    training: str
    variant: str
    attack: str
    how: str
    images: int

    @property
    def title(self) -> str:
        """The chart in words."""
        attack = ", ".join(filter(None, (SPOKEN[self.attack], self.how)))
        return f"{', '.join(filter(None, (self.training, self.variant)))}: {attack}"

    @property
    def place(self) -> tuple[object, ...]:
        """Where it stands among others: those of one training side by side."""
        trainings = list(TRAININGS.values())
        own = (self.data, self.network, -self.scale, bool(self.variant), self.variant, self.images)
        return (*own, trainings.index(self.training), list(SPOKEN).index(self.attack), self.how)


Found = dict[Panel, dict[str, dict[int, dict[float, float]]]]
"""The accuracy in percent at each ε, by panel, operator and seed."""


def curves(lines: Iterable[Line], version: str | None = None) -> Picture:
    """A chart for each attack and each training, a curve for each operator, of lines that count with a version."""
    found: Found = {}
    fit, left = fitting(lines, version)
    others = (left,) if left else ()
    for line in fit:
        words = words_for(line["recipe"])
        for panel, points in measured(line):
            own = found.setdefault(panel, {}).setdefault(words.operator, {}).setdefault(line["recipe"].get("seed", 0), {})
            own |= {0.0: 100 * float(line["clean"])} | points
    title = "Accuracy under attack over ε"
    if not found:
        return Picture("robustness", title, TOLD, missing=("No network is attacked at several ε yet.", *others))
    shown = sorted(telling_panels(found), key=lambda panel: panel.place)
    sets = list(dict.fromkeys((panel.data, panel.network, panel.scale, panel.images) for panel in shown))
    beside = max(sum(panel[:5] == other[:5] for other in shown) for panel in shown)
    told = " ".join([TOLD, f"{'; '.join(described(*each) for each in sets)}.", *others])
    charts = tuple(chart(panel, found[panel], len(sets) > 1) for panel in shown)
    return Picture("robustness", title, told, charts, missing=others, beside=beside)


def telling_panels(found: Found) -> Iterator[Panel]:
    """The panels that are shown: those of shorter schedules where the longer ones lack a network."""
    alike: dict[Panel, dict[float, list[Panel]]] = {}
    for panel in found:
        alike.setdefault(panel._replace(scale=1.0, images=0), {}).setdefault(panel.scale, []).append(panel)
    for by_scale in alike.values():
        names = {scale: {name for panel in panels for name in found[panel]} for scale, panels in by_scale.items()}
        for scale in telling(names):
            yield from by_scale[scale]


def measured(line: Line) -> Iterator[tuple[Panel, dict[float, float]]]:
    """The panels that a line has a curve for, with the accuracies in percent at each ε."""
    recipe, words = line["recipe"], words_for(line["recipe"])
    kinds: dict[tuple[str, str], dict[float, float]] = {}
    own = [each for each in line["attacks"] if each.get("made_on") is None and each["eps"] and each["norm"] == "linf"]
    for each in own:
        kinds.setdefault((each["attack"], how(each, own)), {})[float(each["eps"])] = 100 * float(each["accuracy"])
    for (attack, words_of_it), points in kinds.items():
        if len(points) > 1:
            yield Panel(
                recipe["data"], recipe["network"], scale_of(recipe["name"]), words.training, words.variant, attack,
                words_of_it, int(line["images"]),
            ), points  # fmt: skip


def how(attack: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """The settings of an attack besides ε; its step is a part of ε if it is that of others at another ε too."""
    told = []
    if attack.get("steps"):
        part, alike = part_of_eps(attack), [each for each in others if kind(each) == kind(attack)]
        in_parts = any(each["eps"] != attack["eps"] and part_of_eps(each) == part for each in alike)
        told.append(f"{attack['steps']} steps of {part if in_parts else eps_told(attack['step'])}")
    told += [f"{attack[name]} {name}" for name in ("restarts", "queries") if (attack.get(name) or 1) > 1]
    return ", ".join([*told, *([f"seed {attack['seed']}"] if attack.get("seed") else [])])


def kind(attack: Mapping[str, Any]) -> tuple[Any, ...]:
    """An attack with what decides it, ε and the step excepted."""
    return tuple(attack.get(name) for name in ("attack", "steps", "restarts", "queries", "seed"))


def part_of_eps(attack: Mapping[str, Any]) -> str | None:
    """The step of an attack as a part of ε; None where it has none."""
    return f"ε/{attack['eps'] / attack['step']:.3g}" if attack.get("steps") else None


def described(data: str, network: str, scale: float, images: int) -> str:
    """The networks and images of some charts in words."""
    schedule = f", schedules × {scale:g}" if scale != 1 else ""
    return f"{title_of(data)}, {network}{schedule}, the first {images:,} test images"


def chart(panel: Panel, found: Mapping[str, Mapping[int, Mapping[float, float]]], several: bool) -> Chart:
    """One attack on the networks of one training."""
    grid = sorted({eps for seeds in found.values() for own in seeds.values() for eps in own})
    places = spaced(grid)
    grey = all("/255" in eps_told(eps) for eps in grid if eps)
    ticks = tuple((places[eps], f"{round(255 * eps, 3) if grey else eps:.3g}") for eps in grid)
    names = sorted(found, key=lambda name: (column_of(name), name))
    colours = {name: column_of(name) + (0 if name in TARGETS else at) for at, name in enumerate(names)}
    series = tuple(curve(name, list(found[name].values()), places, colours[name]) for name in names)
    schedule = f", schedules × {panel.scale:g}" if panel.scale != 1 else ""
    title = f"{title_of(panel.data)}{schedule}, {panel.title}" if several else panel.title
    ends = "; ".join(f"{each.name} falls from {each.points[0][1]:.3g} to {each.points[-1][1]:.3g}" for each in series)
    end = places[grid[-1]]
    return Chart(
        title, Axis("ε · 255" if grey else "ε", ticks=ticks, reach=(-0.02 * end, 1.02 * end)),
        Axis("right, %", reach=(-2, 102)), series, f"{title}: accuracy in percent over ε. {ends}",
    )  # fmt: skip


def spaced(grid: Sequence[float]) -> dict[float, float]:
    """Where each ε stands on the axis: as it is, or a step for each doubling where they reach far."""
    above = [eps for eps in grid if eps]
    if above[-1] / above[0] <= WIDE:
        return {eps: eps for eps in grid}
    return {eps: float(at) for at, eps in enumerate(grid)}


def curve(name: str, seeds: Sequence[Mapping[float, float]], places: Mapping[float, float], colour: int) -> Series:
    """The mean over the seeds that were attacked at an ε."""
    points: list[Point] = []
    band: list[Point] = []
    for eps, place in places.items():
        if values := [own[eps] for own in seeds if eps in own]:
            points.append((place, statistics.fmean(values)))
            band.append((min(values), max(values)))
    return Series(name, tuple(points), band=tuple(band) if len(seeds) > 1 else (), colour=colour)
