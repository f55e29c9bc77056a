"""The tables and claims as Markdown, the same for the same lines."""

from __future__ import annotations

from collections.abc import Iterator

from dcnets.experiments.paper import TABLES, Table
from dcnets.experiments.report import lowest
from dcnets.experiments.report.cells import Collected, Result
from dcnets.experiments.report.claims import CHANCE
from dcnets.experiments.report.notes import NOTES
from dcnets.experiments.report.paper_claims import CLAIMS
from dcnets.experiments.report.rule import METRICS, RULE, counted, judge, ours, printed, runs, shortened, signed
from dcnets.experiments.report.summary import standard, tally


def write(found: Collected) -> str:
    """The whole document."""
    parts = ["# Our runs beside the paper’s tables", tally(found), standard(found), RULE]
    parts += ["## Claims", CHANCE, "\n".join(claims(found)), "## Tables"]
    for name, table in TABLES.items():
        parts += [f"### Table {table.number}: {table.caption}", METRICS[table.metric], "\n".join(rows(found, table))]
        parts += filter(None, (NOTES.get(name), lowest.told(found, table)))
        if told := list(apart(found, table)):
            parts += [f"<details><summary>{counted(len(told), 'number')} apart</summary>", "\n".join(told), "</details>"]
    return "\n\n".join(parts) + "\n"


def claims(found: Collected) -> Iterator[str]:
    """Every claim in a row."""
    yield "| where | the paper says | it holds if | our runs | in numbers |"
    yield "| --- | --- | --- | --- | --- |"
    for claim in CLAIMS:
        verdict = claim.judge(found)
        yield f"| {claim.where} | {claim.says} | {claim.bar} | **{verdict.status}** | {verdict.told} |"


def rows(found: Collected, table: Table) -> Iterator[str]:
    """A table, each cell ours, then the paper's and the difference."""
    yield "| | " + " | ".join(table.columns) + " |"
    yield "| --- |" + " ---: |" * len(table.columns)
    for row in table.rows:
        cells = [cell(found.results[table.cell(row, column)]) for column in table.columns]
        yield f"| {row} | " + " | ".join(cells) + " |"
    for own in found.own_rows(table):
        cells = [cell(own) if column == own.cell.column else "" for column in table.columns]
        yield f"| {own.cell.row} | " + " | ".join(cells) + " |"


def cell(result: Result) -> str:
    """Ours, the number of runs, the paper's, the difference and the mark, then shortened runs."""
    published = printed(result.cell.published)
    if result.cell.published is None:
        return "–"
    if result.cell.recipe is None:
        return f"(paper {published}, taken from another)"
    judged, count = judge(result), f", {runs(result).partition(',')[0]}" if result.samples else ""
    ending = " ".join(filter(None, (signed(judged.difference), judged.mark, judged.words)))
    return "; ".join([f"{ours(result)}{count} (paper {published}) {ending}".strip(), *shortened(result)])


def apart(found: Collected, table: Table) -> Iterator[str]:
    """The runs that do not count, one a line."""
    for result in (*found.of(table), *found.own_rows(table)):
        for aside in result.asides:
            recipe = aside.line["recipe"]
            run = f"{recipe['name']}, seed {recipe.get('seed', 0)}"
            yield f"- apart: {result.cell.name}, {run}: {printed(aside.value)} ({aside.why})"
