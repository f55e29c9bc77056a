"""Decouple a network that already exists, and bring it back: `convert` and `to_plain`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from dcnets.decoupled import Decoupled
from dcnets.layers import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
)
from dcnets.naming import refuse_unknown
from dcnets.options import Options

Select = Callable[[str, nn.Module], bool]

TWINS: dict[type[nn.Module], type[Decoupled]] = {
    nn.Conv1d: DecoupledConv1d,
    nn.Conv2d: DecoupledConv2d,
    nn.Conv3d: DecoupledConv3d,
    nn.ConvTranspose2d: DecoupledConvTranspose2d,
    nn.Linear: DecoupledLinear,
}
"""Each ordinary layer and what stands in its place; exact types, since a subclass may compute something else."""
BY_DEFAULT = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SHAPE = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
OPERATORS_OWN = {
    "operator", "filters", "fan_in", "radius_init", "radius_per", "sync", "learn", "k_init", "alpha", "beta", "h", "g",
    "raw_radius", "raw_k", "raw_p", "running_norm", "num_batches_tracked",
}  # fmt: skip
"""What a decoupled layer has beside an ordinary one's attributes, and does not hand on."""


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


def own_names(module: nn.Module) -> set[str]:
    """The names of a layer's attributes, parameters, buffers and modules, beside what its class defines."""
    return {*vars(module), *module._parameters, *module._buffers, *module._modules}


def taken(names: set[str], module: nn.Module, twin: object) -> set[str]:
    """The names that its twin, or the twin's class, has for something else than the layer's class."""
    return {name for name in names if hasattr(twin, name) and not hasattr(type(module), name)}


def bypassed_layers(model: nn.Module) -> set[nn.Module]:
    """Layers that torch computes in evaluation from their weights, without a call, whatever stands in their place."""
    encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoderLayer)]
    return {layer for encoder in encoders for layer in (encoder.linear1, encoder.linear2)}


def why_not_back(layer: Decoupled) -> str | None:
    """The reason why no ordinary layer computes what a decoupled one does, or None."""
    if not layer.operator.linear_in_x:
        return "not linear in x"
    return None if is_itself(layer) else "parametrised, patched or a subclass, which may compute something else"


def is_itself(layer: Decoupled) -> bool:
    """Whether a layer computes what its class does with its own weight: no subclass, patch or parametrisation."""
    own = "weight" in layer._parameters and "bias" in layer._parameters
    return own and type(layer) in TWINS.values() and "forward" not in vars(layer)


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


def refuse_unfit(model: nn.Module, what: str) -> None:
    """Raise TypeError for models whose layers cannot be exchanged, with the reason."""
    for name, module in model.named_modules():
        kind, where = type(module), f"{name or 'the model'} ({type(module).__name__})"
        if kind.__module__.startswith("torch._dynamo") or getattr(module, "_compiled_call_impl", None) is not None:
            raise TypeError(f"{where} is compiled; {what} the model first, then compile it")
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(f"{where} is a script; {what} the Python model that it was made of")
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TypeError(f"{where} is wrapped for data-parallel training; {what} the model first, then wrap it")
        if {"quantized", "qat", "quantizable"} & set(kind.__module__.split(".")):
            raise TypeError(f"{where} is quantised; {what} the float model first")
        weight = module._parameters.get("weight")
        if weight is not None and type(weight.data) is not Tensor and not is_lazy(weight):
            raise TypeError(
                f"{where} holds its weight as a {type(weight.data).__name__}, quantised or distributed; "
                f"{what} the float model first"
            )


def is_lazy(parameter: Tensor) -> bool:
    """Whether a lazy layer has not seen its first batch."""
    return isinstance(parameter, nn.parameter.UninitializedParameter)


def decoupled_twin(module: nn.Module, options: Options) -> Decoupled:
    """A decoupled layer with the weight, bias, hooks and attributes of an ordinary one."""
    common: dict[str, Any] = {"device": "meta", **options}
    if isinstance(module, nn.Linear):
        twin: Decoupled = DecoupledLinear(module.in_features, module.out_features, **common)
    else:
        common |= {name: getattr(module, name) for name in SHAPE}
        if isinstance(module, nn.ConvTranspose2d):
            common["output_padding"] = module.output_padding
        twin = TWINS[type(module)](**common)
    weight: Any = module.weight
    twin.make_tensors(device=weight.device, dtype=weight.dtype)
    for parameter in twin.parameters():
        parameter.requires_grad_(weight.requires_grad)
    inherit(twin, module)
    return twin


def plain_twin(layer: Decoupled, weight: nn.Parameter | None = None) -> nn.Module:
    """The ordinary layer that computes what a decoupled one does whose operator is linear in x; its weight may be given."""
    kind = next(plain for plain, decoupled in TWINS.items() if type(layer) is decoupled)
    if kind is nn.Linear:
        twin: nn.Module = nn.Linear(layer.in_features, layer.out_features, device="meta")  # type: ignore[arg-type]
    else:
        arguments = {name: getattr(layer, name) for name in SHAPE}
        if kind is nn.ConvTranspose2d:
            arguments["output_padding"] = layer.output_padding
        twin = kind(**arguments, device="meta")
    inherit(twin, layer)
    twin.weight = plain_parameter(layer) if weight is None else weight
    return twin


def plain_parameter(layer: Decoupled) -> nn.Parameter:
    """The weight of the ordinary layer: the decoupled one's own where that will do."""
    own: Any = layer.weight
    plain: Any = layer.plain_weight()
    return plain if plain is own else nn.Parameter(plain.detach().to(own.dtype), requires_grad=own.requires_grad)


def inherit(twin: Any, module: nn.Module) -> None:
    """Give the twin weight, bias and mode of a layer, and all that a user added to it."""
    twin.weight, twin.bias = module.weight, module.bias
    twin.train(module.training)
    hand_over(module, twin)


def hand_over(module: nn.Module, twin: nn.Module) -> None:
    """Give the twin a layer's hooks (their handles go on working) and a user's own attributes, tensors and modules."""
    for name, value in vars(module).items():
        if "hook" in name or (name not in vars(twin) and name not in OPERATORS_OWN):
            vars(twin)[name] = value
    hooks: Any = twin._load_state_dict_pre_hooks.values()
    for hook in hooks:
        if hook.with_module:  # torch binds these to the layer itself
            hook.module = weakref.ref(twin)
    for table in ("_parameters", "_buffers", "_modules"):
        own = {name: value for name, value in vars(module)[table].items() if name not in OPERATORS_OWN}
        vars(twin)[table].update({name: value for name, value in own.items() if not hasattr(twin, name)})
    twin._non_persistent_buffers_set |= module._non_persistent_buffers_set


def replace(model: nn.Module, twins: dict[nn.Module, nn.Module]) -> nn.Module:
    """The model with each layer exchanged for its twin, wherever it is used."""
    for parent in [*model.modules(), *twins.values()]:
        for name, child in parent._modules.items():
            if child in twins:
                parent._modules[name] = twins[child]
    return twins.get(model, model)


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
