"""The running statistics of many layers, averaged in together: a few launches instead of several for each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcnets.decoupled import Decoupled, share_of_batch


class Seen:
    """What layers and batch norms saw in a forward pass, to be averaged into their running statistics at its end."""

    def __init__(self) -> None:
        self.norms: list[tuple[Any, Tensor]] = []
        """Batch norms and a batch's mean, biased and unbiased variance (3, filters)."""
        self.layers: list[tuple[Decoupled, Tensor]] = []
        """Decoupled layers and the mean norm of a batch."""

    def average_in(self) -> None:
        """Let the running statistics know."""
        for norms in without_repeats(self.norms):
            track_norms(norms)
        for layers in without_repeats(self.layers):
            track_layers(layers)


def without_repeats(seen: list[tuple[Any, Tensor]]) -> list[list[tuple[Any, Tensor]]]:
    """The same in rounds, in none of which a module comes twice: one that is used twice learns of its batches in turn."""
    rounds: list[list[tuple[Any, Tensor]]] = []
    times: dict[int, int] = {}
    for module, tensor in seen:
        times[id(module)] = time = times.get(id(module), -1) + 1
        if time == len(rounds):
            rounds.append([])
        rounds[time].append((module, tensor))
    return rounds


@torch.no_grad()
def track_norms(seen: list[tuple[Any, Tensor]]) -> None:
    """Average batches' means and variances into batch norms' running statistics, as torch does."""
    torch._foreach_add_([norm.num_batches_tracked for norm, _ in seen], 1)
    for momentum in {norm.momentum for norm, _ in seen}:
        alike = [(norm, moments.detach()) for norm, moments in seen if norm.momentum == momentum]
        old = [norm.running_mean for norm, _ in alike] + [norm.running_var for norm, _ in alike]
        new = [moments[0].to(norm.running_mean.dtype) for norm, moments in alike]
        new += [moments[2].to(norm.running_var.dtype) for norm, moments in alike]
        if momentum is None:
            counts = [norm.num_batches_tracked for norm, _ in alike] * 2
            torch._foreach_lerp_(old, new, [(1.0 / count).to(t.dtype) for count, t in zip(counts, old, strict=True)])
        else:
            torch._foreach_lerp_(old, new, momentum)


@torch.no_grad()
def track_layers(seen: list[tuple[Decoupled, Tensor]]) -> None:
    """Average batches' mean norms into layers' running norms, as a layer itself does."""
    counts = [layer.num_batches_tracked for layer, _ in seen]
    torch._foreach_add_(counts, 1)
    shares = share_of_batch(torch.stack(counts).to(torch.float32))
    old = [layer.running_norm.detach() for layer, _ in seen]
    new = [m.detach().to(layer.running_norm.dtype) for layer, m in seen]
    torch._foreach_lerp_(old, new, [share.to(t.dtype) for share, t in zip(shares.unbind(0), old, strict=True)])
