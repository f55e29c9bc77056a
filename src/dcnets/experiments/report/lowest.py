"""What a table would say if each run counted by its lowest test in place of its last: the paper may have printed either."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from dcnets.experiments.paper import Table
from dcnets.experiments.paper.tables import BASELINE
from dcnets.experiments.report.cells import Collected, Result, whole_or_nothing
from dcnets.experiments.report.rule import TOLERANCE, agrees, counted, signed
from dcnets.experiments.reproduce.lines import Line

TESTS = {"top1_error": "test_top1", "top5_error": "test_top5"}
"""What a run's history has for the metric of a table."""


def told(found: Collected, table: Table) -> str | None:
    """The sentences below a table; None where no run of it tells its tests."""
    test = TESTS.get(table.metric)
    cells = [each for each in found.of(table) if test and comparable(each, test)]
    if not test or not cells:
        return None
    would = []
    if decoupled := [each for each in cells if each.cell.row != BASELINE]:
        last, least = differences(decoupled), differences(decoupled, test)
        near, now = sum(map(agrees, least)), sum(map(agrees, last))
        would += [
            f"{near} of {counted(len(least), 'decoupled cell')} would lie within {TOLERANCE:g} points of the paper’s"
            f"{', as now' if near == now else f' and not {now}'}, with a mean difference of "
            f"{signed(statistics.fmean(least))} and not {signed(statistics.fmean(last))}"
        ]
    would += [
        f"the baseline’s {each.mean:.2f} would be {lowest(each, test):.2f}" for each in cells if each.cell.row == BASELINE
    ]
    return (
        "These are errors of each run’s last test; whether the paper’s are so is not told. With each run’s lowest, which "
        f"the test images themselves choose, {'; '.join(would)}."
    )


def comparable(result: Result, test: str) -> bool:
    """Whether a cell has a number in the paper, and all its runs converged and tell their tests."""
    histories = [each.line.get("history") for each in result.samples]
    whole = bool(histories) and all(rows and all(test in row for row in rows) for rows in histories)
    return whole and not result.lost and whole_or_nothing(result.cell.published) is not None


def differences(results: Iterable[Result], test: str | None = None) -> list[float]:
    """How far cells are from the paper's numbers: by the last test of each run, or by the lowest, where `test` names it."""
    pairs = ((lowest(each, test) if test else each.mean, whole_or_nothing(each.cell.published)) for each in results)
    return [own - theirs for own, theirs in pairs if own is not None and theirs is not None]


def lowest(result: Result, test: str) -> float:
    """The mean over a cell's runs of the lowest error in percent that any test of a run found."""
    return statistics.fmean(lowest_of(each.line, test) for each in result.samples)


def lowest_of(line: Line, test: str) -> float:
    """The lowest error in percent of a run's tests."""
    return min(100 * (1 - float(row[test])) for row in line["history"])
