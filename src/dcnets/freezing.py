"""A copy of a network for inference, in which nothing that depends on weights alone is computed again."""

from __future__ import annotations

import copy
from dataclasses import replace as with_changes
from typing import Any, cast

import torch
from torch import Tensor, nn

from dcnets.decoupled import Decoupled
from dcnets.dispatch import respond_settled, respond_settled_with
from dcnets.geometry import Geometry
from dcnets.kernels.response import Behind, Response
from dcnets.piecewise import Piecewise
from dcnets.precision import kept_wide
from dcnets.reference import Formula
from dcnets.registry import Value
from dcnets.settling import formula_of, settle
from dcnets.surroundings import OneCall
from dcnets.twins import OPERATORS_OWN, hand_over, is_itself, own_names, plain_twin, refuse_unfit, replace, taken

BOTH_HAVE = {*vars(nn.Module()), "weight", "bias"}
"""What means the same in a layer and in its frozen twin."""


def freeze(model: nn.Module) -> nn.Module:
    """A copy of the model in evaluation mode, ready to export: filters normalised once, radii and weightings folded.

    A layer whose operator is linear in x becomes an ordinary one. The model itself is left as it is, and so is, in the
    copy, a decoupled layer that is parametrised, patched or of a user's own subclass, or that has an attribute of a user's
    with a name that a frozen layer needs.
    """
    refuse_unfit(model, "freeze")
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    twins: dict[nn.Module, nn.Module] = {}
    for layer in frozen.modules():
        if isinstance(layer, Decoupled) and is_itself(layer):
            twins[layer] = plain_twin(layer) if layer.operator.linear_in_x else frozen_twin(layer)
    return replace(frozen, twins)


def frozen_twin(layer: Decoupled) -> nn.Module:
    """The layer for inference, with all that a user gave it, or the layer itself where the twin has no room for that."""
    twin = FrozenTransposed(layer) if isinstance(layer, nn.modules.conv._ConvTransposeNd) else Frozen(layer)
    if taken(own_names(layer) - OPERATORS_OWN - BOTH_HAVE, layer, twin):
        return layer
    hand_over(layer, twin)
    return twin


class Frozen(OneCall):
    """One decoupled layer for inference: unit filters, and values that are already what the formula takes."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: Decoupled) -> None:
        super().__init__()
        self.operator, self.geometry = layer.operator, layer.geometry
        for module in (layer.h, layer.g):
            if isinstance(module, Piecewise):
                module.settle()
        self.h, self.g = layer.h, layer.g
        patches = self.geometry.patches(layer.weight)
        with torch.no_grad():
            unit, values = settle(layer.weight, patches, self.geometry.dims, layer.operator, layer.tensors())
            if layer.running_mean is not None:
                values["rho"] = values["rho"] * layer.running_mean
        self.register_buffer("weight", unit.to(layer.weight.dtype))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.numbers = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        self.names = tuple(name for name, value in values.items() if isinstance(value, Tensor))
        for name in self.names:
            self.register_buffer(f"value_{name}", cast(Tensor, values[name]).flatten())  # .to(memory_format) takes four axes
        self.eval()

    @property
    def formula(self) -> Formula:
        """What is computed; ρ holds the mean norm already."""
        return with_changes(formula_of(self.operator, {"h": self.h, "g": self.g}), relative=False)

    def forward(self, input: Tensor) -> Tensor:
        return self.respond(input, self.geometry)

    def respond(self, x: Tensor, geometry: Geometry) -> Tensor:
        """f(w, x), whatever the geometry."""
        return respond_settled(x, self.weight, self.bias, geometry, self.formula, self.values())

    def respond_with(self, x: Tensor, behind: Behind) -> Response | None:
        """f(w, x) and what is behind it in Triton; None where there are no programs for it."""
        return respond_settled_with(x, self.weight, self.bias, self.geometry, self.formula, self.values(), behind)

    def values(self) -> dict[str, Value]:
        """What the formula takes beside norms and angles, shaped to meet the grouped layout."""
        patches, ones = self.geometry.patches(self.weight), (1,) * self.geometry.dims
        shape = {1: (1, 1, 1, *ones), patches.filters(self.weight): (1, patches.groups, -1, *ones)}
        tensors = {name: getattr(self, f"value_{name}") for name in self.names}
        return {**self.numbers, **{name: t.view(shape[t.numel()]) for name, t in tensors.items()}}

    def _apply(self, fn: Any, recurse: bool = True) -> Frozen:
        """Move or convert as torch does, but keep the values in float32 or better, as the layer keeps its mean norm."""
        with kept_wide(self, [f"value_{name}" for name in self.names]):
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, operator={self.operator}"


class FrozenTransposed(Frozen):
    """A transposed layer for inference, which takes torch's `output_size`."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        windows: Any = self.geometry
        settings: Any = (windows.stride, windows.padding, self.weight.shape[2:], 2, windows.dilation)
        padding = nn.ConvTranspose2d._output_padding(cast(Any, self), input, output_size, *settings)
        return self.respond(input, with_changes(windows, output_padding=padding))
