"""The mean norm that the batches of all processes have together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


class SharedMean:
    """The mean norm over the batches of all processes, with its gradient; `seen` is 0 where all of them were empty."""

    seen: Tensor

    def __call__(self, n: Tensor) -> Tensor:
        total: Tensor = SumOfProcesses.apply(torch.stack([n.sum(), n.new_tensor(float(n.numel()))]))  # type: ignore[no-untyped-call]
        self.seen = (total[1] > 0).long()
        return torch.where(total[1] > 0, total[0] / total[1].clamp(min=1), 1.0)


class SumOfProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        total = t.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        total: Tensor = SumOfProcesses.apply(d)  # type: ignore[no-untyped-call]  # itself, so that it has a gradient too
        return total
