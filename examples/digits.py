"""Small networks on scikit-learn's digits: each of decoupled layers, and its plain twin from the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets import DecoupledConv2d

SEED, BATCH, RATE = 0, 32, 2e-3
TIMED_BATCH = 256
"""Images in a timed step: enough for the arithmetic to outweigh the calls."""
GOAL = 0.95
"""The test accuracy that the table counts the epochs to."""


@dataclass(frozen=True)
class Contestant:
    """One network of the comparison; no operator means nn.Conv2d."""

    operator: str | None
    relu: bool

    @property
    def name(self) -> str:
        return (self.operator or "nn.Conv2d") + ("" if self.relu else ", no ReLU")

    @property
    def twin(self) -> Contestant:
        """The same network of nn.Conv2d."""
        return Contestant(None, self.relu)


CONTESTANTS = (
    Contestant(None, relu=True),
    Contestant("tanh-cosine", relu=True),
    Contestant("sphere-linear", relu=True),
    Contestant("segmented-square_cosine", relu=False),
    Contestant(None, relu=False),
)


@dataclass
class Run:
    """What came of training one network: a number an epoch, and the time of a step against its twin's."""

    contestant: Contestant
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    step_ratio: float = 1.0

    @property
    def epochs_to_goal(self) -> int | None:
        """The first epoch at whose end the goal was reached."""
        return next((epoch for epoch, accuracy in enumerate(self.accuracies, 1) if accuracy >= GOAL), None)


@dataclass(frozen=True)
class Data:
    """Images (samples, 1, 8, 8) of mean 0 and deviation 1, and their digits."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def load() -> Data:
    """One half of the digits to train on, the other to test on."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images, digits, test_size=0.5, random_state=SEED, stratify=digits)
    x, x_test = (torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) for part in parts[:2])
    y, y_test = (torch.tensor(part) for part in parts[2:])
    mean, deviation = x.mean(), x.std()
    return Data((x - mean) / deviation, y, (x_test - mean) / deviation, y_test)


def network(contestant: Contestant) -> nn.Sequential:
    """Three convolutions with batch norm and a linear classifier; the weights depend on the seed alone."""

    def convolution(before: int, after: int) -> nn.Module:
        if contestant.operator is None:
            return nn.Conv2d(before, after, 3, padding=1, bias=False)
        magnitude, angular = contestant.operator.split("-")
        return DecoupledConv2d(before, after, 3, padding=1, magnitude=magnitude, angular=angular)

    def block(before: int, after: int, *last: nn.Module) -> nn.Sequential:
        # This momentum forgets batch norm's initial variance of 1, far above that of a bounded operator, within an epoch.
        norm = nn.BatchNorm2d(after, momentum=0.2)
        activation = nn.ReLU() if contestant.relu else nn.Identity()
        return nn.Sequential(convolution(before, after), norm, activation, *last)

    torch.manual_seed(SEED)
    return nn.Sequential(
        block(1, 32), block(32, 64, nn.AvgPool2d(2)), block(64, 64, nn.AdaptiveAvgPool2d(1)), nn.Flatten(), nn.Linear(64, 10)
    )


def batches(data: Data, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The training set in full batches, in an order that depends on the epoch alone."""
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(SEED + epoch))
    for some in order[: len(order) // BATCH * BATCH].split(BATCH):
        yield data.x[some], data.y[some]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One update; returns the loss before it."""
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(contestant: Contestant, data: Data, epochs: int, report: Callable[[Run], None]) -> Run:
    """Train with Adam, its rate falling as a cosine; `report` is called after each epoch."""
    model, run = network(contestant), Run(contestant)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        begin = time.perf_counter()
        model.train()
        losses = [step(model, optimizer, x, y) for x, y in batches(data, epoch)]
        schedule.step()
        run.seconds += time.perf_counter() - begin
        run.losses.append(sum(losses) / len(losses))
        run.accuracies.append(accuracy(model, data))
        report(run)
    return run


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """The share of test digits that are recognised."""
    model.eval()
    return (model(data.x_test).argmax(1) == data.y_test).float().mean().item()


def step_seconds(data: Data, rounds: int = 16) -> dict[Contestant, float]:
    """The median time of a training step of each network; they take turns, so that all see the same machine."""
    models = {contestant: network(contestant) for contestant in CONTESTANTS}
    optimizers = {contestant: torch.optim.Adam(model.parameters(), lr=RATE) for contestant, model in models.items()}
    x, y = data.x[:TIMED_BATCH], data.y[:TIMED_BATCH]
    times: dict[Contestant, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    for _ in range(rounds):
        for contestant, model in models.items():
            begin = time.perf_counter()
            step(model, optimizers[contestant], x, y)
            times[contestant].append(time.perf_counter() - begin)
    return {contestant: median(own[rounds // 8 :]) for contestant, own in times.items()}


def compare_steps(runs: list[Run], data: Data) -> None:
    """Fill in the ratio of each network's step time to its twin's."""
    seconds = step_seconds(data)
    for run in runs:
        run.step_ratio = seconds[run.contestant] / seconds[run.contestant.twin]
