"""The filters of many layers as few tensors, so that what is done to all of them costs few launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.decoupled import Decoupled

Layers = list[Decoupled]


def decoupled_layers(model: nn.Module) -> dict[str, Decoupled]:
    """The layers with decoupled filters by name, each set once: one that shares weight and layout is left out."""
    layers: dict[str, Decoupled] = {}
    seen: dict[tuple[int, tuple[int, bool]], Tensor] = {}  # the weight is kept: a parametrisation makes it at each reading
    for name, layer in model.named_modules():
        if isinstance(layer, Decoupled) and layer.has_filters:
            weight = layer.weight
            key = (id(weight), layout(layer))
            if key not in seen:
                seen[key] = weight
                layers[name or "the model"] = layer
    if not layers:
        raise ValueError(f"no decoupled filters in {type(model).__name__}; decouple its convolutions first")
    return layers


def layout(layer: Decoupled) -> tuple[int, bool]:
    """How filters lie in the weight: the number of groups, and whether the filters are across its second axis."""
    return getattr(layer, "groups", 1), getattr(layer, "transposed", False)


def alike(layers: Iterable[Decoupled]) -> list[Layers]:
    """The layers whose weights can be handled as one tensor: equal in shape, strides, layout, ε, dtype and device."""
    batches: dict[Any, Layers] = {}
    for layer in layers:
        weight = layer.weight
        kind = (weight.shape, weight.stride(), layout(layer), layer.operator.eps, weight.dtype, weight.device)
        batches.setdefault(kind, []).append(layer)
    return list(batches.values())


def split_like(weights: Sequence[Tensor], batches: list[Layers]) -> list[Sequence[Tensor]]:
    """The weights of all layers in a row, divided into batches."""
    parts, first = [], 0
    for layers in batches:
        parts.append(weights[first : first + len(layers)])
        first += len(layers)
    return parts


def joined(weights: Sequence[Tensor]) -> Tensor:
    """The weights of alike layers one after another in a new tensor, in float32 at least; torch's layout stays."""
    together = torch.cat(list(weights))
    return together.to(torch.promote_types(together.dtype, torch.float32))


def by_filter(weights: Tensor, layers: Layers) -> tuple[Tensor, tuple[int, ...]]:
    """A view of joined weights with the groups of all layers as first axis, and the axes of one filter."""
    return split_groups(weights, layers), order(layers)[2:]


def split_groups(weights: Tensor, layers: Layers) -> Tensor:
    """A view of joined weights with the groups of all layers as first axis."""
    groups = len(layers) * layout(layers[0])[0]
    return weights.view(groups, len(weights) // groups, *weights.shape[1:])


def order(layers: Layers) -> tuple[int, ...]:
    """The axes of `by_filter`'s view: groups, filters in a group, then a filter's elements as they lie in memory."""
    weight, across = layers[0].weight, 2 if layout(layers[0])[1] else 1
    axes = [axis for axis in range(1, weight.dim() + 1) if axis != across]
    channels_last = weight.stride(1) == 1
    return (0, across, *axes[1:], axes[0]) if channels_last else (0, across, *axes)


def flat_filters(weights: Sequence[Tensor], layers: Layers) -> Tensor:
    """The filters of alike layers, (groups of all layers, filters in a group, elements)."""
    return split_groups(joined(weights), layers).permute(order(layers)).flatten(2)


def as_weights(filters: Tensor, layers: Layers) -> tuple[Tensor, ...]:
    """The inverse of `flat_filters`: views in the layout and dtype of the weights."""
    weight, axes = layers[0].weight, order(layers)
    split = (len(filters), weight.shape[0] // layout(layers[0])[0], *weight.shape[1:])
    parts = filters.view([split[axis] for axis in axes]).permute([axes.index(axis) for axis in range(len(axes))])
    return parts.flatten(0, 1).to(weight.dtype).chunk(len(layers))
