"""Small networks for digits of 14×14: trained as usual, trained by PGD, and built to deceive gradient attacks."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from dcnets import DecoupledConv2d, attacks
from dcnets.experiments import data

EPS = 0.1
UPDATES = 300


def halved(split, count=None):
    """Images (n, 1, 14, 14) in [0, 1] and their classes."""
    return F.avg_pool2d(split.images[:count] / 255, 2), split.labels[:count]


def digits(count=150):
    """Digits that no network was trained on."""
    return halved(data.load("mnist-subset").test, count)


def blank(seed=0, decoupled=False):
    torch.manual_seed(seed)
    convolution = DecoupledConv2d if decoupled else nn.Conv2d
    return nn.Sequential(
        convolution(1, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        convolution(16, 32, 3, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


@cache
def trained(eps=0.0, seed=0, decoupled=False):
    """A network in evaluation mode; with ε above 0 it has seen examples of PGD alone."""
    (x, y), model, draws = (
        halved(data.load("mnist-subset").train),
        blank(seed, decoupled),
        torch.Generator().manual_seed(seed),
    )
    optimiser = torch.optim.Adam(model.parameters())
    for update in range(UPDATES):
        some = torch.randint(len(x), (64,), generator=draws)
        images, labels = x[some], y[some]
        if eps:
            images = attacks.pgd(model, images, labels, eps=eps, step=eps / 2, steps=4, generator=draws)
        optimiser.param_groups[0]["lr"] = 5e-3 * (1 - update / UPDATES)
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return model.eval()


class Built(nn.Module):
    """A network with functions before it and after it."""

    def __init__(self, model, before=lambda x: x, after=lambda z: z):
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x):
        return self.after(self.model(self.before(x)))


FAULTS = {
    "saturated": {"after": lambda z: 1e4 * z},
    "binary": {"after": lambda z: F.one_hot(z.argmax(1), z.shape[1]) + 1e-6 * z},
    "rounded": {"before": lambda x: torch.round(8 * x) / 8},
    "detached": {"after": torch.detach},
    "broken": {"after": lambda z: z + (z - z).abs().sqrt()},  # adds 0, whose gradient is not finite
    "noisy": {"before": lambda x: x + 0.4 * torch.randn_like(x)},
    "shattered": {"before": lambda x: x + 0.2 * torch.sin(126 * x)},
}


def faulty(name):
    """The usual network with a fault that hides its gradients."""
    return Built(trained(), **FAULTS[name])
