"""The way of a block's tensors to the Triton operator, remembered: which of them it takes follows from flags, not from data.

In eager mode the choice of a path, with its checks, takes longer than the GPU has work.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dcnets import dispatch
from dcnets.fusing.links import hooked
from dcnets.kernels.response import Response
from dcnets.surroundings import pure_torch_needed, written_down

Given = tuple[Tensor | None, ...]
"""What a block is called with: x, its sums, a residual and its token, and batch norm's bias where the layer's is in it."""


class Route(NamedTuple):
    """Where each tensor of the operator comes from (a place in what is given, or a child and a name), and its settings."""

    sources: tuple[int | tuple[int, str] | None, ...]
    settings: tuple[Any, ...]


SETTINGS = (
    "eps", "alpha", "beta", "stride", "padding", "dilation", "groups", "padding_mode", "output_padding", "geometry",
)  # fmt: skip
"""What a user may set anew on a layer or a batch norm, and the operator's settings are made of."""
ROUTES: WeakKeyDictionary[nn.Module, dict[Any, Route]] = WeakKeyDictionary()
"""The routes of blocks, each by all that it depends on."""


def key_of(children: tuple[nn.Module, ...], given: Given, *flags: Any) -> Any:
    """All that a route depends on, or None where somebody looks on who wants every call."""
    x = given[0]
    assert x is not None
    if pure_torch_needed() or written_down(x):
        return None
    if any(map(hooked, children)):
        return None
    kind = x.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (
        dispatch._backend, autocast, x.dtype, x.device, x.dim(), x.shape[1] if x.numel() else 0,
        *[t is None for t in given], *flags, *[state_of(child) for child in children],
    )  # fmt: skip


def state_of(module: nn.Module) -> tuple[Any, ...]:
    """What a module's part in a block depends on beside its tensors."""
    own = module.__dict__
    return type(module), id(module), module.training, "forward" in own, id(own.get("operator")), *map(own.get, SETTINGS)


def follow(block: nn.Module, key: Any, children: tuple[nn.Module, ...], given: Given) -> Response | None:
    """The block's response by the way that it took before; None where it took none."""
    route = ROUTES.get(block, {}).get(key) if key is not None else None
    if route is None:
        return None
    from dcnets.kernels.gpu import ops

    tensors: list[Tensor | None] = []
    for source in route.sources:
        if source is None:
            tensors.append(None)
        elif isinstance(source, int):
            tensors.append(given[source])
        else:
            module = children[source[0]]
            tensors.append(module._parameters.get(source[1], module._buffers.get(source[1])))
    return ops.answer(tuple(tensors), route.settings)


def remember(block: nn.Module, key: Any, children: tuple[nn.Module, ...], given: Given, found: Response) -> None:
    """Remember the way that a response came by, where all of its tensors were given or are a child's own."""
    if key is None or found.arguments is None:
        return
    tensors, settings = found.arguments
    own = {
        where(t): (place, name)
        for place, child in enumerate(children)
        for name, t in (*child._parameters.items(), *child._buffers.items())
        if t is not None
    }
    sources: list[int | tuple[int, str] | None] = []
    for t in tensors:
        place = next((place for place, each in enumerate(given) if t is each), None)
        if t is not None and place is None and where(t) not in own:
            return
        sources.append(None if t is None else own[where(t)] if place is None else place)
    ROUTES.setdefault(block, {})[key] = Route(tuple(sources), settings)


def where(t: Tensor) -> tuple[Any, ...]:
    """Two tensors that are alike in this are the same numbers."""
    return t.data_ptr(), t.shape, t.stride(), t.dtype
