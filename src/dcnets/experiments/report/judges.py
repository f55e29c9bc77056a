"""The judges of the paper's claims: what the cells of its tables say of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dcnets.experiments.paper import TABLES
from dcnets.experiments.paper.beside import FC_RELU
from dcnets.experiments.paper.tables import BASELINE, MAGNITUDES
from dcnets.experiments.report.cells import Collected, Result, whole_or_nothing
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
from dcnets.experiments.report.rule import ROUNDING, TOLERANCE, signed

OPERATORS = tuple(MAGNITUDES)
COSINE, SQUARE = "Cosine with ReLU", "Sq. Cosine without ReLU"
ORDER = 0.5
"""The least rank correlation of a column that counts as the same order."""
CELLS, MEAN, SPHERE, BREAK = 24, 0.3, 0.4, 20


def some(runs: Collected, table: int, rows: Iterable[str], column: str) -> dict[str, Result]:
    """Cells of one column by their rows."""
    return {row: runs.at(table, row, column) for row in rows}


def decoupled(runs: Collected, table: int) -> dict[str, Result]:
    """All cells of a table with a published number, its baseline's excepted."""
    found = {f"{each.cell.row} {each.cell.column}": each for each in runs.of(TABLES[f"table{table}"])}
    return {name: each for name, each in found.items() if each.cell.row != BASELINE and each.cell.published is not None}


def baseline(runs: Collected, table: int, column: str) -> float | None:
    """The mean of a table's baseline."""
    return number(runs.at(table, BASELINE, column))


# -- Tables 1 to 5 -----------------------------------------------------------------------------------------------------


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


def cells_within(runs: Collected) -> Verdict:
    """How many decoupled cells of Table 3 lie near the paper's."""
    parts = decoupled(runs, 3)
    hits: dict[str, bool | None] = {}
    for name, each in parts.items():
        own, theirs = number(each), whole_or_nothing(each.cell.published)
        hits[name] = None if own is None or theirs is None else abs(own - theirs) <= TOLERANCE + ROUNDING
    done = [hit for hit in hits.values() if hit is not None]
    if not done:
        return Verdict("not yet run", "None of the 28 cells is run.")
    rest = len(hits) - len(done)
    words = f"{sum(done)} of {len(done)} cells lie within {TOLERANCE:g} points" + (f"; {rest} not yet run" if rest else "")
    return Verdict(decide(hits, CELLS), sentence(words))


def mean_within(runs: Collected) -> Verdict:
    """The mean difference over the decoupled cells of Table 3, once all are run."""
    parts = decoupled(runs, 3).values()
    pairs = [(number(each), whole_or_nothing(each.cell.published)) for each in parts]
    differences = [own - theirs for own, theirs in pairs if own is not None and theirs is not None]
    if not differences:
        return Verdict("not yet run", "None of the 28 cells is run.")
    mean = sum(differences) / len(differences)
    said = "N/C among them" if mean == float("inf") else signed(mean)
    words = sentence(f"mean difference over {len(differences)} of {len(pairs)} cells: {said}")
    if len(differences) < len(pairs):
        return Verdict("not yet run", words)
    return Verdict("holds" if abs(mean) <= MEAN + ROUNDING else "does not hold", words)


def best_without_relu(runs: Collected) -> Verdict:
    """SegConv with square cosine without ReLU, below every network with ReLU."""
    best = number(runs.at(3, "SegConv", SQUARE))
    with_relu = [each for each in runs.of(TABLES["table3"])
                 if each.cell.column.endswith("with ReLU") and each.cell.published is not None]  # fmt: skip
    found = {f"{each.cell.row}’s {told(number(each))} ({each.cell.column})": number(each) for each in with_relu}
    if best is None:
        return Verdict("not yet run", "SegConv without ReLU is not yet run.")
    hits = {name: None if value is None else value > best for name, value in found.items()}
    done = {name: value for name, value in found.items() if value is not None}
    below, rest = sum(hit is True for hit in hits.values()), len(hits) - len(done)
    words = f"{told(best)} is below {'all' if below == len(hits) else f'{below} of'} {len(hits)}"
    if done:
        words += f"; the {'nearest' if below == len(done) else 'best'} is {min(done, key=lambda name: done[name])}"
    return Verdict(decide(hits), sentence(words + (f"; {rest} not yet run" if rest else "")))


def bare(runs: Collected) -> dict[str, float | None]:
    """Our two baselines without ReLU, of which the paper's may be either."""
    nowhere, at_the_end = baseline(runs, 3, FC_RELU.column), number(runs.results[FC_RELU])
    return {"with no ReLU anywhere": nowhere, "with a ReLU after the fully connected layer alone": at_the_end}


def breaks_down(runs: Collected) -> Verdict:
    """The baseline without ReLU, in one of its variants, far above that with ReLU."""
    usual, found = baseline(runs, 3, COSINE), bare(runs)
    if usual is None:
        return Verdict("not yet run", "The baseline with ReLU is not yet run.")
    hits = {name: None if value is None else value >= usual + BREAK - ROUNDING for name, value in found.items()}
    shown = {name: f"{told(value)} ({signed(value - usual)})" for name, value in found.items() if value is not None}
    far = f"{BREAK} points above the baseline with ReLU, {told(usual)}"
    return Verdict(decide(hits, 1), listed(hits, shown, far, f"not {far}"))


def without_relu(runs: Collected) -> Verdict:
    """Cosine without ReLU, below each baseline without ReLU that is run."""
    operators = {row: number(each) for row, each in some(runs, 3, OPERATORS, FC_RELU.column).items()}
    limits = {name: value for name, value in bare(runs).items() if value is not None}
    if not limits:
        return Verdict("not yet run", "The baseline without ReLU is not yet run.")
    hits: dict[str, bool | None] = {}
    words = []
    for name, limit in limits.items():
        own = {row: None if value is None else value < limit for row, value in operators.items()}
        hits |= {f"{row}, {name}": hit for row, hit in own.items()}
        done, others = [hit for hit in own.values() if hit is not None], [row for row, hit in own.items() if hit is False]
        above = f": not {', '.join(f'{row} {told(operators[row])}' for row in others)}" if others else ""
        words.append(f"{sum(done)} of {len(done)} below {told(limit)}, the baseline {name}{above}")
    rest = [row for row, value in operators.items() if value is None]
    words += [f"not yet run: {', '.join(rest)}"] if rest else []
    return Verdict(decide(hits), sentence("; ".join(words)))


def order(table: int) -> Any:
    """The judge of the order of operators in each column of a table."""

    def judge(runs: Collected) -> Verdict:
        columns = TABLES[f"table{table}"].columns
        return same_order({each: [runs.at(table, row, each) for row in OPERATORS] for each in columns}, ORDER)

    return judge


def faster(runs: Collected) -> Verdict:
    """Whether each ResNet-32 of Fig. 4 passes the baseline's last error before its own end."""
    goal = baseline(runs, 4, "Cosine")
    hits: dict[str, bool | None] = {}
    shown = {}
    for row, each in some(runs, 4, OPERATORS, "Cosine").items():
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


# -- Tables 6 to 8 -----------------------------------------------------------------------------------------------------


def imagenet_without_bn(runs: Collected) -> Verdict:
    """Which networks of Table 6 converge without batch norm."""
    column, wanted = "Modified, no BN", {BASELINE: False, "SphereConv": True, "TanhConv": True}
    found = {row: number(runs.at(6, row, column)) for row in wanted}
    converged = {row: None if value is None else value != float("inf") for row, value in found.items()}
    hits = {row: None if came is None else came == wanted[row] for row, came in converged.items()}
    shown = {row: told(value) for row, value in found.items()}
    return Verdict(decide(hits), listed(hits, shown, "as in the paper", "otherwise"))


def attacked(
    runs: Collected, table: int, training: str, rows: Iterable[str], than: str, *, higher: bool = True,
    attacks: tuple[str, ...] = ("FGSM", "BIM"),
) -> Verdict:  # fmt: skip
    """Whether networks stand above (or below) another one, under each attack of a table."""
    hits: dict[str, bool | None] = {}
    shown = {}
    for attack in attacks:
        limit = number(runs.at(table, f"{training}, {attack}", than))
        for row in rows:
            value, name = number(runs.at(table, f"{training}, {attack}", row)), f"{row} under {attack}"
            hits[name] = None if value is None or limit is None else value > limit if higher else value < limit
            shown[name] = f"{told(value)} against {told(limit)}"
    side, name = "above" if higher else "below", "the baseline" if than == BASELINE else than
    return Verdict(decide(hits), listed(hits, shown, f"{side} {name}", f"not {side} {name}"))


def merged(verdicts: Iterable[Verdict]) -> Verdict:
    """Several verdicts that all have to hold, as one."""
    found = list(verdicts)
    parts = {str(at): {"holds": True, "not yet run": None}.get(each.status, False) for at, each in enumerate(found)}
    status = "partly" if any(each.status == "partly" for each in found) else decide(parts)
    if status == "not yet run" and all(each.status == "not yet run" for each in found):
        return Verdict(status, found[0].told if len({each.told for each in found}) == 1 else "Too little is run.")
    return Verdict(status, " ".join(dict.fromkeys(each.told for each in found)))
