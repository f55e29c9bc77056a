"""Labels within their range."""

from __future__ import annotations

from torch import Tensor

from dcnets.experiments.data.errors import flaw


def check_labels(where: str, labels: Tensor, classes: int, first: int, step: int = 1) -> None:
    """Refuse a label that is no class; label i lies at byte `first` + i·`step` of its file."""
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        raise flaw(where, first + index * step, f"image {index} has label {int(labels[index])}, expected 0 to {classes - 1}")
