"""What follows the convolutions of a network: batch norm, ReLU, both or neither."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

BN_EPS = 1e-3
"""Batch norm's ε, as the authors have it; torch's own is 1e-5."""


@dataclass(frozen=True)
class Style:
    """`batch_norm` and `relu`: whether there is any; `prelu`: each ReLU has a learned negative slope, at first 0."""

    batch_norm: bool
    relu: bool
    bn_momentum: float
    prelu: bool = False


def convolution(
    style: Style, before: int, after: int, size: int, stride: int = 1, *, padding: int | None = None,
    relu: bool | None = None,
) -> nn.Sequential:  # fmt: skip
    """A convolution without bias, its batch norm and its ReLU, as the style has them; `relu` decides against the style.

    The padding is symmetric, and keeps the image's size at stride 1 unless it is given.
    """
    padding = size // 2 if padding is None else padding
    parts: dict[str, nn.Module] = {"conv": nn.Conv2d(before, after, size, stride, padding, bias=False)}
    if style.batch_norm:
        parts["bn"] = nn.BatchNorm2d(after, eps=BN_EPS, momentum=style.bn_momentum)
    if style.relu if relu is None else relu:
        parts |= {"prelu": nn.PReLU(after, init=0.0)} if style.prelu else {"relu": nn.ReLU()}
    return named(parts)


def named(parts: dict[str, nn.Module]) -> nn.Sequential:
    """The parts one after the other, each under its name."""
    return nn.Sequential(OrderedDict(parts))
