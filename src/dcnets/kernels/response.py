"""What a layer may be computed together with, and what comes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Behind(NamedTuple):
    """What follows a layer: batch norm, a residual to add, ReLU; and the sums of squares before and behind it."""

    gamma: Tensor | None = None
    """Batch norm's weight; its bias takes the place of the layer's."""
    beta: Tensor | None = None
    bn_eps: float = 0.0
    centre: Tensor | None = None
    variance: Tensor | None = None
    """The statistics that batch norm uses; the batch's own where they are not given."""
    residual: Tensor | None = None
    token: Tensor | None = None
    """Zeros that are added to the residual and have its gradient, in place of the residual's own."""
    relu: bool = False
    sums: Tensor | None = None
    """Σx² over the channels, (batch, 1, positions), where the producer of x has computed it."""
    wants_sums: bool = False
    wants_token: bool = False

    def over(self, taken: Tensor, x: Tensor, groups: int) -> Behind:
        """The same for an input that was taken of x; the sums are left out where they are not those that the layer needs."""
        return self if taken is x and groups == 1 else self._replace(sums=None)


NOTHING = Behind()


class Response(NamedTuple):
    """What a layer, with what is behind it, gives."""

    y: Tensor
    sums: Tensor | None
    """Σy² over the filters, where it was wanted."""
    token: Tensor | None
    """Zeros in y's shape whose gradient counts as y's, where they were wanted."""
    m: Tensor
    """The mean norm that ρ was measured by."""
    moments: Tensor
    """Mean, biased and unbiased variance of the response (3, filters), where batch norm took the batch's."""
    arguments: tuple[tuple[Tensor | None, ...], tuple[Any, ...]] | None = None
    """The tensors and settings that the operator took, in eager mode."""
