"""The memory that a step needs at most, and its return."""

from __future__ import annotations

import gc

import torch

from dcnets.experiments.gpu_table.jobs import Job


def peaks(plain: Job, own: Job) -> dict[str, float]:
    """The memory that two jobs need at most, in MiB, their ratio, and the control."""
    base, measured, again = peak_mib(plain), peak_mib(own), peak_mib(plain)
    return {"baseline": base, "measured": measured, "ratio": measured / base, "control": again / base}


def peak_mib(job: Job) -> float:
    """The most memory allocated in a step, without what belongs to others."""
    torch.cuda.synchronize(job.device)
    others = torch.cuda.memory_allocated(job.device) - job.held_bytes()
    torch.cuda.reset_peak_memory_stats(job.device)
    job()
    torch.cuda.synchronize(job.device)
    return (torch.cuda.max_memory_allocated(job.device) - others) / 2**20


def free(device: torch.device) -> None:
    """Give back the memory of what is gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
