"""Tables and cells of the paper as a person names them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from dcnets.cli.failures import Misuse
from dcnets.cli.words import Word
from dcnets.experiments import paper
from dcnets.experiments.paper import Cell
from dcnets.naming import choose, near_miss

ALL = "all"


def table_names() -> list[str]:
    """What can be asked for."""
    return [*paper.TABLES, *paper.EXTRA, ALL]


def read_table(text: str) -> str:
    """The name of a table; its number alone will do."""
    return choose("table", f"table{text}" if text.isdecimal() else text.lower(), table_names())


class TableName(Word):
    """The name of a table, of a figure or of networks beside Tables 7 and 8, or `all`, which is every table."""

    such_as = ", such as table3; all is every table"

    def __init__(self) -> None:
        super().__init__("table", read_table, table_names)


def chosen(tables: Iterable[str], patterns: Sequence[str]) -> list[Cell]:
    """The cells of the tables that some pattern fits, all of them without patterns; each pattern has to fit one."""
    names = list(dict.fromkeys(name for table in tables for name in (paper.TABLES if table == ALL else (table,))))
    cells = list(dict.fromkeys(cell for name in names for cell in cells_of(name)))
    for pattern in patterns:
        if not any(fits(cell, pattern) for cell in cells):
            known = {cell.name if "/" in pattern else cell.name.partition("/")[0] for cell in cells}
            raise Misuse(f"no cell {pattern!r} in {', '.join(names)}; {near_miss(pattern.lower(), known)}")
    return [cell for cell in cells if not patterns or any(fits(cell, pattern) for pattern in patterns)]


def cells_of(name: str) -> tuple[Cell, ...]:
    """The cells of a table, with rows of our own, or of what can be asked for besides."""
    return paper.EXTRA.get(name) or (*paper.TABLES[name].cells, *paper.OWN_ROWS.get(name, ()))


def fits(cell: Cell, pattern: str) -> bool:
    """Whether a cell's name or recipe is, or else contains, the pattern; one with * or ? has to fit the whole of it."""
    wild, texts = any(sign in pattern for sign in "*?["), [cell.name, *([cell.recipe] if cell.recipe else [])]
    return any(fnmatch.fnmatchcase(text, pattern.lower()) if wild else pattern.lower() in text for text in texts)
