"""One update of the weights, eager or as a captured CUDA graph: sampling, forward, backward, optimiser."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from dcnets.decoupled import Decoupled
from dcnets.experiments.adversary import Adversary
from dcnets.experiments.distributed import Team
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.regulariser import Regulariser
from dcnets.optim import parameter_groups

if TYPE_CHECKING:
    from dcnets.experiments.data.source import Source

WARM_UP = 3
"""Updates before a capture: compilation, cuDNN's choice of algorithms, the optimiser's first state."""


def make_optimiser(model: nn.Module, recipe: Recipe, device: torch.device) -> Optimizer:
    """The recipe's optimiser with a rate that is a tensor, so that a captured update sees it change."""
    groups = parameter_groups(model, recipe.weight_decay)
    rate = torch.tensor(recipe.rate, device=device)
    capturable = device.type == "cuda"
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum, fused=True)
    kind = torch.optim.Adam if recipe.optimiser == "adam" else torch.optim.AdamW
    return kind(groups, lr=rate, betas=(recipe.momentum, 0.999), fused=True, capturable=capturable)


def decoupled_body(model: nn.Module) -> nn.ModuleList:
    """The decoupled layers without a weight-normalised classifier, which is neither projected nor penalised."""
    return nn.ModuleList(each for each in model.modules() if isinstance(each, Decoupled) and each.has_filters)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Change the learning rate where the captured update reads it."""
    for group in optimiser.param_groups:
        group["lr"].fill_(rate)


class Update:
    """An update each time that it is called; loss and hits add up in `totals`, on the device.

    `diverged` is the number of the first update whose loss was not finite, or −1; from then on the weights stay as they
    are, so that they can be looked at.
    """

    def __init__(
        self, model: nn.Module, source: Source, optimiser: Optimizer, recipe: Recipe, *, device: torch.device, team: Team,
        precision: torch.dtype, pieces: int = 1, compiled: bool = False, sync_bn: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.optimiser, self.team = source, optimiser, team
        self.device, self.precision, self.pieces = device, precision, pieces
        self.smoothing = recipe.label_smoothing
        body = decoupled_body(model)
        self.regulariser: Regulariser | None = None
        if len(body) > 0 and recipe.penalty:
            self.regulariser = Regulariser(body, recipe.penalty, recipe.penalty_weight / 2, device)
        self.model, self.wrapped = model, team.wrap(model, device, sync_bn)
        self.adversary: Adversary | None = None
        if recipe.adversary:
            forward = partial(arithmetic, device, precision)
            self.adversary = Adversary(model, source, recipe, device=device, arithmetic=forward, compiled=compiled)
        self.score = torch.compile(self.scored, dynamic=False) if compiled else self.scored
        self.book = torch.compile(booked, dynamic=False) if compiled else booked
        self.totals = torch.zeros(3, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.long, device=device)
        self.diverged = torch.full((), -1, dtype=torch.long, device=device)
        self.skip = torch.zeros((), device=device)
        optimiser.found_inf = self.skip  # type: ignore[attr-defined]  # where it is 1, torch's fused optimisers do nothing
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is None:
            self.run()
        else:
            self.source.advance()
            self.graph.replay()

    def run(self) -> None:
        """The update, call by call."""
        if self.regulariser:
            self.regulariser.begin()
        scores = self.totals.new_zeros(2)
        for piece in range(1, self.pieces + 1):
            if not self.capturing:
                self.source.advance()
            scores = scores + self.accumulate(*self.source.batch(), last=piece == self.pieces)
        if self.regulariser:
            scores[0] += self.regulariser.end()
        images = self.pieces * self.source.batch_size
        self.book(self.totals, self.count, self.diverged, self.skip, self.team.average(scores), images)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def accumulate(self, x: Tensor, y: Tensor, last: bool) -> Tensor:
        """Add the gradients of a piece; its loss and hits. Processes share theirs with the last piece."""
        if self.adversary:
            x = self.adversary.batch(x, y)  # through the network itself: processes need not share what crafting computes
        apart = isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and not last
        with self.wrapped.no_sync() if apart else nullcontext():  # type: ignore[operator]
            loss, hits = self.score(x, y)
            loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach().double(), hits.double()])

    def scored(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a piece and the number of images recognised; with an adversary, of its examples recognised."""
        with arithmetic(self.device, self.precision):
            logits = self.wrapped(x).float()
        if self.adversary:
            loss, logits = self.adversary.loss(logits, y)
        else:
            loss = F.cross_entropy(logits, y, label_smoothing=self.smoothing)
        return loss / self.pieces, (logits.detach().argmax(1) == y).sum()

    @property
    def capturing(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def capture(self) -> None:
        """Record the update as a CUDA graph; model, optimiser and random state end as they began.

        Afterwards the source has to be told anew where to begin.
        """
        before, totals = Snapshot(self.model, self.optimiser, self.device), self.totals.clone()
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.source.begin(0)
                self.run()
        torch.cuda.current_stream(self.device).wait_stream(side)
        self.source.begin(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        self.graph = graph
        before.restore()
        self.totals.copy_(totals)
        self.count.zero_()
        self.diverged.fill_(-1)
        self.skip.zero_()


def booked(totals: Tensor, count: Tensor, diverged: Tensor, skip: Tensor, scores: Tensor, images: int) -> None:
    """Add an update to the totals (loss × images, hits, images), and see whether its loss is finite."""
    loss, hits = scores
    totals.add_(torch.stack([loss * images, hits, torch.full_like(hits, images)]))
    diverged.copy_(torch.where((diverged < 0) & ~loss.isfinite(), count, diverged))
    skip.copy_(diverged >= 0)
    count.add_(1)


def arithmetic(device: torch.device, precision: torch.dtype) -> AbstractContextManager[Any]:
    """The precision of a forward pass."""
    return nullcontext() if precision is torch.float32 else torch.autocast(device.type, precision)


class Snapshot:
    """Model, optimiser and random state at a moment, to be put back into the same memory."""

    def __init__(self, model: nn.Module, optimiser: Optimizer, device: torch.device) -> None:
        self.optimiser, self.device = optimiser, device
        self.tensors = {tensor: tensor.detach().clone() for tensor in [*model.parameters(), *model.buffers()]}
        self.state = {
            tensor: tensor.clone()
            for state in optimiser.state.values()
            for tensor in state.values()
            if isinstance(tensor, Tensor)
        }
        self.random = torch.cuda.get_rng_state(device)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back; state that the optimiser has made since becomes 0."""
        for tensor, value in self.tensors.items():
            tensor.copy_(value)
        for state in self.optimiser.state.values():
            for tensor in state.values():
                if isinstance(tensor, Tensor):
                    tensor.copy_(self.state[tensor]) if tensor in self.state else tensor.zero_()
        torch.cuda.set_rng_state(self.random, self.device)
