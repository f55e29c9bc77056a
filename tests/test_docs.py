"""README and docs: Python snippets run as they stand, links lead somewhere, tables are those of the lines of results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ok

from dcnets.experiments.paper import TABLES
from dcnets.experiments.report.collect import collect, read
from dcnets.experiments.report.figures import agreement
from dcnets.experiments.report.rule import ours, printed
from dcnets.margins import MARGINS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def operator_docs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield pytest.importorskip("operator_docs")
    for name in ("operator_docs", "curves"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def margins():
    """What a page registers is forgotten afterwards."""
    before = dict(MARGINS)
    yield
    MARGINS.clear()
    MARGINS.update(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page, operator_docs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    assert operator_docs.run_snippets(text) == text.count("```python")


def anchors(page):
    """The names under which a page's headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("C*.md"))], ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        there = page if not path else (page.parent / path).resolve()
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


def test_the_list_of_pages_has_every_page():
    listed = re.findall(r"\]\((\w[\w-]*\.md)\)", (ROOT / "docs" / "README.md").read_text())
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md")


def test_the_tables_of_the_operator_page_are_where_they_are_written(operator_docs):
    text = (ROOT / "docs" / "operators.md").read_text()
    for name in operator_docs.tables():
        assert f"<!-- begin {name} -->" in text
        assert f"<!-- end {name} -->" in text


def test_the_example_of_signals_shows_which_networks_of_table_2_have_none(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    pytest.importorskip("signal_strength").main(["--data-set", "mnist-subset", "--images", "4"])
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row[-2] == "0e+00"] == ["LinearConv, sq. cosine", "SegConv, sq. cosine"]
    assert len(rows) == 10
    assert {row[-1] for row in rows if row[-2] == "0e+00"} == {"N/C"}


def lines_of_the_project(folder):
    """The files of results/ as they are staged or committed, without what trials have appended since."""
    if not (ROOT / ".git").exists():
        return ROOT / "results"
    for file in (ROOT / "results").glob("*.jsonl"):
        found = subprocess.run(["git", "show", f":results/{file.name}"], cwd=ROOT, capture_output=True, check=False)
        if found.returncode == 0:  # else git does not know the file
            (folder / file.name).write_bytes(found.stdout)
    return folder


def rows_of(text, title):
    """The rows of the first table after a title: what stands first, and the other cells."""
    table = text.partition(title)[2].split("\n\n| ")[1].split("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    return {first: cells for first, *cells in rows}


def test_the_numbers_of_the_readme_are_those_of_the_lines_of_the_project(tmp_path):
    readme, found = (ROOT / "README.md").read_text(), collect(read([lines_of_the_project(tmp_path)]))
    for name, title in (("table2", "Table 2 is the same network"), ("table3", "Table 3: test error")):
        table, shown = TABLES[name], rows_of(readme, title)
        assert list(shown) == list(table.rows)
        for cell in table.cells:
            told = f"{ours(found.results[cell])} ({printed(cell.published)})" if cell.published else "–"
            assert shown[cell.row][table.columns.index(cell.column)] == told, cell.name
    for cell in TABLES["table4"].cells:
        if found.results[cell].samples:
            assert f"{ours(found.results[cell])} ({printed(cell.published)})" in readme, cell.name
    for chart in agreement.tables(found).charts:
        table, *_, dots = chart.alt.split(": ")
        assert f"{table}: {dots.partition(' dots')[0]}" in readme, chart.alt
    written = (ROOT / "docs" / "robustness-results.md").read_text()  # itself that of the lines, by another test
    under_attack = {row: cells[1:] for row, cells in rows_of(written, "### Table 7, white-box, ours").items()}
    assert rows_of(readme, "**Robust?**") == under_attack


def test_the_page_of_results_is_that_of_the_lines_of_the_project(tmp_path):
    written, lines = tmp_path / "results.md", tmp_path / "results"
    lines.mkdir()
    ok("report", "--results", lines_of_the_project(lines), "--out", tmp_path / "index.html", "--markdown", written)
    assert written.read_text() == (ROOT / "docs" / "results.md").read_text(), "dcnets report --markdown docs/results.md"


@pytest.mark.parametrize(("page", "options"), [("results", []), ("results-short", ["--scale", "0.08"])])
def test_the_pages_of_robustness_are_those_of_the_lines_of_the_project(tmp_path, page, options):
    lines, page = lines_of_the_project(tmp_path) / "attacks.jsonl", ROOT / "docs" / f"robustness-{page}.md"
    made = ok("study", "--tables", *options, "--results", lines)
    written = page.read_text().partition("\n\n")[2].partition("\n\n")[2]  # below the title and a paragraph
    assert written == made, f"dcnets study --tables {' '.join(options)}, below the first paragraph of docs/{page.name}"
