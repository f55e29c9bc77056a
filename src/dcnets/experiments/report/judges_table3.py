"""The judges of the paper's claims on Table 3: CNN-9 with and without ReLU."""

from __future__ import annotations

import math

from dcnets.experiments.paper import TABLES
from dcnets.experiments.paper.beside import FC_RELU
from dcnets.experiments.report.cells import Collected, Result, whole_or_nothing
from dcnets.experiments.report.claims import Verdict, decide, difference, doubt, listed, number, sentence, spoken
from dcnets.experiments.report.judges import COSINE, OPERATORS, SQUARE, baseline, decoupled, some
from dcnets.experiments.report.rule import ROUNDING, TOLERANCE, agrees, signed

CELLS, MEAN, BREAK = 24, 0.3, 20
"""The least cells near the paper's, the most that their mean may be off, and how far an error is that breaks down."""


def cells_within(runs: Collected) -> Verdict:
    """How many decoupled cells of Table 3 lie near the paper's."""
    parts = decoupled(runs, 3)
    hits: dict[str, bool | None] = {}
    for name, each in parts.items():
        own, theirs = number(each), whole_or_nothing(each.cell.published)
        hits[name] = None if own is None or theirs is None else agrees(own - theirs)
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
    own = runs.at(3, "SegConv", SQUARE)
    best = number(own)
    with_relu = [each for each in runs.of(TABLES["table3"])
                 if each.cell.column.endswith("with ReLU") and each.cell.published is not None]  # fmt: skip
    found = {f"{each.cell.row}’s {spoken(each)} ({each.cell.column}){doubt(own, each)}": number(each) for each in with_relu}
    if best is None:
        return Verdict("not yet run", "SegConv without ReLU is not yet run.")
    hits = {name: None if value is None else value > best for name, value in found.items()}
    done = {name: value for name, value in found.items() if value is not None}
    below, rest = sum(hit is True for hit in hits.values()), len(hits) - len(done)
    words = f"{spoken(own)} is below {'all' if below == len(hits) else f'{below} of'} {len(hits)}"
    if done:
        words += f"; the {'nearest' if below == len(done) else 'best'} is {min(done, key=lambda name: done[name])}"
    return Verdict(decide(hits), sentence(words + (f"; {rest} not yet run" if rest else "")))


def bare(runs: Collected) -> dict[str, Result]:
    """Our two baselines without ReLU, of which the paper's may be either."""
    nowhere, at_the_end = baseline(runs, 3, FC_RELU.column), runs.results[FC_RELU]
    return {"with no ReLU anywhere": nowhere, "with a ReLU after the fully connected layer alone": at_the_end}


def breaks_down(runs: Collected) -> Verdict:
    """The baseline without ReLU, in one of its variants, far above that with ReLU."""
    with_relu, cells = baseline(runs, 3, COSINE), bare(runs)
    usual, found = number(with_relu), {name: number(each) for name, each in cells.items()}
    if usual is None:
        return Verdict("not yet run", "The baseline with ReLU is not yet run.")
    if math.isinf(usual):
        return Verdict("does not hold", f"The baseline with ReLU did not converge, N/C: none is {BREAK} points above it.")
    hits = {name: None if value is None else value >= usual + BREAK - ROUNDING for name, value in found.items()}
    shown = {
        name: f"{spoken(each)}{difference(value, usual, ' ({})')}"
        for name, each in cells.items() if (value := found[name]) is not None
    }  # fmt: skip
    far = f"{BREAK} points above the baseline with ReLU, {spoken(with_relu)}"
    return Verdict(decide(hits, 1), listed(hits, shown, far, f"not {far}"))


def without_relu(runs: Collected) -> Verdict:
    """Cosine without ReLU, below each baseline without ReLU that is run."""
    cells = some(runs, 3, OPERATORS, FC_RELU.column)
    operators = {row: number(each) for row, each in cells.items()}
    baselines = bare(runs)
    limits = {name: value for name, each in baselines.items() if (value := number(each)) is not None}
    if not limits:
        return Verdict("not yet run", "The baseline without ReLU is not yet run.")
    hits: dict[str, bool | None] = {}
    words = []
    for name, limit in limits.items():
        own = {row: None if value is None else value < limit for row, value in operators.items()}
        hits |= {f"{row}, {name}": hit for row, hit in own.items()}
        done, others = [hit for hit in own.values() if hit is not None], [row for row, hit in own.items() if hit is False]
        beside = baselines[name]
        shown = ", ".join(f"{row} {spoken(cells[row])}{doubt(cells[row], beside)}" for row in others)
        above = f": not {shown}" if others else ""
        words.append(f"{sum(done)} of {len(done)} below {spoken(beside)}, the baseline {name}{above}")
    rest = [row for row, value in operators.items() if value is None]
    words += [f"not yet run: {', '.join(rest)}"] if rest else []
    return Verdict(decide(hits), sentence("; ".join(words)))
