"""A study as Markdown: all tables that its lines are enough for, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dcnets.experiments.robustness.study import own_sections as own
from dcnets.experiments.robustness.study import paper_sections as papers
from dcnets.experiments.robustness.study.collected import Collected, Line, collect
from dcnets.experiments.robustness.study.legible import left_out, sorted_out
from dcnets.experiments.robustness.study.networks import PAPERS, family_of
from dcnets.experiments.robustness.study.slope_sections import slopes
from dcnets.experiments.robustness.study.words import title_of
from dcnets.experiments.versions import usual

SECTIONS: tuple[Callable[[Collected], Iterator[str]], ...] = (
    papers.sought, papers.white_box, papers.black_box, papers.extra, own.today, own.verdicts, own.matrices, own.curves,
    slopes,
)  # fmt: skip
"""In the order of the page."""


def tables(lines: Iterable[Line], scale: float | None = None) -> str:
    """All tables that the lines are enough for: data set by data set, network by network, and of one version of dcnets."""
    kept, left = of_one_version(lines)
    found = {family: collect(some, scale) for family, some in families(kept).items()}
    shown = {family: some for family, some in found.items() if some.lines}
    if not shown:
        raise ValueError(f"there are no lines of a study; dcnets study FOLDER makes them{f'. {left}' if left else ''}")
    parts = [f"{left}\n"] if left else []
    for (data, network), some in shown.items():
        parts += [f"## {title_of(data)}, {network}\n"] if len(shown) > 1 else []
        parts += [f"Schedules × {some.scale:g}: shorter than the recipes'.\n"] if some.scale != 1 else []
        parts += [told for section in SECTIONS for told in section(some)]
    return "\n".join(parts)


def of_one_version(lines: Iterable[Line]) -> tuple[list[Line], str]:
    """The lines of the version that most of them are of, the newest of as many, and what is told of those left out."""
    legible, why = sorted_out(list(lines))
    version = usual(line["dcnets"] for line in legible)
    why.update(f"of dcnets {line['dcnets']}, not {version}" for line in legible if line["dcnets"] != version)
    return [line for line in legible if line["dcnets"] == version], left_out(why)


def families(lines: Iterable[Line]) -> dict[tuple[str, str], list[Line]]:
    """Lines by data set and network, those of the paper's tables first."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        data, network, _ = family_of(line["recipe"])
        found.setdefault((data, network), []).append(line)
    return {family: found[family] for family in sorted(found, key=lambda family: (family != PAPERS, family))}
