"""Rows of Markdown, and how many images they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dcnets.experiments.robustness.study.collected import Collected


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Rows of Markdown; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows)) + "\n"


def images_of(found: Collected, part: str) -> str:
    """How many images a part's numbers are of."""
    return " or ".join(f"{count:,}" for count in sorted({
        line["images"] for (own, _, _), some in found.lines.items() if own == part for line in some
    }))  # fmt: skip
