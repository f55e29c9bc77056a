"""A layer's twin, decoupled for ordinary or the other way round: made with all that a user gave it, put in its place."""

from __future__ import annotations

import weakref
from typing import Any

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
from dcnets.options import Options

TWINS: dict[type[nn.Module], type[Decoupled]] = {
    nn.Conv1d: DecoupledConv1d,
    nn.Conv2d: DecoupledConv2d,
    nn.Conv3d: DecoupledConv3d,
    nn.ConvTranspose2d: DecoupledConvTranspose2d,
    nn.Linear: DecoupledLinear,
}
"""Each ordinary layer and what stands in its place; exact types, since a subclass may compute something else."""
SHAPE = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
OPERATORS_OWN = {
    "operator", "filters", "fan_in", "radius_init", "radius_per", "sync", "learn", "k_init", "alpha", "beta", "h", "g",
    "raw_radius", "raw_k", "raw_p", "running_norm", "num_batches_tracked",
}  # fmt: skip
"""What a decoupled layer has beside an ordinary one's attributes, and does not hand on."""


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


def is_itself(layer: Decoupled) -> bool:
    """Whether a layer computes what its class does with its own weight: no subclass, patch or parametrisation."""
    own = "weight" in layer._parameters and "bias" in layer._parameters
    return own and type(layer) in TWINS.values() and "forward" not in vars(layer)


def own_names(module: nn.Module) -> set[str]:
    """The names of a layer's attributes, parameters, buffers and modules, beside what its class defines."""
    return {*vars(module), *module._parameters, *module._buffers, *module._modules}


def taken(names: set[str], module: nn.Module, twin: object) -> set[str]:
    """The names that its twin, or the twin's class, has for something else than the layer's class."""
    return {name for name in names if hasattr(twin, name) and not hasattr(type(module), name)}


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
