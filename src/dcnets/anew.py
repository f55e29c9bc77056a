"""Gradients by a definition that is evaluated anew, for the cases that written-out backward passes are not made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dcnets.surroundings import in_transform


def definition_needed(*directions: Tensor | None) -> bool:
    """Whether a backward pass is to be differentiated itself, or is done in many directions at once.

    `is_grads_batched` does the latter, and vectorised Jacobians; by tensors of which the transforms do not know.
    """
    batched = any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in directions)
    return batched or torch.is_grad_enabled() or in_transform()


def gradients_of(
    definition: Callable[[list[Any]], list[Tensor]], inputs: Sequence[Any], needed: Sequence[bool], directions: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """Those of the inputs that need one, with their own graph where the backward pass is to be differentiated."""
    again = torch.is_grad_enabled()
    wanted = [need and isinstance(t, Tensor) for t, need in zip(inputs, needed, strict=True)]
    with torch.enable_grad():
        aliases = [torch.ops.aten.alias(t) if want else t for t, want in zip(inputs, wanted, strict=True)]
        outputs = definition(aliases)
    own = [t for t, want in zip(aliases, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(outputs, own, directions, create_graph=again, allow_unused=True))
    return tuple(next(found) if want else None for want in wanted)
