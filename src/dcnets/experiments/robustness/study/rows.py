"""Rows of Markdown, and what they are of: which network, which seeds, how many images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dcnets.experiments.robustness.study.collected import Collected
from dcnets.experiments.robustness.study.words import words_for


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Rows of Markdown; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows)) + "\n"


def spoken(found: Collected, part: str, stem: str) -> tuple[str, str]:
    """A network in two columns."""
    line = found.lines[part, stem, found.seeds(part, stem)[0]][-1]
    operator, training, variant = words_for(line["recipe"])
    return operator, f"{training}, {variant}" if variant else training


def images_of(found: Collected, part: str) -> str:
    """How many images a part's numbers are of."""
    return " or ".join(f"{count:,}" for count in sorted({
        line["images"] for (own, _, _), some in found.lines.items() if own == part for line in some
    }))  # fmt: skip


def seeds_of(columns: Mapping[str, Iterable[int]]) -> str:
    """The seeds that most columns of a row are of, and, by name, columns of others; a dash where there are none."""
    told = {name: ", ".join(map(str, sorted(seeds))) for name, seeds in columns.items()}
    most = next((seeds for seeds, _ in Counter(seeds for seeds in told.values() if seeds).most_common(1)), "–")
    return "; ".join([most, *(f"{name}: {seeds}" for name, seeds in told.items() if seeds not in ("", most))])
