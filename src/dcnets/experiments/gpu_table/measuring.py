"""The rows measured one after another, each appended to the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch

from dcnets.experiments import results
from dcnets.experiments.gpu_table.bandwidth import SHAPES, bandwidth
from dcnets.experiments.gpu_table.conditions import conditions
from dcnets.experiments.gpu_table.jobs import Job
from dcnets.experiments.gpu_table.memory import free, peaks
from dcnets.experiments.gpu_table.rows import BANDWIDTH, PLAIN, ROWS, Row
from dcnets.experiments.gpu_table.timing import in_turns

COMPILATIONS = 64
"""How often one function may be compiled anew, once for each network and again where torch finds a reason to."""


def table(chosen: Iterable[str], results_file: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """Measure the rows of these names, each of which is appended to the results as soon as it is there.

    `baseline` is the plain network, or a copy on the device where the bandwidth of a pass is measured; `ratio` is to it,
    taking turns; `control` is the baseline's second half of rounds against its first. Compilation takes most of the time.
    """
    wanted = set(chosen)
    torch.backends.cudnn.benchmark = True
    rows = measure([row for row in ROWS if row.name in wanted], device)
    passes = (bandwidth(shape, device) for shape in SHAPES if BANDWIDTH in wanted)
    for found in chain(rows, chain.from_iterable(passes)):
        results.append(results_file, {**results.environment(device.type), **found})
        yield found


def measure(rows: Sequence[Row], device: torch.device) -> Iterator[dict[str, Any]]:
    """The rows, with one plain network for neighbours of the same case and one of a kind for those that share it too."""
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=COMPILATIONS, fail_on_recompile_limit_hit=True):  # never eager unasked
        for case, of_case in groupby(rows, lambda row: row.case):
            plain = Job(case, PLAIN, device)
            for contender, of_contender in groupby(of_case, lambda row: row.contender):
                own = Job(case, contender, device)
                for row in of_contender:
                    found = peaks(plain, own) if row.of_memory else in_turns(plain, own, device)
                    yield {**described(row, device), **found, "bar": row.bar, "stretch": row.stretch}
                del own
                free(device)
            del plain
            torch._dynamo.reset()
            free(device)


def described(row: Row, device: torch.device) -> dict[str, Any]:
    """What a row measures, and how."""
    case, kind = row.case, row.contender
    path = " by the plain formula" if kind.backend == "reference" else ""
    what = f"{kind.operator}{path}, {case.network}, {case.how}, batch {case.batch}, {case.side}×{case.side}"
    return {
        "row": row.name, "what": what, **asdict(case), **asdict(kind), **conditions(device),
        "unit": "MiB" if row.of_memory else "ms",
    }  # fmt: skip
