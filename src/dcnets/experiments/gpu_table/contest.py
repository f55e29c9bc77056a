"""What a row is measured with, made ready first and measured later: a pair of networks, or the Triton passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from dcnets.experiments.gpu_table.bandwidth import bandwidth, passes
from dcnets.experiments.gpu_table.conditions import conditions
from dcnets.experiments.gpu_table.jobs import Job
from dcnets.experiments.gpu_table.memory import free, peaks
from dcnets.experiments.gpu_table.paths import PATHS
from dcnets.experiments.gpu_table.rows import PLAIN, Row
from dcnets.experiments.gpu_table.timing import in_turns


class Networks:
    """The plain network and another one, compiled; and the rows that compare these two."""

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.jobs = [Job(rows[0].case, contender, device) for contender in (PLAIN, rows[0].contender)]
        free(device)

    def measure(self) -> Iterator[dict[str, Any]]:
        """The rows, one after another."""
        plain, own = self.jobs
        for job in self.jobs:
            job.settle()
        for row in self.rows:
            found = peaks(plain, own) if row.of_memory else in_turns(plain, own, self.device)
            yield {**described(row, self.device), **found, "bar": row.bar, "stretch": row.stretch}


class Passes:
    """The Triton passes over layers of some shapes, compiled."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        self.shapes, self.device = shapes, device
        for shape in shapes:
            for _, run in passes(shape, device).values():
                run()
        free(device)

    def measure(self) -> Iterator[dict[str, Any]]:
        """A row for each."""
        for shape in self.shapes:
            yield from bandwidth(shape, self.device)
            free(self.device)


def described(row: Row, device: torch.device) -> dict[str, Any]:
    """What a row measures, and how."""
    case, kind = row.case, row.contender
    own = f"{kind.operator}{PATHS[kind.path].words}"
    what = f"{own}, {case.network}, {case.how}, batch {case.batch}, {case.side}×{case.side}"
    return {
        "row": row.name, "what": what, **asdict(case), **asdict(kind), **conditions(device),
        "unit": "MiB" if row.of_memory else "ms",
    }  # fmt: skip
