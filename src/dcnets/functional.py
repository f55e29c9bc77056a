"""The operators as functions of tensors, with the arguments of torch's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from dcnets.dispatch import Tensors, autocasts, backend, pure_torch_needed, respond
from dcnets.naming import choose, refuse_unknown
from dcnets.operator import Operator
from dcnets.patches import Convolution, Matrix, Shape, memory_format
from dcnets.patches import patch_norm as grouped_patch_norm

__all__ = [
    "backend",
    "decoupled_conv1d",
    "decoupled_conv2d",
    "decoupled_conv3d",
    "decoupled_conv_transpose2d",
    "decoupled_linear",
    "patch_norm",
]

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")

Sizes = int | Sequence[int]


def decoupled_conv1d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, *, padding_mode: str = "zeros",
    **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """A decoupled convolution of x (batch, channels, length), or of one sample, with filters (out, in/groups, kernel)."""
    return convolve(
        1, x, weight, operator, bias, stride, padding, dilation, groups, padding_mode, checked(operator, tensors)
    )[0]


def decoupled_conv2d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, *, padding_mode: str = "zeros",
    **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """A decoupled convolution of x (batch, channels, height, width), or of one sample."""
    return convolve(
        2, x, weight, operator, bias, stride, padding, dilation, groups, padding_mode, checked(operator, tensors)
    )[0]


def decoupled_conv3d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, *, padding_mode: str = "zeros",
    **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """A decoupled convolution of x (batch, channels, depth, height, width), or of one sample."""
    return convolve(
        3, x, weight, operator, bias, stride, padding, dilation, groups, padding_mode, checked(operator, tensors)
    )[0]


def decoupled_conv_transpose2d(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, **tensors: Unpack[Tensors],
) -> Tensor:  # fmt: skip
    """The decoupled convolution over the zero-stuffed input, with filters (in, out/groups, height, width)."""
    return convolve(
        2, x, weight, operator, bias, stride, padding, dilation, groups, "zeros", checked(operator, tensors),
        transposed=True, output_padding=output_padding,
    )[0]  # fmt: skip


def decoupled_linear(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None = None, **tensors: Unpack[Tensors]
) -> Tensor:
    """A decoupled layer of x (…, features) with filters (out, features): each row is one patch."""
    return multiply(x, weight, operator, bias, checked(operator, tensors))[0]


def patch_norm(
    x: Tensor, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
    *, padding_mode: str = "zeros", eps: float = 1e-4,
) -> Tensor:  # fmt: skip
    """n = √(Σx² + ε) of each patch of x (batch, channels, *positions): (batch, groups, *positions)."""
    dims = x.dim() - 2
    x, patches = padded(x, expand("kernel_size", kernel_size, dims), stride, padding, dilation, groups, padding_mode)
    return grouped_patch_norm(x, patches, eps).squeeze(2)


# -- from arguments to patches ---------------------------------------------------------------------------------------


def expand(name: str, sizes: Sizes, dims: int) -> Shape:
    """One number for every dimension, or a number for each."""
    expanded = (sizes,) * dims if isinstance(sizes, int) else tuple(sizes) * (dims if len(sizes) == 1 else 1)
    if len(expanded) != dims:
        raise ValueError(f"{name} takes one number or {dims}, got {sizes!r}")
    return expanded


def padded(
    x: Tensor, kernel: Shape, stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int, mode: str
) -> tuple[Tensor, Convolution]:
    """x with all padding but symmetric zeros applied, and the patches that remain to be taken from it."""
    dims = len(kernel)
    choose("padding_mode", mode, PADDING_MODES)
    steps, gaps = expand("stride", stride, dims), expand("dilation", dilation, dims)
    if isinstance(padding, str):
        choose("padding", padding, ("same", "valid"))
        if padding == "same" and max(steps) > 1:
            raise ValueError(f"padding='same' needs stride 1, got {stride!r}; give the padding in numbers")
        spans = [gap * (taps - 1) if padding == "same" else 0 for gap, taps in zip(gaps, kernel, strict=True)]
        sides = [(span // 2, span - span // 2) for span in spans]
    else:
        sides = [(pad, pad) for pad in expand("padding", padding, dims)]
    if mode != "zeros" or any(before != after for before, after in sides):
        layout = memory_format(x)
        x = F.pad(x, [side for pair in reversed(sides) for side in pair], "constant" if mode == "zeros" else mode)
        x = x.contiguous(memory_format=layout)  # circular padding forgets it
        sides = [(0, 0)] * dims
    return x, Convolution(kernel, steps, tuple(before for before, _ in sides), gaps, groups, False, (0,) * dims)


def convolve(
    dims: int, x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None, stride: Sizes,
    padding: Sizes | str, dilation: Sizes, groups: int, padding_mode: str, tensors: Tensors, *,
    transposed: bool = False, output_padding: Sizes = 0,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The output, and the mean norm that a relative radius was measured by (None without one)."""
    x, weight = matched(x, weight)
    if weight.dim() != dims + 2:
        raise ValueError(f"expected filters of {dims + 2} dimensions, got shape {tuple(weight.shape)}")
    if transposed and isinstance(padding, str):
        raise ValueError(f"a transposed convolution takes its padding in numbers, got {padding!r}")
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.dim() not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels:
        raise ValueError(
            f"expected x of shape (batch, {channels}, {', '.join('…' * dims)}) or ({channels}, {', '.join('…' * dims)}) "
            f"for filters of shape {tuple(weight.shape)} and groups={groups}, got {tuple(x.shape)}"
        )
    unbatched = x.dim() == dims + 1
    if unbatched:
        x = x.unsqueeze(0)
    kernel = tuple(weight.shape[2:])
    x, patches = padded(x, kernel, stride, padding, dilation, groups, padding_mode)
    if transposed:
        patches = replace(patches, transposed=True, output_padding=expand("output_padding", output_padding, dims))
    y, m = respond(x, weight, bias, patches, as_operator(operator), tensors)
    return y.squeeze(0) if unbatched else y, m


def multiply(
    x: Tensor, weight: Tensor, operator: Operator | str, bias: Tensor | None, tensors: Tensors
) -> tuple[Tensor, Tensor | None]:
    """The output, and the mean norm that a relative radius was measured by (None without one)."""
    x, weight = matched(x, weight)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"expected x of shape (…, {weight.shape[-1]}) for filters of shape {tuple(weight.shape)}, got {tuple(x.shape)}"
        )
    rows = x.reshape(-1, x.shape[-1]) if x.shape[-1] else x.reshape(x.shape[:-1].numel(), 0)
    y, m = respond(rows, weight, bias, Matrix(), as_operator(operator), tensors)
    return y.view(*x.shape[:-1], weight.shape[0]), m


def matched(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x and weight after autocast's conversions, or a TypeError where they do not fit."""
    for name, t in (("x", x), ("weight", weight)):
        if not t.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {t.dtype}; convert it with .float()")
    if autocasts(x):
        return x.to(torch.get_autocast_dtype(x.device.type)), weight
    if x.dtype != weight.dtype:
        raise TypeError(f"x is {x.dtype} and weight is {weight.dtype}; convert one, or use torch.autocast")
    return x, weight


def as_operator(operator: Operator | str) -> Operator:
    """The operator itself, or the one that its text describes."""
    return Operator.parse(operator) if isinstance(operator, str) else operator


def checked(operator: Operator | str, tensors: Tensors) -> Tensors:
    """The tensors, after a look at what a caller can get wrong. Values of tensors are looked at on the CPU alone."""
    refuse_unknown("a decoupled function", tensors, Tensors.__annotations__)
    operator = as_operator(operator)
    takes = ("alpha", *operator.h.parameters, *operator.g.parameters)
    for name in ("rho", "beta", "k", "p"):
        value: Any = tensors.get(name)
        if value is None:
            continue
        if name not in takes:
            raise ValueError(f"{operator} takes no {name}; leave it out")
        if name == "beta" or (isinstance(value, Tensor) and (value.device.type != "cpu" or pure_torch_needed())):
            continue
        least = torch.as_tensor(value).detach().min()
        if not (least >= 1 if name == "p" else least > 0):
            raise ValueError(f"{name} must be {'at least 1' if name == 'p' else 'above 0'}, got {least.item():g}")
    return tensors
