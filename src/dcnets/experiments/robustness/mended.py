"""A network in a form that gradients can attack: its logits brought to one scale, or the mean of several looks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Rescaled(nn.Module):
    """z/s, s being the standard deviation of an image's logits: the same answers, and a softmax that cannot saturate."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        scale = logits.detach().float().std(1, keepdim=True)
        return logits / torch.where(scale > 0, scale, 1).to(logits.dtype)


class Averaged(nn.Module):
    """The mean log-probability of several looks at an image: what to attack where a network answers at random.

    It is expectation over transformation (Athalye et al., 2018), the transformation being the network's own.
    """

    def __init__(self, model: nn.Module, looks: int) -> None:
        super().__init__()
        self.model, self.looks = model, looks

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([F.log_softmax(self.model(x).float(), 1) for _ in range(self.looks)]).mean(0)
