"""A network in a form that gradients can attack: its logits brought to one scale and lead, or the mean of several looks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.losses import full_precision

SHARPNESS = 4.0
"""The standard deviation to which the logits of all classes but the leading one are brought."""
LEAD = 1.0
"""How far the leading logit may then be ahead of the next."""


class Rescaled(nn.Module):
    """The same answers, by logits whose softmax neither saturates nor spreads: gradients point at the nearest other class.

    z/s, s being a quarter of the standard deviation of an image's logits without the leading one, of which only so much is
    kept as leaves it a lead of 1. s and what is taken are constants to the gradient. So an attack sees again what large
    logits had flattened, and which other class is near, where all but the leading logit are small.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits = full_precision(self.model(x))
        values = logits.detach()
        (first, second), (leading, _) = (each.T for each in values.topk(2, 1))
        led = F.one_hot(leading, values.shape[1]).bool()
        others = values.masked_select(~led).view(len(values), -1)
        spread = others.std(1, correction=0) / SHARPNESS
        scale = torch.where(spread > 0, spread, 1)
        taken = ((first - second) / scale - LEAD).clamp(min=0)
        rescaled: Tensor = logits / scale[:, None] - led * taken[:, None]
        return rescaled


class Averaged(nn.Module):
    """The mean log-probability of several looks at an image: what to attack where a network answers at random.

    It is expectation over transformation (Athalye et al., 2018), the transformation being the network's own.
    """

    def __init__(self, model: nn.Module, looks: int) -> None:
        super().__init__()
        self.model, self.looks = model, looks

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([F.log_softmax(self.model(x).float(), 1) for _ in range(self.looks)]).mean(0)
