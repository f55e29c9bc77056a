"""Orthonormal and orthogonal penalties on decoupled filters (section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.anew import definition_needed, gradients_of
from dcnets.filters import Layers, alike, as_weights, decoupled_layers, flat_filters, split_like
from dcnets.patches import norm
from dcnets.surroundings import no_autocast, pure_torch_needed


def orthonormal_penalty(model: nn.Module, normalised: bool = True) -> Tensor:
    """Σ ‖WᵀW − I‖²_F over the groups of every decoupled layer; the columns of W are filters, ŵ where `normalised`.

    A scalar in float32 at least, whatever the model's dtype and autocast are. Filters in several layers count once.
    """
    return penalty(model, normalised, diagonal=1.0)


def orthogonal_penalty(model: nn.Module, normalised: bool = True) -> Tensor:
    """Σ ‖WᵀW − diag(WᵀW)‖²_F over the groups of every decoupled layer: as `orthonormal_penalty`, but the norms are free."""
    return penalty(model, normalised, diagonal=None)


def penalty(model: nn.Module, normalised: bool, diagonal: float | None) -> Tensor:
    """Σ ‖WᵀW − D‖²_F, D being `diagonal` times I, or the diagonal of WᵀW where that is None."""
    batches = alike(decoupled_layers(model).values())
    weights = [layer.weight for batch in batches for layer in batch]
    with no_autocast(weights[0]):
        if pure_torch_needed():
            return definition(weights, batches, normalised, diagonal)
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            value: Tensor = Penalty.apply(batches, normalised, diagonal, *weights)  # type: ignore[no-untyped-call]
            return value
        return with_slopes(weights, batches, normalised, diagonal, wanted=False)[0]


def definition(weights: Sequence[Tensor], batches: list[Layers], normalised: bool, diagonal: float | None) -> Tensor:
    """The formula as it stands, for compile, torch.func and higher derivatives."""
    values = []
    for layers, own in zip(batches, split_like(weights, batches), strict=True):
        filters = flat_filters(own, layers)
        if normalised:
            filters = filters / norm(filters, 2, layers[0].operator.eps)
        gram = filters @ filters.mT
        aim = torch.diag_embed(gram.diagonal(0, 1, 2) if diagonal is None else gram.new_full(gram.shape[:2], diagonal))
        values.append((gram - aim).square().sum())
    return torch.stack(values).sum()


def with_slopes(
    weights: Sequence[Tensor], batches: list[Layers], normalised: bool, diagonal: float | None, wanted: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """`definition` in place and in few launches; with it a quarter of its gradient, flat, where that is wanted.

    Of R = WᵀW − D the gradient is 4·W·R. On normalised filters Ŵ = W·S, S = diag(1/‖w‖), it is 4·(Ŵ·R − Ŵ·diag(r))·S, as
    the part along ŵᵢ is lost: rᵢ = Σⱼ Rᵢⱼ·⟨ŵᵢ, ŵⱼ⟩ = Σⱼ Rᵢⱼ² + Rᵢᵢ. So R's diagonal becomes −Σⱼ Rᵢⱼ², and R becomes S·R·S.
    """
    filters = [flat_filters(own, layers) for layers, own in zip(batches, split_like(weights, batches), strict=True)]
    values, slopes = [], dict.fromkeys(range(len(batches)), filters[0])
    for members in same_gram(filters, batches):
        residual, places = products([filters[i] for i in members])
        corner = residual.diagonal(0, 1, 2)
        if normalised:
            inverse = (corner + batches[members[0]][0].operator.eps).rsqrt_()
            outer = inverse.unsqueeze(2) * inverse.unsqueeze(1)
            residual.mul_(outer)
        if diagonal is None:
            corner.zero_()
        else:
            corner.sub_(diagonal)
        rows = residual.square().sum(2)
        values.append(rows.sum())
        if wanted and normalised:
            torch.neg(rows, out=corner)
            residual.mul_(outer)
        if wanted:
            slopes |= {i: torch.bmm(place, filters[i]) for i, place in zip(members, places, strict=True)}
    return torch.stack(values).sum(), list(slopes.values())


class Penalty(torch.autograd.Function):
    """`with_slopes` for autograd; where that does not do, `definition`."""

    @staticmethod
    def forward(ctx: Any, batches: list[Layers], normalised: bool, diagonal: float | None, *weights: Tensor) -> Tensor:
        value, ctx.slopes = with_slopes(weights, batches, normalised, diagonal)
        ctx.save_for_backward(*weights)
        ctx.arguments = batches, normalised, diagonal
        return value

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        weights, batches = ctx.saved_tensors, ctx.arguments[0]
        if definition_needed(d):
            with no_autocast(d):
                found = gradients_of(lambda own: [definition(own, *ctx.arguments)], weights, ctx.needs_input_grad[3:], [d])
            return None, None, None, *found
        gradients = torch._foreach_mul(ctx.slopes, 4 * d)
        return None, None, None, *(part for pair in zip(gradients, batches, strict=True) for part in as_weights(*pair))


def same_gram(filters: list[Tensor], batches: list[Layers]) -> list[list[int]]:
    """Which batches have as many filters in a group, and the same ε, dtype and device."""
    kinds: dict[Any, list[int]] = {}
    for i, (own, layers) in enumerate(zip(filters, batches, strict=True)):
        kinds.setdefault((own.shape[1], own.dtype, own.device, layers[0].operator.eps), []).append(i)
    return list(kinds.values())


def products(filters: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """WᵀW of every group of all of them in one tensor, and each one's own part of it."""
    size = filters[0].shape[1]
    counts = [len(own) for own in filters]
    grams = filters[0].new_empty(sum(counts), size, size)
    places = torch.split(grams, counts)
    for own, place in zip(filters, places, strict=True):
        torch.bmm(own, own.mT, out=place)
    return grams, places
