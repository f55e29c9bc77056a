"""What a command prints: tables, drawn on a terminal and plain elsewhere, and bars for what takes long."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from rich.table import Table

Item = TypeVar("Item")


def show(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = (), *, cut: Sequence[str] = ()
) -> None:  # fmt: skip
    """A table; the columns of `numbers` are aligned to the right.

    On a terminal long texts go on in the next line; with `cut` a row is one line, and where there is no room these columns
    are left out, the first one first.
    """
    from rich.console import Console

    console, table = Console(), [columns, *rows]
    if console.is_terminal:
        console.print(drawn(table, numbers, cut, console.width))
    else:
        plain(table, numbers)


def drawn(table: Sequence[Sequence[str]], numbers: Collection[str], cut: Sequence[str], room: int) -> Table:
    """The table as a terminal shows it, its first row being the heads of the columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    shown = list(range(len(widths)))
    for name in cut:
        if sum(widths[at] + 3 for at in shown) > room:
            shown.remove(table[0].index(name))
    picture = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for at in shown:
        right, first, last = table[0][at] in numbers, at == 0, at == shown[-1]
        rest = room - sum(widths[other] + 3 for other in shown[:-1]) - 2
        picture.add_column(
            table[0][at], justify="right" if right else "left", no_wrap=right or bool(cut),
            overflow="ellipsis" if cut else "fold",
            min_width=widths[at] if right or (cut and first) else None, max_width=max(rest, 8) if cut and last else None,
        )  # fmt: skip
    for row in table[1:]:
        picture.add_row(*(Text(row[at]) for at in shown))
    return picture


def plain(table: Sequence[Sequence[str]], numbers: Collection[str]) -> None:
    """The table as lines, one a row, whatever their length."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    for row in table:
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for cell, width, column in zip(row, widths, table[0], strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def counted(items: Iterable[Item], count: int, batch: int, title: str, *, quiet: bool = False) -> Iterator[Item]:
    """Go through the batches of so many images with a bar on stderr."""
    from dcnets.experiments.progress import Progress

    with Progress(title, math.ceil(count / batch), unit="batch", images_per_step=batch, quiet=quiet) as progress:
        progress.update(0)
        for number, item in enumerate(items, 1):
            yield item
            progress.update(number)


def percent(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.2f} %"
