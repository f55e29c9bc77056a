"""How patches meet filters: inner products, and the norms of the same patches, for convolutions and matrices.

Both speak of the grouped layout (batch, groups, filters in a group, *positions); a patch norm has one filter there.
A norm is a channel sum of squares followed by a box sum over one channel, never a convolution with ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dcnets.surroundings import is_vmapped

Shape = tuple[int, ...]


def box_sum(s: Tensor, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Tensor:
    """Sum over the window that a convolution sees at each position; the last dimensions of s are spatial."""
    if any(padding):
        s = F.pad(s, [side for pad in reversed(padding) for side in (pad, pad)])
    for axis, (taps, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True), start=-len(kernel)):
        span = s.shape[axis] - gap * (taps - 1)  # not rounded to whole steps: torch.export proves no bound of a rounded size
        if taps > 1 or step > 1:
            windows = [window(s, axis, tap * gap, span, step) for tap in range(taps)]
            s = windows[0]
            for shifted in windows[1:]:
                s = s + shifted
    return s


def box_spread(s: Tensor, size: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Tensor:
    """The transpose of `box_sum`: add every element to all positions of its window, in an output of `size`."""
    for axis, (taps, step, gap, pad, wanted) in enumerate(
        zip(kernel, stride, dilation, padding, size, strict=True), start=-len(kernel)
    ):
        length = s.shape[axis]
        if taps == step == 1 and pad == 0 and wanted == length:
            continue
        shape = list(s.shape)
        shape[axis] = wanted + 2 * pad  # which has room for every window
        total = s.new_zeros(shape)
        for tap in range(taps):
            window(total, axis, tap * gap, (length - 1) * step + 1, step).add_(s)
        s = total.narrow(axis, pad, wanted)
    return s


def window(s: Tensor, axis: int, start: int, span: int, step: int) -> Tensor:
    """Every `step`-th slice of s along `axis`, in `span` slices from `start` on, as a view."""
    if step == 1:
        return s.narrow(axis, start, span)
    index = [slice(None)] * s.dim()
    index[axis] = slice(start, start + span, step)
    return s[tuple(index)]


@dataclass(frozen=True)
class Convolution:
    """Zero-padded patches of x (batch, channels, *positions), against filters in torch's layout."""

    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int
    transposed: bool
    output_padding: Shape

    @property
    def _settings(self) -> tuple[Shape, Shape, Shape, bool, Shape, int]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups

    def products(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """⟨w, x⟩ for each filter and patch, and its bias where there is one: (batch, filters, *positions)."""
        return torch.convolution(x, weight, bias, *self._settings)

    def products_backward(
        self, dz: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of `products` with respect to x and weight."""
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            dz, x, weight, None, *self._settings, (needs_x, needs_weight, False)
        )
        return dx, dweight

    def sums(self, s: Tensor) -> Tensor:
        """Sums of squares (batch, groups, *positions of x), summed over each patch."""
        box = (self.kernel, self.stride, self.padding, self.dilation)
        return box_spread(s, self._stuffed(s.shape[2:]), *box) if self.transposed else box_sum(s, *box)

    def _stuffed(self, size: Shape) -> Shape:
        """The size of a transposed convolution's output."""
        settings = zip(size, self.kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        return tuple(
            (length - 1) * step - 2 * pad + gap * (taps - 1) + extra + 1 for length, taps, step, pad, gap, extra in settings
        )

    def sums_backward(self, d: Tensor, positions: Shape) -> Tensor:
        """The transpose of `sums`; `positions` is the input's size."""
        box = (self.kernel, self.stride, self.padding, self.dilation)
        if not self.transposed:
            return box_spread(d, positions, *box)
        s = box_sum(d, *box)  # output padding may leave room for windows that no input has
        for axis, length in enumerate(positions, start=-len(positions)):
            s = s.narrow(axis, 0, length)
        return s

    def filters(self, weight: Tensor) -> int:
        """How many filters there are."""
        return weight.shape[1] * self.groups if self.transposed else weight.shape[0]

    def filter_axes(self, weight: Tensor) -> tuple[Tensor, Shape]:
        """The weight with its first axis split into groups, and the axes of one filter."""
        split = weight.view(self.groups, weight.shape[0] // self.groups, *weight.shape[1:])
        return split, tuple(axis for axis in range(1, split.dim()) if axis != (2 if self.transposed else 1))


@dataclass(frozen=True)
class Matrix:
    """Rows of x (batch, features), each of which is one patch, against the rows of a matrix."""

    groups = 1

    def products(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """⟨w, x⟩ for each row, and its bias where there is one: (batch, filters)."""
        return F.linear(x, weight, bias)

    def products_backward(
        self, dz: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of `products` with respect to x and weight."""
        return dz @ weight if needs_x else None, dz.t() @ x if needs_weight else None

    def sums(self, s: Tensor) -> Tensor:
        """A patch is a whole row: nothing to add up."""
        return s

    def sums_backward(self, d: Tensor, positions: Shape) -> Tensor:
        """The transpose of `sums`."""
        return d

    def filters(self, weight: Tensor) -> int:
        """How many filters there are."""
        return weight.shape[0]

    def filter_axes(self, weight: Tensor) -> tuple[Tensor, Shape]:
        """The weight with its first axis split into groups, and the axes of one filter."""
        return weight.unsqueeze(0), (2,)


Patches = Convolution | Matrix


def beside_filters(values: Tensor, weight: Tensor, patches: Patches) -> Tensor:
    """One number a filter, (groups, filters in a group, 1), shaped to meet the weight as it is.

    Split into groups, a weight of one filter would lose its strides, by which torch knows channels last.
    """
    filters, axes = patches.filter_axes(weight)
    shape = [1 if axis in axes else size for axis, size in enumerate(filters.shape)]
    return values.reshape(shape).expand(*filters.shape[:2], *shape[2:]).flatten(0, 1)


def scale_filters(weight: Tensor, patches: Patches, factors: Tensor) -> Tensor:
    """The weight with each filter multiplied by its factor, (groups, filters in a group, 1)."""
    return weight * beside_filters(factors, weight, patches)


def memory_format(x: Tensor) -> torch.memory_format:
    """channels_last where x is laid out so, and torch's usual format otherwise, and under vmap, which knows no other."""
    if is_vmapped(x):
        return torch.contiguous_format
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous():
        return last
    return torch.contiguous_format


def grouped(t: Tensor, groups: int) -> Tensor:
    """A view of (batch, channels, *positions) as (batch, groups, channels in a group, *positions)."""
    return t.view(t.shape[0], groups, t.shape[1] // groups, *t.shape[2:])


def sums_of_squares(x: Tensor, groups: int) -> Tensor:
    """Σx² over the channels of each group, in float32 at least: (batch, groups, *positions)."""
    x = grouped(x.to(torch.promote_types(x.dtype, torch.float32)), groups)
    return (x * x).sum(2)


def patch_norm(x: Tensor, patches: Patches, eps: float) -> Tensor:
    """n = √(Σx² + ε) of every patch in the grouped layout: (batch, groups, 1, *positions)."""
    return (patches.sums(sums_of_squares(x, patches.groups)) + eps).sqrt().unsqueeze(2)


def norm(t: Tensor, axes: Shape | int, eps: float) -> Tensor:
    """√(Σt² + ε) over some axes, which are kept."""
    return ((t * t).sum(axes, keepdim=True) + eps).sqrt()


def normalise(weight: Tensor, patches: Patches, eps: float) -> tuple[Tensor, Tensor]:
    """ŵ = w/‖w‖ in the weight's layout and ‖w‖ = √(Σw² + ε), (groups, filters in a group, 1); float32 at least."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    norms = norm(*patches.filter_axes(wide), eps).view(patches.groups, -1, 1)
    return wide / beside_filters(norms, wide, patches), norms
