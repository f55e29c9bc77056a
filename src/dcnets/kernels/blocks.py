"""Walking through a batch in pieces that stay in a CPU's cache; on other devices the batch is one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from dcnets.patches import grouped

BLOCK = 131_072
"""Elements that one thread works on at a time: 512 KiB of float32, so that a block and its temporaries stay in cache."""
CHUNK = 2 * BLOCK
"""Elements of the output that one thread convolves at a time in training: fewer large buffers, and they are still warm."""


def chunk_size(outputs: int, weight: Tensor) -> int:
    """Samples that are convolved at a time, where one has so many outputs.

    A convolution rearranges its filters at each call, so a chunk is large beside them.
    """
    if weight.device.type != "cpu":
        return 1 << 62
    return max(1, max(CHUNK * torch.get_num_threads(), 4 * weight.numel()) // max(outputs, 1))


def in_blocks(layout: Tensor, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Walk through tensors of a grouped layout together, in views of cache-sized pieces.

    The batch is split, and a sample that is too large is split along its first position.
    """
    size = layout.shape[1:].numel()
    budget = BLOCK * torch.get_num_threads() if layout.device.type == "cpu" else layout.numel()
    samples = max(1, budget // max(size, 1))
    if layout.numel() <= budget:
        yield (layout, *tensors)
        return
    pieces = zip(*(split(t, samples, 0) for t in (layout, *tensors)), strict=False)
    if size <= budget or layout.dim() < 4:
        yield from pieces
        return
    rows = max(1, budget * layout.shape[3] // size)
    for piece in pieces:
        yield from zip(*(split(t, rows, 3) for t in piece), strict=False)


def split(t: Tensor | None, step: int, axis: int) -> Iterable[Tensor | None]:
    """t in steps along an axis, or None again and again."""
    return repeat(None) if t is None else torch.split(t, step, axis)


def square_sums(x: Tensor, groups: int) -> Tensor:
    """Σx² over the channels of each group, in blocks so that the squares never reach memory: (batch, groups, *positions)."""
    x = grouped(x, groups)
    s = x.new_empty((*x.shape[:2], 1, *x.shape[3:]), dtype=torch.promote_types(x.dtype, torch.float32))
    squares = None
    for part, total in in_blocks(x, s):
        part = part.to(s.dtype)
        if squares is None or squares.shape != part.shape:
            squares = torch.empty_like(part)
        torch.mul(part, part, out=squares)
        torch.sum(squares, 2, keepdim=True, out=total)
    return s.squeeze(2)


def beside(t: Tensor, z: Tensor) -> Tensor:
    """One number a position, written out for every filter where z has its filters side by side (channels last).

    From such numbers and a value per filter alone torch would make a tensor in its usual layout, and each product of that
    with z would jump through memory: ten times the time of a product of like layouts.
    """
    if t.shape[2] == z.shape[2] or z.stride(2) != 1 or z.dim() == 3:
        return t
    return torch.empty_like(z, dtype=t.dtype).copy_(t)
