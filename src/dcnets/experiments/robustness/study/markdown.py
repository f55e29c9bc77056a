"""A study as Markdown: all tables that its lines are enough for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dcnets.experiments.robustness.study import own_sections as own
from dcnets.experiments.robustness.study import paper_sections as papers
from dcnets.experiments.robustness.study.collected import Collected, Line, collect
from dcnets.experiments.robustness.study.slope_sections import slopes

SECTIONS: tuple[Callable[[Collected], Iterator[str]], ...] = (
    papers.sought, papers.white_box, papers.black_box, papers.extra, own.today, own.verdicts, own.matrices, own.curves,
    slopes,
)  # fmt: skip
"""In the order of the page."""


def tables(lines: Iterable[Line], scale: float | None = None) -> str:
    """All tables that the lines are enough for."""
    found = collect(lines, scale)
    if not found.lines:
        raise ValueError("there are no lines of a study; dcnets study FOLDER makes them")
    parts = [told for section in SECTIONS for told in section(found)]
    head = [f"Schedules × {found.scale:g}: shorter than the recipes'.\n"] if found.scale != 1 else []
    return "\n".join([*head, *parts])
