"""How well a network does on a test set: top-1 and top-5 accuracy and the loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.experiments.update import arithmetic
from dcnets.modes import evaluating


@dataclass(frozen=True)
class Scores:
    """Shares of `count` images whose class, one of `classes`, was the first, or among the first five; the mean loss.

    `alike`: every image had the same logits, to the bit.
    """

    top1: float
    top5: float
    loss: float
    count: int
    classes: int
    alike: bool = False

    @property
    def guessed(self) -> bool:
        """Whether no more images were recognised than by blind guessing."""
        return as_by_guess(self.top1, self.count, self.classes)


def as_by_guess(share: float, count: int, classes: int) -> bool:
    """Whether a share of `count` images is no more than a blind guess gets right, three standard errors allowed."""
    guess = 1 / classes
    return share <= guess + 3 * math.sqrt(guess * (1 - guess) / count)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: torch.dtype = torch.float32) -> Scores:
    """Score a model in evaluation mode; its mode is put back afterwards."""
    totals: Tensor | None = None
    first: Tensor | None = None
    count = classes = 0
    with evaluating(model):
        for x, y in batches:
            with arithmetic(x.device, precision):
                logits = model(x).float()
            ranked = logits.topk(min(5, logits.shape[1])).indices == y[:, None]
            loss = F.cross_entropy(logits, y, reduction="sum")
            first = logits[:1] if first is None else first
            found = torch.stack([ranked[:, 0].sum(), ranked.sum(), loss.double(), (logits != first).sum()]).double()
            totals = found if totals is None else totals + found
            count, classes = count + len(y), logits.shape[1]
    if totals is None:
        raise ValueError("evaluate got no batches; is the test set empty?")
    top1, top5, loss_sum, different = totals.tolist()
    return Scores(top1 / count, top5 / count, loss_sum / count, count, classes, different == 0)
