"""What a table, a cell and a figure of the paper are, as frozen data without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Published = float | Literal["N/C"] | None
"""A number as printed, "N/C" where the network did not converge, None where the paper prints a dash."""
Metric = Literal["top1_error", "top5_error", "accuracy"]
"""What a table counts, in percent; errors have the names that they have in `results/`."""


@dataclass(frozen=True)
class Cell:
    """One number of a table and the run that it comes from.

    `recipe` is None where there is nothing to run: a dash, or a number that the paper took from elsewhere. `start` is the
    recipe whose network gives the first weights. `attack` is what the test images are put through, and `substitute` the
    recipe of the network that they are made on; without one it is the network itself. `beside` is another substitute, whose
    number is told beside the cell's. A network that a `figure` shows and no table has is of table 0.
    """

    table: int
    row: str
    column: str
    published: Published
    recipe: str | None = None
    start: str | None = None
    attack: Literal["none", "fgsm", "bim"] | None = None
    substitute: str | None = None
    beside: str | None = None
    figure: int | None = None

    @property
    def place(self) -> str:
        """Where the paper has it: the number of its table, or its figure."""
        return f"fig{self.figure}" if self.figure else str(self.table)

    @property
    def name(self) -> str:
        """The cell's name in its table, as `segconv/sq_cosine_without_relu`."""
        return f"{short(self.row)}/{short(self.column)}"

    @property
    def under_attack(self) -> bool:
        """Whether it is an accuracy under attack, which takes more than a run."""
        return self.attack not in (None, "none")


@dataclass(frozen=True)
class Table:
    """A table of the paper; `cells` go row by row."""

    number: int
    caption: str
    metric: Metric
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The table's name on the command line."""
        return f"table{self.number}"

    def cell(self, row: str, column: str) -> Cell:
        """The cell at a place."""
        return self.cells[self.rows.index(row) * len(self.columns) + self.columns.index(column)]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, in our words, and the recipes whose runs it shows."""

    number: int
    shows: str
    recipes: tuple[str, ...] = ()


def short(text: str) -> str:
    """A label as a word to type: small letters, digits and _."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def tabulated(
    number: int, caption: str, metric: Metric, columns: Sequence[str], rows: Mapping[str, Sequence[Published]],
    source: Callable[[str, str], Mapping[str, Any]],
) -> Table:  # fmt: skip
    """A table from its rows as printed; `source` says what makes the cell of a row and a column, dashes excepted."""
    cells = tuple(
        Cell(number, row, column, published, **(source(row, column) if published is not None else {}))
        for row, numbers in rows.items()
        for column, published in zip(columns, numbers, strict=True)
    )
    return Table(number, caption, metric, tuple(rows), tuple(columns), cells)
