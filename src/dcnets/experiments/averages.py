"""Batch norm's running statistics at the start of a run: plain means of all batches, until decay forgets more than that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Norm = nn.modules.batchnorm._BatchNorm


class Averages:
    """The running statistics of a model's batch norms, r ← (1 − s)·r + s·b with each batch's b.

    torch has one s from the first batch on, and begins with a mean of 0 and a variance of 1. Of these (1 − s)ᵗ is left after
    t batches: with the authors' s = 0.001 a bounded operator's responses, whose variance may be a thousandth, are tested as
    if they were constant for thousands of updates, and adversarial training attacks that network. Here batch t, counted
    from 1, has the share 1/t while that is the larger one. Decoupled layers average their norms alike.
    """

    def __init__(self, model: nn.Module, pieces: int = 1) -> None:
        """`pieces` is the number of batches that an update sees."""
        kept: dict[float, list[Tensor]] = {}
        for norm in model.modules():
            if isinstance(norm, Norm) and norm.track_running_stats and norm.momentum:
                some = (norm.running_mean, norm.running_var)
                kept.setdefault((1 - norm.momentum) ** pieces, []).extend(each for each in some if each is not None)
        self.groups = [(1 - keep, tensors) for keep, tensors in kept.items()]

    @contextmanager
    def over(self, update: int) -> Iterator[None]:
        """Within it an update is done, `update` being the number of those before it."""
        share = 1 / (update + 1)
        young = [(share / own, tensors, [each.clone() for each in tensors]) for own, tensors in self.groups if share > own]
        yield
        for times, tensors, before in young:
            # r' = r + s·(b − r) has been done; r + t·(b − r) is r + (t/s)·(r' − r)
            torch._foreach_sub_(tensors, before)
            torch._foreach_mul_(tensors, times)
            torch._foreach_add_(tensors, before)
            torch._foreach_clamp_min_(tensors[1::2], 0.0)  # a variance that is small beside the first one, 1, may be rounded
