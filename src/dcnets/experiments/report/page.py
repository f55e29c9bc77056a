"""The report as one HTML file that needs nothing else: tables, claims, and charts that a small script in it draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from string import Template

import dcnets
from dcnets.experiments.palette import DARK, LIGHT
from dcnets.experiments.paper import TABLES, Table
from dcnets.experiments.report import lowest
from dcnets.experiments.report.cells import Aside, Collected, Result
from dcnets.experiments.report.charts import Picture
from dcnets.experiments.report.claims import CHANCE, Claim, Verdict
from dcnets.experiments.report.embedded import HOW, figure
from dcnets.experiments.report.notes import NOTES
from dcnets.experiments.report.paper_claims import CLAIMS
from dcnets.experiments.report.rule import METRICS, RULE, counted, judge, ours, printed, runs, shortened, signed
from dcnets.experiments.report.summary import standard, tally
from dcnets.experiments.reproduce.lines import Line

HERE = Path(__file__).parent


def write(found: Collected, pictures: Iterable[Picture]) -> str:
    """The whole page."""
    shown = list(pictures)
    links = {"claims": "Claims", **{name: f"Table {table.number}" for name, table in TABLES.items()}}
    links |= {f"figure-{each.key}": f"Fig. {each.key}" if each.key.isdecimal() else each.key.capitalize() for each in shown}
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        light=colours(LIGHT), dark=colours(DARK), tally=escape(tally(found)), standard=escape(standard(found)),
        links="".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in links.items()),
        claims="".join(claims(found)), chance=escape(CHANCE), rule=escape(RULE),
        tables="".join(table(found, name, each) for name, each in TABLES.items()),
        figures=HOW + "".join(figure(each) for each in shown), elsewhere=elsewhere(found), footer=escape(footer(found)),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
    )  # fmt: skip


def colours(palette: tuple[str, ...]) -> str:
    """A palette as CSS."""
    return " ".join(f"--c{at}: {colour};" for at, colour in enumerate(palette))


# -- claims ------------------------------------------------------------------------------------------------------------


def claims(found: Collected) -> Iterator[str]:
    """Those that something can be said of, then the others, folded."""
    judged = [(claim, claim.judge(found)) for claim in CLAIMS]
    decided = [pair for pair in judged if pair[1].status != "not yet run"]
    others = [pair for pair in judged if pair[1].status == "not yet run"]
    yield f'<ul class="claims">{"".join(claim(*pair) for pair in decided)}</ul>'
    if others:
        opened = " open" if not decided else ""
        count = f"{counted(len(others), 'claim')} whose runs are not there yet"
        inner = "".join(claim(*pair) for pair in others)
        yield f'<details{opened}><summary>{count}</summary><ul class="claims">{inner}</ul></details>'


def claim(of: Claim, verdict: Verdict) -> str:
    """One claim, its bar and what our runs say."""
    badge = f'<span class="badge {verdict.status.replace(" ", "-")}">{verdict.status}</span>'
    return (
        f'<li id="claim-{of.key}"><div>{badge}<span class="where">{escape(of.where)}</span></div><div>'
        f'<p>{escape(of.says)}</p><p class="soft">Holds if: {escape(of.bar)}</p>'
        f"<p><b>Ours:</b> {escape(verdict.told)}</p></div></li>"
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def table(found: Collected, name: str, of: Table) -> str:
    """One table, and below it the runs that stand apart."""
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in of.columns)
    rows = [(row, [found.results[of.cell(row, column)] for column in of.columns]) for row in of.rows]
    extra = found.own_rows(of)
    body = "".join(
        f'<tr><th scope="row">{escape(row)}</th>{"".join(map(cell, results))}</tr>' for row, results in rows
    ) + "".join(own_row(each, of) for each in extra)
    notes = "".join(f'<p class="soft">{escape(each)}</p>' for each in (NOTES.get(name), lowest.told(found, of)) if each)
    asides = [(each, aside) for each in (*found.of(of), *extra) for aside in each.asides]
    inner = f'<table class="paper"><thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table>'
    if not asides and not any(each.samples for each in (*found.of(of), *extra)):
        inner = f"<details><summary>None of its cells is run yet; the paper’s numbers</summary>{inner}</details>"
    heading = (
        f'<section id="{name}"><h2>Table {of.number}: {escape(of.caption)}</h2><p class="soft">{METRICS[of.metric]}</p>'
    )
    return f"{heading}{inner}{notes}{apart(asides)}</section>\n"


def own_row(result: Result, of: Table) -> str:
    """A row that the paper does not have."""
    cells = (cell(result) if column == result.cell.column else '<td class="none"></td>' for column in of.columns)
    return f'<tr><th scope="row">{escape(result.cell.row)}</th>{"".join(cells)}</tr>'


def cell(result: Result) -> str:
    """Ours with its colour and mark, the difference, the paper's, and shortened runs."""
    column, published = escape(result.cell.column), printed(result.cell.published)
    if result.cell.published is None:
        return f'<td class="none" data-column="{column}">–</td>'
    judged = judge(result)
    marked = " ".join(filter(None, (signed(judged.difference), judged.mark)))
    below = [f"paper {published}" + (f" · {runs(result).partition(',')[0]}" if result.samples else "")]
    below += [judged.words] if judged.words else []
    title = f' title="{escape(runs(result))}"' if result.samples else ""
    inner = f'<span class="value {judged.colour}"{title}><b>{escape(ours(result))}</b> <span>{marked}</span></span>'
    if result.cell.recipe is None:
        below = [f"paper {published}, taken from another"]
    small = "".join(f"<small>{escape(text)}</small>" for text in below)
    scaled = "".join(f'<small class="scaled">{escape(text)}</small>' for text in shortened(result))
    kind = "" if result.samples or scaled else ' class="open"'
    return f'<td{kind} data-column="{column}">{inner}{small}{scaled}</td>'


def apart(asides: list[tuple[Result, Aside]]) -> str:
    """The numbers of a table that do not count, and why."""
    if not asides:
        return ""
    lines = []
    for result, aside in asides:
        told = f"{result.cell.name}: {printed(aside.value)} · {run(aside.line)} · {aside.why}"
        lines.append(f"<li>{escape(told)}</li>")
    of = len({id(aside.line) for _, aside in asides})
    count = f"{counted(len(lines), 'number')} of {counted(of, 'line')} apart: not counted, not mixed in"
    return f'<details><summary>{count}</summary><ul class="apart">{"".join(lines)}</ul></details>'


def elsewhere(found: Collected) -> str:
    """The runs of recipes that no table has."""
    if not found.elsewhere:
        return ""
    told = [f"{run(line)}: top-1 error {printed(line['top1_error'])}" for line in found.elsewhere]
    lines = [f"<li>{escape(each)}</li>" for each in told]
    count = counted(len(lines), "run")
    heading = "<section><h2>Runs that belong to no table</h2>"
    return f'{heading}<details><summary>{count}</summary><ul class="apart">{"".join(lines)}</ul></details></section>'


def run(line: Line) -> str:
    """A run in words."""
    recipe = line["recipe"]
    return f"{recipe['name']}, seed {recipe.get('seed', 0)}, {str(line.get('date'))[:10]}"


def footer(found: Collected) -> str:
    """Where the numbers come from."""
    commits = sorted({str(each.line.get("commit"))[:12] for each in found.samples})
    torch = sorted({str(each.line.get("torch")) for each in found.samples})
    hours = sum(float(each.line.get("seconds", 0)) for each in found.samples) / 3600
    told = f"Written by dcnets {dcnets.__version__}."
    if found.samples:
        told += f" The runs took {hours:.1f} hours in all, with torch {', '.join(torch)}, at commits {', '.join(commits)}."
    return " ".join([told, *found.torn])
