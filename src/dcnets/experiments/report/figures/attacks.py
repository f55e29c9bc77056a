"""Tables 7 and 8 as a picture: the paper's accuracies beside ours, operator by operator."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import product

from dcnets.experiments.paper import TABLES, Published, Table
from dcnets.experiments.report.cells import Collected, Result
from dcnets.experiments.report.charts import Axis, Chart, Picture, Point, Series
from dcnets.experiments.robustness.setting import MAIN

BOXES = {"table7": "white-box", "table8": "black-box"}
TOLD = f"A ring is the paper’s number, a dot is one of our seeds: accuracy at {MAIN}; the paper does not tell its setting."
Values = dict[int, float]
"""Accuracies in percent, by seed."""


def tables(found: Collected) -> Picture:
    """A chart for each schedule, table and training that has numbers, the longest schedule first."""
    title, attacked = "Tables 7 and 8 beside the paper’s", under_attack(found)
    scales = sorted({scale for result in attacked for scale in scales_of(result)}, reverse=True)
    if not scales:
        return Picture("attacks", title, TOLD, missing=("No network of Tables 7 and 8 is attacked yet.",))
    fewer = sorted({images for each in attacked for _, images in each.shorter if images})
    told = f"{TOLD} Under attack are the first {' or '.join(f'{each:,}' for each in fewer)} test images." if fewer else TOLD
    charts = []
    for scale, (name, box) in product(scales, BOXES.items()):
        for training in dict.fromkeys(row.partition(", ")[0] for row in TABLES[name].rows):
            made = chart(found, TABLES[name], box, training, scale)
            charts += [made] if made else []
    return Picture("attacks", title, told, tuple(charts))


def under_attack(found: Collected) -> list[Result]:
    """The cells of both tables that are accuracies under attack."""
    return [found.results[cell] for name in BOXES for cell in TABLES[name].cells if cell.under_attack]


def scales_of(result: Result) -> set[float]:
    """The scales of the schedules that a cell has numbers of."""
    return {scale for scale, _ in result.shorter} | ({1.0} if result.samples else set())


def values(result: Result, scale: float) -> Values:
    """A cell's numbers at a scale; of a seed that was attacked on several numbers of images, that of most."""
    several = [own for (its, _), own in result.shorter.items() if its == scale]
    samples = [each for own in (*reversed(several), *([result] if scale == 1 else [])) for each in own.samples]
    return {each.seed: each.value for each in samples if isinstance(each.value, float | int)}


def chart(found: Collected, table: Table, box: str, training: str, scale: float) -> Chart | None:
    """One training of a table: for each attack rings and dots; None where nothing of it was attacked."""
    series, told, attacked = [], [], False
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
        attacked |= name != "no attack" and bool(means)
    if not attacked:
        return None
    title = f"Table {table.number}, {box}, {training.replace('Natural', 'natural')}"
    title += "" if scale == 1 else f", schedules\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{scale:g}"
    places = Axis("operator", ticks=tuple((float(at), column) for at, column in enumerate(table.columns)),
                  reach=(-0.5, len(table.columns) - 0.5))  # fmt: skip
    alt = f"{title}: accuracy in percent beside the paper’s. Ours, {'; '.join(told)}"
    return Chart(title, places, Axis("right, %", reach=(-2, 102)), tuple(series), alt)


def points(columns: Iterable[Iterable[Published]]) -> tuple[Point, ...]:
    """The numbers of each column at its place, but for N/C."""
    return tuple((float(at), each) for at, own in enumerate(columns) for each in own if isinstance(each, float | int))
