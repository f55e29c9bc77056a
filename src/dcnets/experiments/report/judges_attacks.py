"""The judges of the paper's claims on Tables 7 and 8: accuracies under attack."""

from __future__ import annotations

from collections.abc import Iterable

from dcnets.experiments.paper.tables import BASELINE, TARGETS
from dcnets.experiments.report.cells import Collected
from dcnets.experiments.report.claims import Verdict, decide, doubt, listed, number, spoken

ATTACKS = ("FGSM", "BIM")


def against_baseline(runs: Collected, table: int, training: str, rows: Iterable[str], *, higher: bool = True) -> Verdict:
    """Whether networks stand above (or below) the baseline beyond chance, under each attack of a table."""
    hits: dict[str, bool | None] = {}
    shown = {}
    for attack in ATTACKS:
        than = runs.at(table, f"{training}, {attack}", BASELINE)
        limit = number(than)
        for row in rows:
            own, name = runs.at(table, f"{training}, {attack}", row), f"{row} under {attack}"
            value = number(own)
            if value is not None and limit is None:
                name = f"{row} against the baseline under {attack}"
            chance = doubt(own, than)
            so = None if value is None or limit is None else value > limit if higher else value < limit
            hits[name] = so and not chance
            shown[name] = f"{spoken(own)} against {spoken(than)}{chance}"
    side = f"{'above' if higher else 'below'} the baseline"
    return Verdict(decide(hits), listed(hits, shown, side, f"not {side}"))


def best(runs: Collected, table: int, training: str, row: str, attacks: Iterable[str] = ATTACKS) -> Verdict:
    """Whether a network stands above all others of a table beyond chance, under each attack."""
    hits: dict[str, bool | None] = {}
    shown = {}
    for attack in attacks:
        cells = {each: runs.at(table, f"{training}, {attack}", each) for each in TARGETS}
        found = {each: number(cell) for each, cell in cells.items()}
        own = found.pop(row)
        there = {each: value for each, value in found.items() if value is not None}
        missing = [called(each) for each in found if each not in there]
        name = f"{row} under {attack}"
        if own is None or not there:
            hits[name] = None
            continue
        chances = {each: doubt(cells[row], cells[each]) for each in there}
        first = max(there, key=lambda each: (there[each] >= own or bool(chances[each]), there[each]))
        beaten = there[first] < own and not chances[first]
        if beaten and missing:
            name = f"{row} against {' and '.join(missing)} under {attack}"
        hits[name] = (None if missing else True) if beaten else False
        shown[name] = f"{spoken(cells[row])} against {spoken(cells[first])} of {called(first)}{chances[first]}"
    return Verdict(decide(hits), listed(hits, shown, "above all others", "not above all others"))


def called(row: str) -> str:
    """A network in a sentence."""
    return "the baseline" if row == BASELINE else row
