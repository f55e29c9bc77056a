"""One run of a plan, in whatever process an engine gives it: what came of it is handed back, never raised."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from dcnets.experiments import run as training
from dcnets.experiments.distributed import Team
from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.lines import Line
from dcnets.experiments.settings import Settings
from dcnets.experiments.signals import StoppedError


@dataclass(frozen=True)
class Order:
    """How all runs of a plan are carried out."""

    device: str = "cpu"
    data: Path | None = None
    settings: Settings = field(default_factory=lambda: Settings(quiet=True))
    threads: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a run ended; a `lost` one had its process killed, and can go on."""

    job: Job
    how: Literal["done", "failed", "stopped", "lost"]
    line: Line | None = None
    told: str = ""


def attempt(job: Job, order: Order) -> Ended:
    """Do a run, or go on with it, and say how it ended; a traceback goes to stderr."""
    try:
        if order.threads is not None:
            torch.set_num_threads(order.threads)
        return Ended(job, "done", perform(job, order))
    except StoppedError as error:
        return Ended(job, "stopped", told=str(error))
    except Exception as error:
        traceback.print_exc()
        return Ended(job, "failed", told=f"{type(error).__name__}: {' '.join(str(error).split())}")


def perform(job: Job, order: Order) -> Line:
    """Train, and return the line; also of a run that had ended before its line was written."""
    outcome = training.run(
        job.recipe, data_folder=order.data, folder=job.folder, start=job.start, device=order.device, settings=order.settings
    )
    place = torch.device(order.device)
    return training.line(outcome, Team(), place, training.chosen_precision(job.recipe, place), order.settings)
