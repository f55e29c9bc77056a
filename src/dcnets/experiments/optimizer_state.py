"""An optimiser's state as named tensors and JSON, and back, by the names of the parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dcnets.experiments.checkpoint import CheckpointError

Named = Iterable[tuple[str, Tensor]]
Groups = list[tuple[dict[str, Any], list[str]]]
OF_THE_MACHINE = ("capturable", "differentiable", "foreach", "fused")
"""Options that choose how an update is carried out, not what it computes: those of the optimiser at hand stay."""


def flatten_optimizer(optimizer: Optimizer, named_parameters: Named) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, named as `exp_avg.layer.weight` or `options/0/lr`, and JSON: all that Adam, AdamW and SGD go on from.

    `named_parameters` are the model's. The tensors are the optimiser's own, not copies.
    """
    tensors: dict[str, Tensor] = {}
    groups: list[dict[str, Any]] = []
    values: dict[str, dict[str, Any]] = {}
    for number, (group, names) in enumerate(named_groups(optimizer, named_parameters)):
        options = {key: value for key, value in group.items() if key not in ("params", *OF_THE_MACHINE)}
        tensors |= {f"options/{number}/{key}": value for key, value in options.items() if isinstance(value, Tensor)}
        groups.append({"parameters": names, "options": without_tensors(options)})
        for name, parameter in zip(names, group["params"], strict=True):
            state = optimizer.state.get(parameter, {})
            tensors |= {f"{key}.{name}": value for key, value in state.items() if isinstance(value, Tensor)}
            values[name] = without_tensors(state)
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "values": values}


@torch.no_grad()
def restore_optimizer(
    optimizer: Optimizer, named_parameters: Named, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Give an optimiser of the same kind and groups what `flatten_optimizer` took; one that does not fit stays as it is.

    Tensors that are there already, a learning rate or moments, are overwritten where they lie, so that a captured CUDA
    graph goes on with them. Others are made beside their parameter.
    """
    groups = named_groups(optimizer, named_parameters)
    owners = by_owner(tensors)
    refuse_misfit(optimizer, groups, owners, state)
    for number, ((group, names), saved) in enumerate(zip(groups, state["groups"], strict=True)):
        for key, value in (saved["options"] | owners.get(f"options/{number}", {})).items():
            group[key] = in_place_of(group.get(key), value)
        for name, parameter in zip(names, group["params"], strict=True):
            entries = state["values"][name] | owners.get(name, {})
            own = optimizer.state.pop(parameter, {})
            if entries:
                optimizer.state[parameter] = {
                    key: in_place_of(own[key], value)
                    if isinstance(own.get(key), Tensor)
                    else beside(parameter, group, key, value)
                    for key, value in entries.items()
                }


def refuse_misfit(
    optimizer: Optimizer, groups: Groups, owners: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Raise a CheckpointError that says in what the optimiser is not the one whose state was taken."""
    if state["kind"] != type(optimizer).__name__:
        raise CheckpointError(
            f"the checkpoint holds the state of {state['kind']}, this optimiser is {type(optimizer).__name__}"
        )
    homes = {name: number for number, group in enumerate(state["groups"]) for name in group["parameters"]}
    own = {name: number for number, (_, names) in enumerate(groups) for name in names}
    if missing := [name for name in own if name not in homes]:
        raise CheckpointError(f"the checkpoint has no optimiser state for {listed(missing)}; it is of another model")
    if left := [name for name in homes if name not in own]:
        raise CheckpointError(f"the checkpoint has optimiser state for {listed(left)}, which are not optimised here")
    for name, number in own.items():
        if homes[name] != number:
            raise CheckpointError(f"{name} is in parameter group {homes[name]} of the checkpoint, here in group {number}")
    for group, names in groups:
        for name, parameter in zip(names, group["params"], strict=True):
            for key, value in owners.get(name, {}).items():
                if value.dim() and value.shape != parameter.shape:
                    shapes = f"{tuple(value.shape)} in the checkpoint, the parameter is {tuple(parameter.shape)}"
                    raise CheckpointError(f"{key} of {name} is {shapes}")


def named_groups(optimizer: Optimizer, named_parameters: Named) -> Groups:
    """Each parameter group with the names of its parameters."""
    names = {id(parameter): name for name, parameter in named_parameters}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise ValueError(
                    f"parameter {place} of group {number}, of shape {tuple(parameter.shape)}, has no name; "
                    "pass the named_parameters() of the model that is optimised"
                )
    return [(group, [names[id(parameter)] for parameter in group["params"]]) for group in optimizer.param_groups]


def without_tensors(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that JSON holds."""
    return {key: value for key, value in entries.items() if not isinstance(value, Tensor)}


def by_owner(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each parameter, by its name, and of each group, by `options/` and its number."""
    owners: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for full, tensor in tensors.items():
        owner, key = full.rsplit("/", 1) if full.startswith("options/") else full.split(".", 1)[::-1]
        owners[owner][key] = tensor
    return owners


def in_place_of(own: Any, value: Any) -> Any:
    """The value in the memory or the form of what was there: a tensor, a tuple, a plain number."""
    if isinstance(own, Tensor) and value is not None:
        return own.copy_(value) if isinstance(value, Tensor) else own.fill_(value)
    if isinstance(value, Tensor):
        return value.clone() if own is None else value.item()
    return tuple(value) if isinstance(own, tuple) else value


def beside(parameter: Tensor, group: Mapping[str, Any], key: str, value: Any) -> Any:
    """A new entry of the state, laid out as its parameter; a step count is on the device only where updates ask for it."""
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        there = group.get("capturable") or group.get("fused")
        return value.to(parameter.device if there else "cpu", copy=True)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def listed(names: list[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
