"""What a run tells of itself: a test in one line, and which layer's weights are the largest."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def told(row: dict[str, Any]) -> str:
    """A test in one line."""
    return (
        f"epoch {row['epoch']:.4g}: loss {row['loss']:.4f}, test error {1 - row['test_top1']:.2%}, "
        f"top-5 error {1 - row['test_top5']:.2%}"
    )


def largest(model: nn.Module) -> str:
    """The layer whose weights have the largest norm, in words; one that is not finite counts as largest."""
    norms = {
        name or "the model": float(torch.linalg.vector_norm(module.weight.detach().float()))
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), Tensor)
    }
    name = max(norms, key=lambda layer: norms[layer] if math.isfinite(norms[layer]) else math.inf)
    return f"the largest weights were those of {name}, of norm {norms[name]:.3g}"
