"""What a claim of the paper is, what can be said of one, and how comparisons of cells are counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dcnets.experiments.ranks import rank_correlation
from dcnets.experiments.report.cells import Collected, Result, whole_or_nothing
from dcnets.experiments.report.rule import ROUNDING, more_is_better, signed

Status = Literal["holds", "holds so far", "partly", "does not hold", "not yet run"]
STATUSES: tuple[Status, ...] = ("holds", "holds so far", "partly", "does not hold", "not yet run")
Hits = Mapping[str, bool | None]
"""Whether each part of a claim is so; None where a run is missing."""
SURE = 2
"""How many standard errors two means over seeds have to be apart, lest their difference be called chance."""
CHANCE = (
    "Claims are judged by means; ± is the standard deviation over seeds. A difference may be chance if it is at most "
    f"{SURE} standard errors over seeds, which one seed cannot tell; accuracies under attack have to differ by more."
)


@dataclass(frozen=True)
class Verdict:
    """What our runs say of a claim, with the numbers."""

    status: Status
    told: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, where it stands, when we say that it holds, and the judge."""

    key: str
    where: str
    says: str
    bar: str
    judge: Callable[[Collected], Verdict]


def number(result: Result) -> float | None:
    """A cell's mean; infinite on the bad side where a run diverged, None where none was done."""
    if not result.samples:
        return None
    worst = -math.inf if more_is_better(result) else math.inf
    return worst if result.lost or result.mean is None else result.mean


def told(value: float | None) -> str:
    """A number in a sentence."""
    return "–" if value is None else "N/C" if math.isinf(value) else f"{value:.2f}"


def spoken(result: Result) -> str:
    """A cell in a sentence: its mean ± the standard deviation over seeds."""
    return told(number(result)) + ("" if result.error is None else f" ± {result.std:.2f}")


def doubt(one: Result, other: Result) -> str:
    """What is told of two cells that seeds alone could have set apart."""
    if one.error is None or other.error is None:
        return ""
    assert one.mean is not None
    assert other.mean is not None
    return " (may be chance)" if abs(one.mean - other.mean) <= SURE * math.hypot(one.error, other.error) else ""


def difference(value: float, target: float, form: str) -> str:
    """How far a number is from another, in a form such as `({})`; nothing where one of them is N/C."""
    return form.format(signed(value - target)) if math.isfinite(value - target) else ""


def decide(hits: Hits, least: int | None = None) -> Status:
    """All parts have to be so, or at least some number of them; what is missing may leave it open.

    What is left open holds so far where each part that is run is so. A claim of which all is asked and a part is so holds
    partly; a bar that is not reached does not hold.
    """
    yes, unknown = sum(hit is True for hit in hits.values()), sum(hit is None for hit in hits.values())
    wanted = len(hits) if least is None else least
    if yes >= wanted:
        return "holds"
    if yes + unknown >= wanted:
        return "holds so far" if 0 < yes == len(hits) - unknown else "not yet run"
    if least is None and (yes or unknown):
        return "partly" if yes else "not yet run"
    return "does not hold"


def listed(hits: Hits, values: Mapping[str, str], so: str, otherwise: str) -> str:
    """The parts of a claim by what came of them: `so` those that are so, `otherwise` the others, then the missing ones."""
    groups = [(so, True), (otherwise, False), ("not yet run", None)]
    parts = []
    for words, wanted in groups:
        names = [name for name, hit in hits.items() if hit is wanted]
        shown = [name if wanted is None else f"{name} {values[name]}" for name in names]
        if wanted is None and len(shown) > 8:
            shown = [f"{len(shown)} of {len(hits)}"]
        if shown:
            parts.append(f"{words}: {', '.join(shown)}")
    return sentence("; ".join(parts))


def sentence(text: str) -> str:
    """A text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def compare(parts: Mapping[str, Result], than: Result, name: str, *, least: int | None = None) -> Verdict:
    """Whether cells lie below another; `name` says what that is."""
    found, limit = {part: number(result) for part, result in parts.items()}, number(than)
    hits = {part: None if value is None or limit is None else value < limit for part, value in found.items()}
    shown = {part: spoken(result) + doubt(result, than) for part, result in parts.items()}
    if limit is None:
        seen = ", ".join(f"{part} {shown[part]}" for part, value in found.items() if value is not None)
        return Verdict("not yet run", sentence(f"{name} is not yet run{f'; {seen}' if seen else ''}"))
    return Verdict(decide(hits, least), listed(hits, shown, f"below {name}, {spoken(than)}", "not below"))


def near(result: Result, target: Result | float, name: str, tolerance: float) -> Verdict:
    """Whether a cell lies within a tolerance of another, or of a number."""
    value, wanted = number(result), target if isinstance(target, float) else number(target)
    if value is None or wanted is None:
        missing = " and ".join(each for each, there in ((result.cell.row, value), (name, wanted)) if there is None)
        return Verdict("not yet run", sentence(f"{missing} {'are' if ' and ' in missing else 'is'} not yet run"))
    close = abs(value - wanted) <= tolerance + ROUNDING
    beside = told(target) if isinstance(target, float) else spoken(target)
    words = sentence(f"{spoken(result)} beside {beside} of {name}{difference(value, wanted, ': {}')}")
    return Verdict("holds" if close else "does not hold", words)


def same_order(columns: Mapping[str, Sequence[Result]], least: float) -> Verdict:
    """Whether each column's cells come in the paper's order, by rank correlation; cells that the paper has no number of,
    or that are not run, are left out, and a column is judged once all its numbers are there.
    """
    hits: dict[str, bool | None] = {}
    shown = {}
    for column, results in columns.items():
        pairs = [(number(each), whole_or_nothing(each.cell.published)) for each in results]
        whole = [(own, theirs) for own, theirs in pairs if own is not None and theirs is not None]
        if len(whole) < sum(theirs is not None for _, theirs in pairs):
            hits[column] = None
            continue
        rho = rank_correlation(*zip(*whole, strict=True)) or 0.0
        hits[column], shown[column] = rho >= least - ROUNDING, f"{rho:.2f}".replace("-", "−")
    return Verdict(decide(hits), listed(hits, shown, "same order, rank correlation", "another order, rank correlation"))
