"""The report in three sentences: how much is run, what of it agrees, what the runs share."""

from __future__ import annotations

from collections import Counter

from dcnets.experiments.paper import TABLES
from dcnets.experiments.report.cells import Collected
from dcnets.experiments.report.claims import STATUSES
from dcnets.experiments.report.paper_claims import CLAIMS
from dcnets.experiments.report.rule import judge
from dcnets.experiments.reproduce.lines import Line

SPOKEN = {
    "holds": ("holds", "hold"), "holds so far": ("holds so far", "hold so far"), "partly": ("holds partly", "hold partly"),
    "does not hold": ("does not hold", "do not hold"), "not yet run": ("is not yet run", "are not yet run"),
}  # fmt: skip
"""What one claim does, and what several do."""


def counts(found: Collected) -> tuple[int, int, Counter[str]]:
    """Cells that can be run, cells that are, and the colours of these."""
    can = [result for table in TABLES.values() for result in found.of(table) if result.cell.recipe]
    done = [result for result in can if result.samples]
    return len(can), len(done), Counter(judge(result).colour for result in done)


def statuses(found: Collected) -> dict[str, int]:
    """How many claims came out how."""
    seen = Counter(claim.judge(found).status for claim in CLAIMS)
    return {status: seen[status] for status in STATUSES if seen[status]}


def lines_of_runs(found: Collected) -> list[Line]:
    """The lines of the runs that count, without those of attacks."""
    return [each.line for each in found.samples if "top1_error" in each.line]


def places(found: Collected) -> str:
    """Where the runs that count were done; where on several devices, how many on each."""
    devices = Counter(line.get("device") or "an unnamed device" for line in lines_of_runs(found))
    (most, first), *others = devices.most_common()
    if not others:
        return f"done on {most}"
    return ", ".join([f"{first} done on {most}", *(f"{count} on {device}" for device, count in others)])


def tally(found: Collected) -> str:
    """How much is run and what agrees."""
    can, done, colours = counts(found)
    runs = len(lines_of_runs(found))
    agree, differ = colours["green"], colours["red"]
    cells = f"{done} of the {can} cells that can be run are run, {runs} runs in all: "
    cells += f"{agree} {'agrees' if agree == 1 else 'agree'} with the paper, {differ} {'does' if differ == 1 else 'do'} not."
    claims = ", ".join(f"{count} {SPOKEN[status][count != 1]}" for status, count in statuses(found).items())
    return f"{cells} Of {len(CLAIMS)} claims: {claims}."


def standard(found: Collected) -> str:
    """What the runs that count share, where they were done, and how many stand apart."""
    if found.standard is None:
        return "No line is a whole run of a cell’s recipe."
    told = f"The tables count runs of dcnets {found.standard.version} in {found.standard.arithmetic}, {places(found)}."
    asides = len(found.asides)
    if asides:
        told += f" {asides} other {'line stands' if asides == 1 else 'lines stand'} apart, each below its table."
    if found.elsewhere:
        told += f" {len(found.elsewhere)} more {'line is' if len(found.elsewhere) == 1 else 'lines are'} of no cell."
    return told
