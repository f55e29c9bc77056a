"""The penalty on decoupled filters, computed beside the forward pass: on a GPU in a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dcnets import orthogonal_penalty, orthonormal_penalty
from dcnets.filters import decoupled_layers

PENALTIES: dict[str, Callable[[nn.Module], Tensor]] = {
    "orthonormal": orthonormal_penalty,
    "orthogonal": orthogonal_penalty,
}


class Regulariser:
    """weight · penalty(model): `begin` starts it, `end` adds its gradients to those of the loss and returns its value.

    It depends on the filters alone, so that its many small launches hide behind the network's large ones.
    """

    def __init__(self, model: nn.Module, penalty: str, weight: float, device: torch.device) -> None:
        self.model, self.penalty, self.weight, self.device = model, PENALTIES[penalty], weight, device
        self.filters = list(dict.fromkeys(layer.weight for layer in decoupled_layers(model).values()))
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.value: Tensor | None = None
        self.gradients: Sequence[Tensor] = ()

    def begin(self) -> None:
        """Start to compute value and gradients at the filters as they are."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            value = self.weight * self.penalty(self.model)
            self.gradients = torch.autograd.grad(value, self.filters)
            self.value = value.detach()

    def end(self) -> Tensor:
        """Add the gradients, once those of the loss are there; return the value."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        own = [filters.grad for filters in self.filters if filters.grad is not None]
        torch._foreach_add_(own, list(self.gradients))
        assert self.value is not None
        return self.value
