"""Tables 7 and 8 as a picture: the paper's accuracies beside ours, operator by operator."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Set

from dcnets.experiments.paper import TABLES, Published, Table
from dcnets.experiments.report.cells import Collected, Result
from dcnets.experiments.report.charts import Axis, Chart, Picture, Point, Series
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.scaling import telling

BOXES = {"table7": "white-box", "table8": "black-box"}
TOLD = f"A ring is the paper’s number, a dot is one of our seeds: accuracy at {MAIN}; the paper does not tell its setting."
Values = dict[int, float]
"""Accuracies in percent, by seed."""


def tables(found: Collected) -> Picture:
    """A chart for each table, training and schedule that was attacked; shorter ones where longer ones lack an operator."""
    title, charts = "Tables 7 and 8 beside the paper’s", []
    shown: dict[float, set[int]] = {}
    for name, box in BOXES.items():
        for training in dict.fromkeys(row.partition(", ")[0] for row in TABLES[name].rows):
            under = under_attack(found, name, training)
            for scale in telling({scale: there(under, scale) for scale in set().union(*map(scales_of, under))}):
                charts.append((-scale, chart(found, TABLES[name], box, training, scale)))
                shown.setdefault(scale, set()).update(each for result in under for each in images(result, scale))
    if not charts:
        return Picture("attacks", title, TOLD, missing=("No network of Tables 7 and 8 is attacked yet.",))
    made = tuple(each for _, each in sorted(charts, key=lambda pair: pair[0]))
    return Picture("attacks", title, f"{TOLD} {attacked(shown)}".strip(), made)


def under_attack(found: Collected, name: str, training: str) -> list[Result]:
    """The cells of a training in a table that are accuracies under attack."""
    return [found.results[cell] for cell in TABLES[name].cells if cell.under_attack and cell.row.startswith(f"{training}, ")]


def scales_of(result: Result) -> set[float]:
    """The scales of the schedules that a cell has numbers of."""
    return {scale for scale, _ in result.shorter} | ({1.0} if result.samples else set())


def there(under: Iterable[Result], scale: float) -> set[str]:
    """The operators that have a number at a scale."""
    return {result.cell.column for result in under if values(result, scale)}


def images(result: Result, scale: float) -> set[int]:
    """On how many of the first test images a cell was attacked at a scale, where these are not all."""
    return {count for its, count in result.shorter if its == scale and count}


def attacked(shown: Mapping[float, Set[int]]) -> str:
    """On which images networks were attacked where these are not all test images."""
    alike: dict[str, list[float]] = {}
    for scale in sorted(shown, reverse=True):
        if shown[scale]:
            alike.setdefault(" or ".join(f"{each:,}" for each in sorted(shown[scale])), []).append(scale)
    told = []
    for counts, scales in alike.items():
        schedules = " and ".join("whole schedules" if each == 1 else f"schedules × {each:g}" for each in scales)
        told.append(f"the first {counts} test images after {schedules}")
    return f"Under attack are {', '.join(told)}." if told else ""


def values(result: Result, scale: float) -> Values:
    """A cell's numbers at a scale; of a seed that was attacked on several numbers of images, that of most."""
    several = [own for (its, _), own in result.shorter.items() if its == scale]
    samples = [each for own in (*reversed(several), *([result] if scale == 1 else [])) for each in own.samples]
    return {each.seed: each.value for each in samples if isinstance(each.value, float | int)}


def chart(found: Collected, table: Table, box: str, training: str, scale: float) -> Chart:
    """One training of a table: for each attack rings and dots."""
    series, told = [], []
    rows = [row for row in table.rows if row.startswith(f"{training}, ")]
    for colour, row in enumerate(rows):
        results = [found.results[table.cell(row, column)] for column in table.columns]
        came = [values(result, scale) for result in results]
        name = row.removeprefix(f"{training}, ")
        series.append(Series(f"{name}, paper", points([each.cell.published] for each in results), "rings", colour=colour))
        series.append(Series(f"{name}, ours", points(each.values() for each in came), "dots", colour=colour))
        means = [
            f"{column} {statistics.fmean(own.values()):.3g}" for column, own in zip(table.columns, came, strict=True) if own
        ]
        told.append(f"{name}: {', '.join(means) or 'not yet run'}")
    title = f"Table {table.number}, {box}, {training.replace('Natural', 'natural')}"
    title += "" if scale == 1 else f", schedules\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{scale:g}"
    places = Axis("operator", ticks=tuple((float(at), column) for at, column in enumerate(table.columns)),
                  reach=(-0.5, len(table.columns) - 0.5))  # fmt: skip
    alt = f"{title}: accuracy in percent beside the paper’s. Ours, {'; '.join(told)}"
    return Chart(title, places, Axis("right, %", reach=(-2, 102)), tuple(series), alt)


def points(columns: Iterable[Iterable[Published]]) -> tuple[Point, ...]:
    """The numbers of each column at its place, but for N/C."""
    return tuple((float(at), each) for at, own in enumerate(columns) for each in own if isinstance(each, float | int))
