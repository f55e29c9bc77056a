"""The judges of the paper's claims on Tables 7 and 8: accuracies under attack."""

from __future__ import annotations

from collections.abc import Iterable

from dcnets.experiments.paper.tables import BASELINE
from dcnets.experiments.report.cells import Collected
from dcnets.experiments.report.claims import Verdict, decide, listed, number, told


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
            if value is not None and limit is None:
                name = f"{row} against {than} under {attack}"
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
