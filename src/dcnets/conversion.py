"""Decouple a network that already exists: `convert`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from torch import nn

from dcnets.decoupled import Decoupled
from dcnets.layers import DecoupledLinear
from dcnets.naming import refuse_unknown
from dcnets.options import Options
from dcnets.twins import OPERATORS_OWN, TWINS, decoupled_twin, own_names, refuse_unfit, replace, taken

Select = Callable[[str, nn.Module], bool]

BY_DEFAULT = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class Report:
    """What a conversion did: (name, kind) of each layer replaced, (name, kind, reason) of each one skipped."""

    replaced: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [("layer", "kind", "")]
        rows += [(name, kind, "replaced") for name, kind in self.replaced]
        rows += [(name, kind, f"skipped: {reason}") for name, kind, reason in self.skipped]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {what}".rstrip() for name, kind, what in rows]
        return "\n".join([*lines, f"{len(self.replaced)} replaced, {len(self.skipped)} skipped"])


def convert(model: nn.Module, *, select: Select | None = None, **options: Unpack[Options]) -> tuple[nn.Module, Report]:
    """Put decoupled layers in the place of ordinary ones, in the model itself; return it and a report.

    By default every `nn.Conv1d/2d/3d` is replaced. `select(name, module)` decides instead, and may ask for
    `nn.ConvTranspose2d` and `nn.Linear` too. Weights and biases are the same tensors as before; hooks, mode, device, dtype
    and `requires_grad` stay as they are, and a layer that is used twice stays one layer. `options` are the layers' keywords.
    """
    refuse_unknown("convert", options, ("select", *Options.__annotations__))
    DecoupledLinear(1, 1, device="meta", **options)  # wrong options are refused before anything is touched
    refuse_unfit(model, "convert")
    report, twins, bypassed = Report(), dict[nn.Module, nn.Module](), bypassed_layers(model)
    for name, module in candidates(model):
        kind = type(module).__name__
        reason = "read, not called, by the fast path of nn.TransformerEncoderLayer" if module in bypassed else None
        reason = reason or why_not(name, module, select)
        if reason is None:
            twins[module] = decoupled_twin(module, options)
            report.replaced.append((name or "(the model)", f"{kind} → {type(twins[module]).__name__}"))
        else:
            report.skipped.append((name or "(the model)", kind, reason))
    return replace(model, twins), report


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every layer that could be meant: ordinary ones, their kin and decoupled ones, each once."""
    known: tuple[type[nn.Module], ...] = (*TWINS, nn.modules.conv._ConvNd, Decoupled)
    for name, module in model.named_modules():
        if isinstance(module, known):
            yield name, module


def why_not(name: str, module: nn.Module, select: Select | None) -> str | None:
    """The reason to leave a layer as it is, or None."""
    if isinstance(module, Decoupled):
        return f"already decoupled ({module.operator})"
    if torch.nn.utils.parametrize.is_parametrized(module) or not {"weight", "bias"} <= module._parameters.keys():
        return "parametrised; remove weight_norm, spectral_norm or the like first"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "lazy; send one batch through the model first"
    if type(module) not in TWINS:
        plain = next((plain.__name__ for plain in TWINS if isinstance(module, plain)), None)
        return f"a subclass of {plain}, which may compute something else" if plain else "has no decoupled counterpart"
    if "forward" in vars(module):
        return "its forward is patched, which may compute something else"
    if clashes := (own_names(module) & OPERATORS_OWN) | taken(own_names(module), module, TWINS[type(module)]):
        return f"has an attribute {min(clashes)!r} of its own, which means something else in a decoupled layer; rename it"
    if select is None:
        return None if type(module) in BY_DEFAULT else "converted only when select asks for it"
    return None if select(name, module) else "not selected"


def bypassed_layers(model: nn.Module) -> set[nn.Module]:
    """Layers that torch computes in evaluation from their weights, without a call, whatever stands in their place."""
    encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoderLayer)]
    return {layer for encoder in encoders for layer in (encoder.linear1, encoder.linear2)}


def pretrained_select(model: nn.Module, first_conv: bool = False, classifier: bool = False) -> Select:
    """A `select` for timm's models: all convolutions, but the first one and the classifier only where asked for.

    Both are read off the model's `pretrained_cfg`.
    """
    cfg: Any = getattr(model, "pretrained_cfg", None)
    if not cfg:
        raise ValueError(f"{type(model).__name__} has no pretrained_cfg; pass a function select(name, module) instead")

    def names(key: str) -> set[str]:
        found = cfg.get(key) or ()
        return {found} if isinstance(found, str) else set(found)

    first, last = names("first_conv"), names("classifier")

    def select(name: str, module: nn.Module) -> bool:
        if name in first:
            return first_conv
        if name in last:
            return classifier
        return isinstance(module, BY_DEFAULT)

    return select
