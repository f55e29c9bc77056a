"""The operators as functions of tensors, with the arguments of torch's own functions."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from dcnets.dispatch import backend, respond
from dcnets.geometry import Geometry, Rows, Sizes, Windows, expand
from dcnets.naming import refuse_unknown
from dcnets.operator import Operator
from dcnets.patches import patch_norm as grouped_patch_norm
from dcnets.settling import Tensors
from dcnets.surroundings import pure_torch_needed, written_down

__all__ = [
    "backend",
    "decoupled_conv1d",
    "decoupled_conv2d",
    "decoupled_conv3d",
    "decoupled_conv_transpose2d",
    "decoupled_linear",
    "patch_norm",
]


def decoupled_conv1d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, *, padding_mode: str = "zeros",
    **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """A decoupled convolution of x (batch, channels, length), or of one sample, with filters (out, in/groups, kernel)."""
    geometry = Windows(1, stride, padding, dilation, groups, padding_mode)
    return call(x, weight, bias, geometry, operator, tensors)


def decoupled_conv2d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, *, padding_mode: str = "zeros",
    **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """A decoupled convolution of x (batch, channels, height, width), or of one sample."""
    geometry = Windows(2, stride, padding, dilation, groups, padding_mode)
    return call(x, weight, bias, geometry, operator, tensors)


def decoupled_conv3d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, *, padding_mode: str = "zeros",
    **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """A decoupled convolution of x (batch, channels, depth, height, width), or of one sample."""
    geometry = Windows(3, stride, padding, dilation, groups, padding_mode)
    return call(x, weight, bias, geometry, operator, tensors)


def decoupled_conv_transpose2d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """The decoupled convolution over the zero-stuffed input, with filters (in, out/groups, height, width)."""
    geometry = Windows(2, stride, padding, dilation, groups, transposed=True, output_padding=output_padding)
    return call(x, weight, bias, geometry, operator, tensors)


def decoupled_linear(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, **tensors: Unpack[Tensors]
) -> Tensor:
    """A decoupled layer of x (…, features) with filters (out, features): each row is one patch."""
    return call(x, weight, bias, Rows(), operator, tensors)


def patch_norm(
    x: Tensor, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
    *, padding_mode: str = "zeros", eps: float = 1e-4,
) -> Tensor:  # fmt: skip
    """n = √(Σx² + ε) of each patch of x (batch, channels, *positions): (batch, groups, *positions)."""
    dims = x.dim() - 2
    filters = x.new_empty((0, x.shape[1] // groups, *expand("kernel_size", kernel_size, dims)))
    x, patches, _ = Windows(dims, stride, padding, dilation, groups, padding_mode).take(x, filters)
    return grouped_patch_norm(x, patches, eps).squeeze(2)


def call(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, operator: Operator | str, tensors: Tensors
) -> Tensor:
    """The output of an operator, given as itself or as its text, after a look at its tensors."""
    operator = Operator.of(operator)
    check(operator, tensors)
    return respond(x, weight, bias, geometry, operator, tensors)[0]


def check(operator: Operator, tensors: Tensors) -> None:
    """Refuse what a caller can get wrong. Values of tensors are read on the CPU alone, and not where a call is recorded."""
    refuse_unknown("a decoupled function", tensors, Tensors.__annotations__)
    takes = [*operator.h.parameters, *operator.g.parameters]
    if operator.has_radius and operator.radius == "relative":
        takes.append("mean_norm")
    for name in ("rho", "mean_norm", "beta", "k", "p"):
        value: Any = tensors.get(name)
        if value is None:
            continue
        if name not in takes:
            raise ValueError(f"{operator} takes no {name}; leave it out")
        given = isinstance(value, Tensor)
        elsewhere = given and (value.device.type != "cpu" or pure_torch_needed() or written_down(value))
        if name == "beta" or callable(value) or elsewhere:
            continue
        least = value.detach().min().item() if given else value
        if not (least >= 1 if name == "p" else least > 0):
            raise ValueError(f"{name} must be {'at least 1' if name == 'p' else 'above 0'}, got {least:g}")
