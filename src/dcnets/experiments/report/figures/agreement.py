"""Our errors against the paper's, a dot for each cell; not in the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dcnets.experiments.paper import TABLES, Table
from dcnets.experiments.report.cells import Collected, whole_or_nothing
from dcnets.experiments.report.charts import Axis, Chart, Picture, Series
from dcnets.experiments.report.rule import TOLERANCE, agrees, signed

ENOUGH = 2
"""Cells that a table needs for a chart."""
FAR = 5.0
"""Points of difference from which a cell is told in words: it would press the others together."""
TOLD = (
    "Not in the paper: the test error of each cell that is run, the mean over seeds, against the paper’s number. On the "
    f"line both are the same; the band is {TOLERANCE:g} points on either side."
)


class Dot(NamedTuple):
    """A cell that both have a number of."""

    row: str
    column: str
    published: float
    ours: float

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.ours - self.published


def tables(found: Collected) -> Picture:
    """A chart for each table of errors that has some cells."""
    charts, beyond = [], []
    for table in TABLES.values():
        every = [] if table.metric == "accuracy" else list(dots(found, table))
        near = [dot for dot in every if abs(dot.difference) < FAR]
        if len(near) >= ENOUGH:
            charts.append(chart(table, near))
            far = [dot for dot in every if dot not in near]
            beyond += [f"{dot.row}, {dot.column}, {dot.ours:.2f} against {dot.published:.2f}" for dot in far]
    told = f"{TOLD} Beyond the chart: {'; '.join(beyond)}." if beyond else TOLD
    missing = () if charts else (f"No table of errors has {ENOUGH} cells that are run yet.",)
    return Picture("agreement", "Our errors against the paper’s", told, tuple(charts), missing=missing, beside=3)


def dots(found: Collected, table: Table) -> Iterator[Dot]:
    """The cells of a table that are run and converged, here and in the paper."""
    for result in found.of(table):
        published, mean = whole_or_nothing(result.cell.published), result.mean
        if published is not None and mean is not None:
            yield Dot(result.cell.row, result.cell.column, published, mean)


def chart(table: Table, near: Sequence[Dot]) -> Chart:
    """One table: the line, and the dots of each column in a colour."""
    values = [value for dot in near for value in (dot.published, dot.ours)]
    reach = (math.floor(min(values)) - 1.0, math.ceil(max(values)) + 1.0)
    band = tuple((end - TOLERANCE, end + TOLERANCE) for end in reach)
    series = [Series("the same number", tuple((end, end) for end in reach), band=band, colour=7)]
    for colour, column in enumerate(table.columns, start=1):
        own = tuple((dot.published, dot.ours) for dot in near if dot.column == column)
        series += [Series(column, own, "dots", colour=colour)] if own else []
    title = f"Table {table.number}: {table.caption}"
    differences = [dot.difference for dot in near]
    within = sum(map(agrees, differences))
    mean = signed(statistics.fmean(differences))
    alt = f"{title}: {within} of {len(near)} dots within {TOLERANCE:g} points of the line, mean difference {mean}"
    return Chart(title, Axis("the paper’s error, %", reach=reach), Axis("our error, %", reach=reach), tuple(series), alt)
