"""Fig. 4: how networks converge, from the histories in the lines of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dcnets.experiments.paper import FIGURES, TABLES
from dcnets.experiments.report.cells import Collected, Result
from dcnets.experiments.report.charts import Axis, Chart, Picture, Point, Series

Row = Mapping[str, Any]
SHADED = "The mean over seeds, of those that converged where some did, shaded from the lowest to the highest."
EARLY = (
    "Up to update 8,000 or so the tests are far below the training: batch norm’s running statistics are means over 1,000 "
    "updates, the authors’ decay, and lag behind weights that still change fast."
)


def resnet32(runs: Collected) -> Picture:
    """Fig. 4: ResNet-32 on CIFAR-100."""
    shown = [result for result in runs.of(TABLES["table4"]) if result.cell.recipe in FIGURES[4].recipes]
    return convergence(
        "4", "Fig. 4: convergence of ResNet-32 on CIFAR-100", {result.cell.row: result for result in shown},
        "The paper’s text does not name the operators of its figure: ours has the baseline and each operator with cosine. "
        f"{EARLY}",
    )  # fmt: skip


def cnn9(runs: Collected) -> Picture:
    """The same of CNN-9, a chart for each column of Table 3 that has runs; not in the paper."""
    table, title = TABLES["table3"], "Convergence of CNN-9 on CIFAR-100"
    charts = []
    for column in table.columns:
        own = {row: runs.results.get(table.cell(row, column)) for row in table.rows}
        there = {row: result for row, result in own.items() if result and histories(result)}
        if there:
            order = {row: at for at, row in enumerate(table.rows)}
            charts.append(chart(column, "test error, %", there, error, order))
    told = f"Not in the paper: the networks of Table 3 that are run so far, a chart for each column. {SHADED} {EARLY}"
    missing = () if charts else ("No network of Table 3 is run yet.",)
    return Picture("curves", title, told, tuple(charts), missing=missing)


def error(row: Row) -> float:
    """The test error in percent."""
    return 100 * float(1 - row["test_top1"])


def convergence(key: str, title: str, named: Mapping[str, Result], told: str) -> Picture:
    """Test error and training loss by update; the mean over seeds, with the lowest and the highest around it."""
    there = {name: result for name, result in named.items() if histories(result)}
    absent = [name for name, result in named.items() if not result.samples]
    lost = [name for name, result in named.items() if result.samples and name not in there]
    words = {"Not yet run": absent, "Ended before its first test, as what does not converge (N/C)": lost}
    missing = tuple(f"{kind}: {', '.join(some)}." for kind, some in words.items() if some)
    if not there:
        return Picture(key, title, told, missing=missing)
    count = ", ".join(f"{name} {len(histories(result))}" for name, result in there.items())
    order = {name: at for at, name in enumerate(named)}
    charts = (
        chart("test error, %", "test error, %", there, error, order),
        chart("training loss", "training loss", there, lambda row: row["loss"], order, log=True),
    )
    told += f" {SHADED} Seeds: {count}."
    return Picture(key, title, told, charts, missing=missing)


def histories(result: Result) -> list[Sequence[Row]]:
    """The tests of each run that counts; what did not converge ends early, and is left out beside seeds that did."""
    some = [each for each in result.samples if each.line.get("history")]
    converged = [each for each in some if not isinstance(each.value, str)]
    return [each.line["history"] for each in converged or some]


def chart(
    title: str, label: str, there: Mapping[str, Result], of: Callable[[Row], float], order: Mapping[str, int], *,
    log: bool = False,
) -> Chart:  # fmt: skip
    """One number of every test by update; a name keeps its colour whatever else is there."""
    series = tuple(curve(name, histories(result), of, order[name]) for name, result in there.items())
    ends = "; ".join(f"{each.name} ends at {ended(each.points[-1][1])}" for each in series if each.points)
    return Chart(title, Axis("update"), Axis(label, log=log), series, f"{title}: {label} by update. {ends}")


def ended(value: float) -> str:
    """The last number of a curve in a sentence."""
    return f"{value:.4g}" if math.isfinite(value) else "no finite number"


def curve(name: str, runs: Sequence[Sequence[Row]], of: Callable[[Row], float], colour: int) -> Series:
    """The mean over runs at each update that all have come to."""
    found = [{row["step"]: number(of, row) for row in history} for history in runs]
    steps = sorted(set.intersection(*(set(each) for each in found)))
    points: list[Point] = []
    band: list[Point] = []
    for step in steps:
        values = [each[step] for each in found]
        points.append((step, statistics.fmean(values)))
        band.append((min(values), max(values)))
    return Series(name, tuple(points), band=tuple(band) if len(runs) > 1 else (), colour=colour)


def number(of: Callable[[Row], float], row: Row) -> float:
    """A number of a test; what is not finite is written as text in the lines."""
    try:
        return float(of(row))
    except (TypeError, ValueError, KeyError):
        return float("nan")
