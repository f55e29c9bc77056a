"""The evaluation of a trained run as a line of results."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from dcnets.experiments import results
from dcnets.experiments.checkpoint import short_name
from dcnets.experiments.rebuild import Rebuilt
from dcnets.experiments.robustness import lipschitz
from dcnets.experiments.robustness.evaluation import Evaluation


def line(found: Evaluation, rebuilt: Rebuilt, device: str, precision: torch.dtype) -> dict[str, Any]:
    """The evaluation of a network for `results/`: accuracies are shares of the images."""
    wanted = found.wanted
    told: dict[str, Any] = {
        **results.environment(device), "network": found.name, "checkpoint": short_name(rebuilt.checkpoint.path),
        "step": rebuilt.checkpoint.step, "recipe": asdict(rebuilt.recipe), "images": found.clean.count,
        "precision": str(precision).removeprefix("torch."), "clean": found.clean.accuracy,
        "attacks": [
            {"attack": trial.attack, **trial.settings(), "accuracy": outcome.accuracy, "error": outcome.error}
            for curve, trials in zip(found.curves, found.attacks, strict=True)
            for outcome, trial in zip(curve.outcomes, trials, strict=True)
        ],
        "blocked": dict(found.blocked),
        "worst": {} if found.blocked else dict(zip(map(str, found.worst.eps), found.worst.accuracies, strict=True)),
    }  # fmt: skip
    if found.matrix and wanted.transfer:
        cells = {row: accuracies[found.name] for row, accuracies in found.matrix.accuracies().items()}
        told["transfer"] = {"attack": wanted.transfer.attack, **wanted.transfer.settings(), "accuracy": cells}
    if found.report:
        told["masking"] = found.report.line()
    if found.local and wanted.lipschitz:
        told["lipschitz"] = lipschitz.told(wanted.lipschitz, found.local)
    return {**told, "seconds": round(found.seconds, 2)}
