"""The rows measured one after another, each appended to the results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from dcnets.experiments import results
from dcnets.experiments.gpu_table.apart import Contest, measured_apart
from dcnets.experiments.gpu_table.bandwidth import SHAPES
from dcnets.experiments.gpu_table.contest import Networks, Passes
from dcnets.experiments.gpu_table.rows import BANDWIDTH, ROWS

LANES = 8
"""So many processes at most are given networks to compile at once."""


def table(
    chosen: Iterable[str], results_file: Path, device: torch.device, lanes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Measure the rows of these names, each of which is appended to the results as soon as it is there.

    `baseline` is the plain network, or a copy on the device where the bandwidth of a pass is measured; `ratio` is to it,
    taking turns; `control` is the baseline's second half of rounds against its first. First all networks are compiled,
    `lanes` processes at a time: by default half as many as there are cores, with `LANES` at most.
    """
    lanes = lanes or max(1, min(LANES, (os.cpu_count() or 1) // 2))
    for found in measured_apart(contests(set(chosen), device), lanes):
        results.append(results_file, {**results.environment(device.type), **found})
        yield found


def contests(wanted: set[str], device: torch.device) -> dict[str, Callable[[], Contest]]:
    """How to make ready what the rows need, by a name: neighbours that share both networks are one contest."""
    found: dict[str, Callable[[], Contest]] = {}
    for _, of_pair in groupby((row for row in ROWS if row.name in wanted), lambda row: (row.case, row.contender)):
        rows = tuple(of_pair)
        found["+".join(row.name for row in rows)] = partial(Networks, rows, device)
    if BANDWIDTH in wanted:
        found[BANDWIDTH] = partial(Passes, SHAPES, device)
    return found
