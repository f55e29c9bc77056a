"""What torch is doing around a call: autocast, torch.compile, torch.fx, the transforms of torch.func, forward mode."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import Proxy
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def matched(x: Tensor, weight: Tensor) -> Tensor:
    """x after autocast's conversion, or a TypeError where x and weight do not fit."""
    for name, t in (("x", x), ("weight", weight)):
        if not t.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {t.dtype}; convert it with .float()")
    if autocasts(x):
        wanted = torch.get_autocast_dtype(x.device.type)
        return x if x.dtype == wanted else x.to(wanted)  # itself, so that what is known of it stays known
    if x.dtype != weight.dtype:
        raise TypeError(f"x is {x.dtype} and weight is {weight.dtype}; convert one, or use torch.autocast")
    return x


def autocasts(t: Tensor) -> bool:
    """Whether autocast is on for tensors like t."""
    kind = t.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind) and t.dtype != torch.float64


def no_autocast(t: Tensor) -> AbstractContextManager[Any]:
    """A context in which products of tensors like t keep their precision."""
    return torch.autocast(t.device.type, enabled=False) if autocasts(t) else nullcontext()


def pure_torch_needed() -> bool:
    """Whether a transform is looking on that wants the plain formula: compile, export, torch.func, forward mode."""
    return torch.compiler.is_compiling() or differentiated_otherwise()


def differentiated_otherwise() -> bool:
    """Whether gradients are not, or not only, those of a backward pass: in torch.func and in forward mode."""
    return in_transform() or forward_ad._current_level >= 0


def in_transform() -> bool:
    """Whether a transform of torch.func is active."""
    return torch._C._are_functorch_transforms_active()


def written_down(x: Tensor) -> bool:
    """Whether calls in eager mode are recorded or imagined, where a launch would be missed.

    So do torch.jit.trace, make_fx, fake tensors, tensors with a dispatch of their own, and every dispatch mode.
    """
    if torch.compiler.is_compiling():
        return False
    own = type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return own or torch._C._len_torch_dispatch_stack() > 0 or traced()


def traced() -> bool:
    """Whether torch.jit.trace or make_fx writes down every operation, which is to stand for other inputs too."""
    return torch._C._get_tracing_state() is not None or get_proxy_mode() is not None


def symbolic(x: Any) -> bool:
    """Whether x is a symbol of `torch.fx.symbolic_trace`, of which nothing is known."""
    return isinstance(x, Proxy)


class OneCall(nn.Module):
    """A module that `torch.fx.symbolic_trace` writes down as one call, hooks included, as it does torch's own."""

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        symbol: Any = next(filter(symbolic, (*inputs, *named.values())), None)
        if symbol is None:
            return super().__call__(*inputs, **named)

        def written(*inputs: Any, **named: Any) -> Any:
            return symbol.tracer.create_proxy("call_module", symbol.tracer.path_of_module(self), inputs, named)

        return symbol.tracer.call_module(self, written, inputs, named)


def is_vmapped(t: Tensor) -> bool:
    """Whether torch.vmap hides a batch dimension of t."""
    if torch.compiler.is_compiling():
        return False
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return True
        t = torch._C._functorch.get_unwrapped(t)
    return False
