"""The conditions under which everything in the table is measured."""

from __future__ import annotations

from typing import Any

import torch

from dcnets.experiments.gpu_table import timing


def precision(device: torch.device) -> torch.dtype:
    """bf16, but on a CPU float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def conditions(device: torch.device) -> dict[str, Any]:
    """What results say of them: the formats, and how often both sides were timed."""
    return {
        "precision": str(precision(device)).removeprefix("torch."), "memory_format": "channels_last",
        "rounds": timing.ROUNDS, "steps": timing.STEPS,
    }  # fmt: skip
