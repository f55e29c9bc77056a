"""Jobs made ready to be timed: warmed up, or captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dcnets.experiments.update import WARM_UP


def warmed_up(job: Callable[[], object]) -> Callable[[], object]:
    """The job after some calls: compilation, cuDNN's choice of algorithms, the optimiser's first state."""
    for _ in range(WARM_UP):
        job()
    return job


def captured(job: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The job as a CUDA graph; on a CPU as it is."""
    if device.type != "cuda":
        return warmed_up(job)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        warmed_up(job)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job()
    return graph.replay
