"""The time of two jobs that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import torch

ROUNDS, STEPS = 10, 5
"""In each round both sides take so many steps; an even number, since half of the rounds are compared with the other half."""


def in_turns(baseline: Callable[[], object], own: Callable[[], object], device: torch.device) -> dict[str, float]:
    """The median milliseconds of two jobs that take turns, their ratio, and the control."""
    turns = [[milliseconds(job, device) for job in (baseline, own)] for _ in range(ROUNDS)]
    early, late = turns[: ROUNDS // 2], turns[ROUNDS // 2 :]

    def median(turns: list[list[list[float]]], side: int) -> float:
        return statistics.median(chain.from_iterable(turn[side] for turn in turns))

    base, measured = median(turns, 0), median(turns, 1)
    control = median(late, 0) / median(early, 0)
    return {"baseline": base, "measured": measured, "ratio": measured / base, "control": control}


def milliseconds(job: Callable[[], object], device: torch.device) -> list[float]:
    """The time of each of some calls in a row, after one that is not timed; on a GPU by its events."""
    job()
    if device.type != "cuda":
        moments = [time.perf_counter()]
        for _ in range(STEPS):
            job()
            moments.append(time.perf_counter())
        return [1000 * (end - begin) for begin, end in pairwise(moments)]
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        job()
        event.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) for begin, end in pairwise(events)]
