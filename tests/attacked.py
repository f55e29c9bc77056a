"""Small networks that have learned ten digits, and digits to attack them with."""

from functools import cache

import torch
from tiny import tiny_data, tiny_model
from torch import nn
from torch.nn import functional as F

KINDS = {
    "plain": {"operator": False},
    "relative": {"magnitude": "tanh"},
    "absolute": {"magnitude": "ball", "radius": "absolute"},
}


def digits(count=24):
    """Images (count, 1, 10, 10) in [0, 1] that no network was trained on, and their classes."""
    split = tiny_data(test=count).test
    return split.images.float() / 255, split.labels.long()


@cache
def learned(kind, seed):
    """The weights of a network after some updates."""
    model, split = tiny_model(seed, **KINDS[kind]), tiny_data(count=512).train
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(60):
        some = torch.randint(512, (64,), generator=draws)
        optimiser.zero_grad()
        F.cross_entropy(model(split.images[some].float() / 255), split.labels[some].long()).backward()
        optimiser.step()
    return model.state_dict()


def network(kind="relative", seed=0):
    """A network in training mode."""
    model = tiny_model(seed, **KINDS[kind])
    model.load_state_dict(learned(kind, seed))
    return model


class Wrapped(nn.Module):
    """A network whose logits go through a function."""

    def __init__(self, model, function):
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x):
        return self.function(self.model(x))
