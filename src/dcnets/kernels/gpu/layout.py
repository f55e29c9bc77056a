"""How tensors lie in memory, as the programs see them: batch, positions and channels, and the windows over positions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dcnets.patches import Shape


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution, as three-dimensional ones."""

    size: Shape
    out_size: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    @property
    def arguments(self) -> tuple[int, ...]:
        """What the programs take of it, but for the taps."""
        return (*self.size, *self.out_size, *self.stride, *self.padding, *self.dilation)

    @property
    def taps(self) -> dict[str, int]:
        """What the programs are unrolled for."""
        return {"TAPS0": self.kernel[0], "TAPS1": self.kernel[1], "TAPS2": self.kernel[2]}


def windows(size: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Windows:
    """The windows over an input of a size; missing dimensions come first, with one element."""

    def three(values: Shape, fill: int) -> Shape:
        return (fill,) * (3 - len(values)) + tuple(values)

    size, kernel, stride, padding, dilation = (
        three(size, 1), three(kernel, 1), three(stride, 1), three(padding, 0), three(dilation, 1),
    )  # fmt: skip
    out_size = tuple(
        (length + 2 * pad - gap * (taps - 1) - 1) // step + 1
        for length, taps, step, pad, gap in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    return Windows(size, out_size, kernel, stride, padding, dilation)


Steps = tuple[int, int, int]
"""The strides of batch, position and channel."""


@functools.lru_cache(maxsize=4096)
def steps(shape: Shape, strides: Shape) -> Steps | None:
    """The steps of a tensor (batch, channels, *positions), or None where its positions are no row."""
    spatial = [(size, stride) for size, stride in zip(shape[2:], strides[2:], strict=True) if size != 1]
    for (_, outer), (length, inner) in pairwise(spatial):
        if outer != length * inner:
            return None
    return strides[0], spatial[-1][1] if spatial else 1, strides[1]


def dense(t: Tensor) -> Tensor:
    """t itself where its positions are a row, else a copy in which they are."""
    usual = t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))
    return t if usual or steps.__wrapped__(t.shape, t.stride()) is not None else t.contiguous()


def steps_of(t: Tensor) -> Steps:
    """The steps of a dense tensor."""
    found = steps(t.shape, t.stride())
    assert found is not None
    return found


def whole_filters(weight: Tensor) -> Tensor:
    """The weight itself where each filter is one piece of memory, else a copy in which it is."""
    size = weight.numel() // weight.shape[0]
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim(), torch.contiguous_format)
    dense = weight.is_contiguous() or weight.is_contiguous(memory_format=last)
    return weight if dense and weight.stride(0) == size else weight.contiguous()
