"""The judges of the paper's claims on errors, Table 3 excepted: what the cells of Tables 1, 2 and 4 to 6 say of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dcnets.experiments.paper import TABLES
from dcnets.experiments.paper.tables import BASELINE, MAGNITUDES
from dcnets.experiments.report.cells import Collected, Result
from dcnets.experiments.report.claims import (
    Verdict,
    compare,
    decide,
    listed,
    number,
    same_order,
    sentence,
    told,
)

OPERATORS = tuple(MAGNITUDES)
COSINE, SQUARE = "Cosine with ReLU", "Sq. Cosine without ReLU"
ORDER = 0.5
"""The least rank correlation of a column that counts as the same order."""
SPHERE = 0.4
"""How far the error of SphereConv may be from the baseline's."""


def some(runs: Collected, table: int, rows: Iterable[str], column: str) -> dict[str, Result]:
    """Cells of one column by their rows."""
    return {row: runs.at(table, row, column) for row in rows}


def decoupled(runs: Collected, table: int) -> dict[str, Result]:
    """All cells of a table with a published number, its baseline's excepted."""
    found = {f"{each.cell.row} {each.cell.column}": each for each in runs.of(TABLES[f"table{table}"])}
    return {name: each for name, each in found.items() if each.cell.row != BASELINE and each.cell.published is not None}


def baseline(runs: Collected, table: int, column: str) -> Result:
    """A table's baseline."""
    return runs.at(table, BASELINE, column)


def tricks(runs: Collected) -> Verdict:
    """Weight projection and weighted gradients against the four other ways of Table 1."""
    rows = TABLES["table1"].rows
    found = {row: number(runs.at(1, row, "Error")) for row in rows}
    hits: dict[str, bool | None] = {}
    for trick in rows[-2:]:
        for other in rows[:-2]:
            own, than = found[trick], found[other]
            hits[f"{trick} {told(own)} against {other} {told(than)}"] = None if own is None or than is None else own < than
    if all(hit is None for hit in hits.values()):
        return Verdict("not yet run", "Too few of the six rows are run.")
    done = [hit for hit in hits.values() if hit is not None]
    failed = [name for name, hit in hits.items() if hit is False]
    words = f"{sum(done)} of {len(done)} comparisons are so" + (f"; not: {', '.join(failed)}" if failed else "")
    return Verdict(decide(hits), sentence(words))


def weighted(runs: Collected) -> Verdict:
    """Weighted operators gain half a point at most over standard gradients."""
    standard = number(runs.at(1, "Standard gradients", "Error"))
    found = {row: number(runs.at(1, row, "Error")) for row in TABLES["table1"].rows[:3]}
    hits = {row: None if value is None or standard is None else value >= standard - 0.5 for row, value in found.items()}
    if standard is None:
        return Verdict("not yet run", "Standard gradients are not yet run.")
    shown = {row: told(value) for row, value in found.items()}
    so = f"no gain of half a point over standard gradients, {told(standard)}"
    return Verdict(decide(hits), listed(hits, shown, so, "a gain"))


def without_bn(runs: Collected) -> Verdict:
    """Every decoupled network of Table 2 that converged in the paper, below the baseline."""
    parts = {name: each for name, each in decoupled(runs, 2).items() if each.cell.published != "N/C"}
    return compare(parts, baseline(runs, 2, "Cosine"), "the baseline without batch norm")


def not_converged(runs: Collected) -> Verdict:
    """The two networks of Table 2 that did not converge."""
    parts = {name: each for name, each in decoupled(runs, 2).items() if each.cell.published == "N/C"}
    hits = {name: each.lost == len(each.samples) if each.samples else None for name, each in parts.items()}
    shown = {name: told(each.mean) if each.mean is not None else "N/C" for name, each in parts.items()}
    return Verdict(decide(hits), listed(hits, shown, "did not converge here either", "converged here"))


def order(table: int) -> Any:
    """The judge of the order of operators in each column of a table."""

    def judge(runs: Collected) -> Verdict:
        columns = TABLES[f"table{table}"].columns
        return same_order({each: [runs.at(table, row, each) for row in OPERATORS] for each in columns}, ORDER)

    return judge


def faster(runs: Collected) -> Verdict:
    """Whether each ResNet-32 of Fig. 4 passes the baseline's last error before its own end."""
    goal = number(baseline(runs, 4, "Cosine"))
    hits: dict[str, bool | None] = {}
    shown = {}
    for row, each in some(runs, 4, OPERATORS, "Cosine").items():
        if each.samples and each.samples[0].value == "N/C":
            hits[row], shown[row] = False, "N/C"
            continue
        history = each.samples[0].line.get("history") if each.samples else None
        if not history or goal is None:
            hits[row] = None
            continue
        step = next((test["step"] for test in history if 100 * (1 - test["test_top1"]) < goal), None)
        hits[row] = step is not None and step < history[-1]["step"]
        shown[row] = f"after {step:,} of {history[-1]['step']:,} updates" if step else "never"
    if goal is None:
        return Verdict("not yet run", "The baseline of ResNet-32 is not yet run.")
    return Verdict(decide(hits), listed(hits, shown, f"below the baseline’s last error, {told(goal)}", "not before the end"))


def state_of_the_art(runs: Collected) -> Verdict:
    """ResNet-32 beside the numbers of ResNet-1001, which are the paper's."""
    limits = {"CIFAR-10": 4.92, "CIFAR-100": 22.71}
    parts = [("TanhConv, cosine", "CIFAR-10"), ("TanhConv, cosine", "CIFAR-100"), ("LinearConv, sq. cosine", "CIFAR-100")]
    found = {f"{row} on {data}": (number(runs.at(5, row, data)), limits[data]) for row, data in parts}
    hits = {name: None if value is None else value < limit for name, (value, limit) in found.items()}
    shown = {name: f"{told(value)} against {limit}" for name, (value, limit) in found.items()}
    return Verdict(decide(hits), listed(hits, shown, "below ResNet-1001", "not below"))


def imagenet_without_bn(runs: Collected) -> Verdict:
    """Which networks of Table 6 converge without batch norm."""
    column, wanted = "Modified, no BN", {BASELINE: False, "SphereConv": True, "TanhConv": True}
    found = {row: number(runs.at(6, row, column)) for row in wanted}
    converged = {row: None if value is None else value != float("inf") for row, value in found.items()}
    hits = {row: None if came is None else came == wanted[row] for row, came in converged.items()}
    shown = {row: told(value) for row, value in found.items()}
    return Verdict(decide(hits), listed(hits, shown, "as in the paper", "otherwise"))
