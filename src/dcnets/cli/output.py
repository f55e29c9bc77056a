"""What a command prints: tables, drawn on a terminal and plain elsewhere, and bars for what takes long."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import click

Item = TypeVar("Item")


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """A table; the columns of `numbers` are aligned to the right."""
    from rich.console import Console

    console, rows = Console(), list(rows)
    if not console.is_terminal:
        plain(columns, rows, numbers)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        right, last = column in numbers, number == len(columns) - 1
        table.add_column(
            column, justify="right" if right else "left", no_wrap=right or not number, ratio=1 if last else None
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str]) -> None:
    """The table as lines, one a row, whatever their length."""
    table = [columns, *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(columns))]
    for row in table:
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
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
