"""What is known of a cell: the runs that count, those that stand apart, and the numbers that come of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from dcnets.experiments.paper import OWN_ROWS, TABLES, Cell, Published, Table
from dcnets.experiments.reproduce.lines import Line


@dataclass(frozen=True)
class Standard:
    """What all runs in the tables share: the version of dcnets that made them, and their arithmetic."""

    version: str
    arithmetic: str

    @classmethod
    def of(cls, line: Line) -> Standard:
        """That of a line."""
        return cls(str(line.get("dcnets")), str(line.get("precision")))


@dataclass(frozen=True)
class Told:
    """What a line says of a cell: a number, why it would not count, and the images that it is of where these are not all."""

    value: float | str | None
    why: tuple[str, ...] = ()
    images: int | None = None


@dataclass(frozen=True)
class Sample:
    """A run that counts: its seed, the cell's number and the whole line."""

    seed: int
    value: float | str
    line: Line


@dataclass(frozen=True)
class Aside:
    """A run of a cell's recipe that does not count, and why; `scale` is that of a shortened one.

    `images` is the number of test images where they are not all; `alike` says that nothing but these two is another.
    """

    value: float | str | None
    why: str
    line: Line
    scale: float = 1.0
    images: int | None = None
    alike: bool = False


@dataclass(frozen=True)
class Result:
    """A cell beside our runs of it."""

    cell: Cell
    samples: tuple[Sample, ...] = ()
    asides: tuple[Aside, ...] = ()

    @property
    def converged(self) -> list[float]:
        """The numbers of the runs that did not diverge."""
        return [each.value for each in self.samples if not isinstance(each.value, str)]

    @property
    def lost(self) -> int:
        """How many diverged."""
        return len(self.samples) - len(self.converged)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that converged."""
        return statistics.fmean(self.converged) if self.converged else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds, n − 1 below; None of fewer than two."""
        return statistics.stdev(self.converged) if len(self.converged) > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean over seeds; None of fewer than two, or where one diverged."""
        return None if self.std is None or self.lost else self.std / math.sqrt(len(self.converged))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that count."""
        return tuple(each.seed for each in self.samples)

    @property
    def shorter(self) -> dict[tuple[float, int | None], Result]:
        """The runs that only a shorter schedule or fewer images keep from counting, by scale and images, as results."""
        found: dict[tuple[float, int | None], list[Sample]] = {}
        for each in self.asides:
            if each.alike and each.value is not None:
                sample = Sample(int(each.line["recipe"].get("seed", 0)), each.value, each.line)
                found.setdefault((each.scale, each.images), []).append(sample)
        longest = sorted(found, key=lambda key: (-key[0], -(key[1] or math.inf)))
        return {key: Result(self.cell, tuple(sorted(found[key], key=lambda own: own.seed))) for key in longest}


@dataclass(frozen=True)
class Collected:
    """All cells with our runs; the standard that they share; the lines that belong to no cell; what was torn.

    `attacked` has the lines of networks that were attacked at several ε.
    """

    results: Mapping[Cell, Result]
    standard: Standard | None = None
    elsewhere: tuple[Line, ...] = ()
    torn: tuple[str, ...] = ()
    attacked: tuple[Line, ...] = ()

    @property
    def version(self) -> str | None:
        """The version of dcnets that the runs which count share."""
        return self.standard.version if self.standard else None

    def at(self, table: int, row: str, column: str) -> Result:
        """The result at a place."""
        return self.results[TABLES[f"table{table}"].cell(row, column)]

    def of(self, table: Table) -> list[Result]:
        """The results of a table, row by row, without rows of our own."""
        return [self.results[cell] for cell in table.cells]

    def own_rows(self, table: Table) -> list[Result]:
        """The results of the rows of our own below a table."""
        return [self.results[cell] for cell in OWN_ROWS.get(table.name, ())]

    @property
    def samples(self) -> list[Sample]:
        """Every run that counts, once."""
        found = {id(each.line): each for result in self.results.values() for each in result.samples}
        return list(found.values())

    @property
    def asides(self) -> list[Aside]:
        """Every run that stands apart, once."""
        found = {id(each.line): each for result in self.results.values() for each in result.asides}
        return list(found.values())


def whole_or_nothing(published: Published) -> float | None:
    """A published number, or None for N/C and a dash."""
    return published if isinstance(published, float | int) else None
