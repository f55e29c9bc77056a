"""Bring a decoupled network back to ordinary layers: `to_plain`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dcnets.conversion import Report
from dcnets.decoupled import Decoupled
from dcnets.twins import is_itself, plain_parameter, plain_twin, refuse_unfit, replace


def to_plain(model: nn.Module) -> tuple[nn.Module, Report]:
    """Put ordinary layers back, exactly, where the operator is linear in x: `linear` or `inner_product` with `cosine`.

    Layers that share a weight go on sharing one; where that cannot be, they are skipped.
    """
    refuse_unfit(model, "bring back")
    report, twins = Report(), dict[nn.Module, nn.Module]()
    weights = plain_weights(model)
    parted = parted_layers(model, weights)
    for name, module in model.named_modules():
        if isinstance(module, Decoupled):
            shown, kind = name or "(the model)", f"{type(module).__name__} {module.operator}"
            reason = why_not_back(module) or parted.get(module)
            if reason is None:
                twins[module] = plain_twin(module, weights[module])
                report.replaced.append((shown, kind))
            else:
                report.skipped.append((shown, kind, reason))
    return replace(model, twins), report


def why_not_back(layer: Decoupled) -> str | None:
    """The reason why no ordinary layer computes what a decoupled one does, or None."""
    if not layer.operator.linear_in_x:
        return "not linear in x"
    return None if is_itself(layer) else "parametrised, patched or a subclass, which may compute something else"


def plain_weights(model: nn.Module) -> dict[nn.Module, nn.Parameter]:
    """The weight of each ordinary layer that can come back: one for those that share theirs and need the same."""
    weights: dict[nn.Module, nn.Parameter] = {}
    first: dict[Tensor, nn.Parameter] = {}
    for layer in model.modules():
        if isinstance(layer, Decoupled) and why_not_back(layer) is None:
            own = plain_parameter(layer)
            shared = first.setdefault(layer.weight, own)
            same = shared is own or (not own.is_meta and torch.equal(shared, own))
            weights[layer] = shared if same else own
    return weights


def parted_layers(model: nn.Module, weights: dict[nn.Module, nn.Parameter]) -> dict[nn.Module, str]:
    """The layers that would not share their new weight with all that they share the old one with, and why."""
    uses: dict[nn.Parameter, dict[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                later = weights.get(module, parameter) if key == "weight" else parameter
                uses.setdefault(parameter, {})[f"{name}.{key}".lstrip(".")] = later
    found = {}
    for layer, weight in weights.items():
        own: Any = layer.weight
        other = next((name for name, later in uses[own].items() if later is not weight), None)
        if weight is not own and other is not None:
            found[layer] = f"shares its weight with {other}, as an ordinary layer could not; give each its own first"
    return found
