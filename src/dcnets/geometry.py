"""From the arguments of torch's layers to patches: how an input is padded, cut and put together again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index

from torch import Tensor
from torch.nn import functional as F

from dcnets.naming import choose
from dcnets.patches import Convolution, Matrix, Patches, Shape, memory_format

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")

Sizes = int | Sequence[int]
Taken = tuple[Tensor, Patches, Callable[[Tensor], Tensor]]


def expand(name: str, given: Sizes, dims: int) -> Shape:
    """One number for every dimension, or a number for each; padding may be 0, all else is 1 or more."""
    sizes = given
    if type(sizes) is not tuple:  # a layer's own are tuples already, and this is on the way of every call
        sizes = tuple(map(index, sizes if isinstance(sizes, Sequence) else (sizes,)))
    expanded: Shape = sizes * dims if len(sizes) == 1 else sizes
    if len(expanded) != dims:
        raise ValueError(f"{name} takes one number or {dims}, got {given!r}")
    least = 0 if "padding" in name else 1
    if min(expanded, default=least) < least:
        raise ValueError(f"{name} is {least} or more, got {given!r}")
    return expanded


@dataclass(frozen=True)
class Windows:
    """The patches of a convolution over `dims` dimensions, or of a transposed one."""

    dims: int
    stride: Sizes = 1
    padding: Sizes | str = 0
    dilation: Sizes = 1
    groups: int = 1
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: Sizes = 0

    def take(self, x: Tensor, weight: Tensor) -> Taken:
        """x as the convolution gets it, the patches to take from it, and how to finish the output."""
        if weight.dim() != self.dims + 2:
            raise ValueError(f"expected filters of {self.dims + 2} dimensions, got shape {tuple(weight.shape)}")
        channels = weight.shape[0] if self.transposed else weight.shape[1] * self.groups
        if x.dim() not in (self.dims + 1, self.dims + 2) or x.shape[-self.dims - 1] != channels:
            sizes = ", ".join("…" * self.dims)
            raise ValueError(
                f"expected x of shape (batch, {channels}, {sizes}) or ({channels}, {sizes}) "
                f"for filters of shape {tuple(weight.shape)} and groups={self.groups}, got {tuple(x.shape)}"
            )
        if weight.shape[0] % self.groups:
            raise ValueError(f"filters of shape {tuple(weight.shape)} cannot be split into groups={self.groups}")
        unbatched = x.dim() == self.dims + 1
        x = x.unsqueeze(0) if unbatched else x
        sides = self._sides(tuple(weight.shape[2:]))
        if not self._zeros_suffice(sides):
            layout = memory_format(x)
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x = F.pad(x, [side for pair in reversed(sides) for side in pair], mode)
            x = x.contiguous(memory_format=layout)  # circular padding forgets it
        patches = self._patches(weight, sides)
        if not self.transposed:
            refuse_small(tuple(x.shape[2:]), patches)
        return x, patches, squeeze if unbatched else unchanged

    def patches(self, weight: Tensor) -> Convolution:
        """The patches that are taken once x is padded; zeros on both sides alike are left to the convolution."""
        return self._patches(weight, self._sides(tuple(weight.shape[2:])))

    def _patches(self, weight: Tensor, sides: list[tuple[int, int]]) -> Convolution:
        kernel = tuple(weight.shape[2:])
        padding = tuple(before for before, _ in sides) if self._zeros_suffice(sides) else (0,) * self.dims
        stride, dilation, output_padding = (
            expand(name, getattr(self, name), self.dims) for name in ("stride", "dilation", "output_padding")
        )
        return Convolution(kernel, stride, padding, dilation, self.groups, self.transposed, output_padding)

    def _sides(self, kernel: Shape) -> list[tuple[int, int]]:
        """How much is padded before and after, in each dimension."""
        choose("padding_mode", self.padding_mode, PADDING_MODES)
        if not isinstance(self.padding, str):
            return [(pad, pad) for pad in expand("padding", self.padding, self.dims)]
        choose("padding", self.padding, ("same", "valid"))
        if self.transposed:
            raise ValueError(f"a transposed convolution takes its padding in numbers, got {self.padding!r}")
        if self.padding == "valid":
            return [(0, 0)] * self.dims
        if max(expand("stride", self.stride, self.dims)) > 1:
            raise ValueError(f"padding='same' needs stride 1, got {self.stride!r}; give the padding in numbers")
        gaps = expand("dilation", self.dilation, self.dims)
        spans = [gap * (taps - 1) for gap, taps in zip(gaps, kernel, strict=True)]
        return [(span // 2, span - span // 2) for span in spans]

    def _zeros_suffice(self, sides: list[tuple[int, int]]) -> bool:
        return self.padding_mode == "zeros" and all(before == after for before, after in sides)


@dataclass(frozen=True)
class Rows:
    """The last dimension of the input as one patch."""

    dims: int = 0

    def take(self, x: Tensor, weight: Tensor) -> Taken:
        """x as (rows, features), the patches, and how to finish the output."""
        if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
            came, filters = tuple(x.shape), tuple(weight.shape)
            raise ValueError(f"expected x of shape (…, {filters[-1]}) for filters of shape {filters}, got {came}")
        if x.dim() == 2:
            return x, Matrix(), unchanged  # itself, so that what is known of it stays known
        outer = x.shape[:-1]
        return x.reshape(math.prod(outer), weight.shape[1]), Matrix(), lambda y: y.view(*outer, weight.shape[0])

    def patches(self, weight: Tensor) -> Matrix:
        """The rows themselves."""
        return Matrix()


Geometry = Windows | Rows


def refuse_small(size: Shape, patches: Convolution) -> None:
    """Raise ValueError where an input is smaller than one window."""
    for length, pad, gap, taps in zip(size, patches.padding, patches.dilation, patches.kernel, strict=True):
        if length + 2 * pad < gap * (taps - 1) + 1:
            padded = tuple(length + 2 * pad for length, pad in zip(size, patches.padding, strict=True))
            window = tuple(gap * (taps - 1) + 1 for gap, taps in zip(patches.dilation, patches.kernel, strict=True))
            raise ValueError(f"an input of {padded} positions, padding included, is smaller than a window of {window}")


def squeeze(y: Tensor) -> Tensor:
    """The output of one sample."""
    return y.squeeze(0)


def unchanged(y: Tensor) -> Tensor:
    """The output of a batch."""
    return y
