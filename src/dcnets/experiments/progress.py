"""Progress for people: a live bar on a terminal, a few lines in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dcnets.experiments.bar import Bar

Item = TypeVar("Item")
REFRESH = 5
"""Pictures of the bar a second."""
LINE_SECONDS = 10.0
"""The time from one line in a log to the next."""


class Progress:
    """A bar with steps, loss, accuracy, images a second and the time left; use it in a `with` block.

    On a terminal it is drawn in place, on stderr unless a console is given. Elsewhere there is a line every ten seconds and
    one at the end. `quiet` leaves notes alone.
    """

    def __init__(
        self, title: str, total: int, *, unit: str = "step", images_per_step: int | None = None, quiet: bool = False,
        console: Console | None = None,
    ) -> None:  # fmt: skip
        self.console = console or Console(stderr=True)
        self.bars = [Bar(title, total, unit, images_per_step)]
        live = self.console.is_terminal and not self.console.is_dumb_terminal and not quiet
        self.live = Live(console=self.console, refresh_per_second=REFRESH, get_renderable=self.picture) if live else None
        self.lines = not live and not quiet
        self.next_line = self.bars[0].begin + LINE_SECONDS
        self.line_step = -1

    def update(
        self, step: int, *, loss: float | None = None, accuracy: float | None = None, rate: float | None = None
    ) -> None:
        """Show that `step` steps are done; what is not given stays as it was.

        `accuracy` is a share of 1, `rate` the learning rate. A run that goes on at step k
        calls this with k first: speed and time left count from there.
        """
        now = self.bars[0].update(step, loss, accuracy, rate)
        if self.lines and now >= self.next_line:
            self.next_line = now + LINE_SECONDS
            self.line()

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def track(self, items: Iterable[Item], title: str, total: int, *, unit: str = "batch") -> Iterator[Item]:
        """Go through items with a second bar below the first, where there are bars; `total` is their number."""
        bar = Bar(title, total, unit, None)
        self.bars.append(bar)
        try:
            bar.update(0, None, None, None)
            for number, item in enumerate(items, 1):
                yield item
                bar.update(number, None, None, None)
        finally:
            self.bars.remove(bar)

    def line(self) -> None:
        """The state as one line."""
        bar = self.bars[0]
        self.note(f"{bar.title}: {', '.join([*bar.numbers(), bar.time_told()])}")
        self.line_step = bar.step

    def picture(self) -> RenderableType:
        """The bars as they are drawn: title, bar and time, the numbers below."""
        return Group(*(part for bar in list(self.bars) for part in drawn(bar, self.console.width)))

    def __enter__(self) -> Progress:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
        elif self.lines and self.line_step != self.bars[0].step:
            self.line()


def drawn(bar: Bar, width: int) -> tuple[RenderableType, RenderableType]:
    """Two lines for one bar; on a narrow terminal the bar shrinks, and the last numbers are left out."""
    top = Table.grid(padding=(0, 1), expand=True)
    top.add_column(no_wrap=True, overflow="ellipsis")
    top.add_column(ratio=1, min_width=4)
    top.add_column(no_wrap=True, justify="right", min_width=16)
    share = f"{100 * bar.step // max(bar.total, 1):3} %"
    line = ProgressBar(total=max(bar.total, 1), completed=bar.step, complete_style="cyan", finished_style="green")
    top.add_row(Text(bar.title, style="bold"), line, Text(f"{share}  {bar.time_told()}"))
    shown = bar.numbers()
    while len(shown) > 1 and len("  ".join(["", *shown])) > width:
        shown.pop()
    return top, Text("  ".join(["", *shown]), no_wrap=True, overflow="ellipsis")
