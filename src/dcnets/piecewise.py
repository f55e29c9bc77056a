"""A learned h and a learned g: piecewise linear over a few knots, started as any named function (section 5)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.angular import ANGULARS, angular, arc_sine
from dcnets.magnitude import MAGNITUDES, magnitude
from dcnets.naming import choose
from dcnets.registry import Named, Value


def interpolate(values: Tensor, position: Tensor) -> Tensor:
    """Each filter's piecewise-linear function at `position`, in knots.

    `values` is (filters, knots); `position` is in the grouped layout and is broadcast over filters where it has one. Beyond
    the first and the last knot the outer pieces go on; NaN stays NaN.
    """
    knots = values.shape[1]
    below = position.detach().floor().nan_to_num(0).clamp(0, knots - 2)
    groups = position.shape[1]
    first = torch.arange(values.shape[0], device=values.device).mul(knots).reshape(groups, -1, *(1,) * (position.dim() - 3))
    index = first + below.long()
    flat = values.to(position.dtype).flatten()
    return torch.lerp(flat[index], flat[index + 1], position - below)


def start(kind: str, table: Any, name: str, at: Tensor) -> Tensor:
    """The named function at the knots, its parameters at their defaults."""
    function: Named = table[choose(f"init of a piecewise {kind}", name, [n for n, f in table.items() if not f.is_module])]
    values = {"rho": 1.0, "alpha": 1.0, "weight_norm": 1.0, **function.defaults}
    return function(at, values)


class Piecewise(nn.Module):
    """The values at the knots, (filters, knots), one function a filter; free, or made monotone when they are read."""

    def __init__(self, filters: int, begin: Tensor, monotone: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        if begin.numel() < 2:
            raise ValueError(f"a piecewise function has at least 2 knots, got {begin.numel()}")
        self.monotone, self.begin = monotone, begin
        self.values = nn.Parameter(torch.empty(filters, begin.numel(), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew, as the function that `init` names."""
        with torch.no_grad():
            self.values.copy_(self.begin)

    def settle(self) -> None:
        """Make the values monotone for good, where they are to be."""
        if self.monotone:
            self.values.data.copy_(self.read())
            self.monotone = False

    def read(self) -> Tensor:
        """The values as they act."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"knots={self.values.shape[1]}, monotone={self.monotone}"


@magnitude(name="piecewise", smooth=False)
class PiecewiseMagnitude(Piecewise):
    """Learned h of ‖x‖/ρ, piecewise linear from 0 to `reach`, then straight on; rising throughout where `monotone`."""

    def __init__(
        self, filters: int, init: str = "tanh", knots: int = 9, reach: float = 4.0, monotone: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        at = torch.linspace(0, reach, knots, dtype=torch.float64, device="cpu")
        super().__init__(filters, start("magnitude", MAGNITUDES, init, at), monotone, device, dtype)
        self.reach = reach

    def read(self) -> Tensor:
        return self.values.cummax(1).values if self.monotone else self.values

    def forward(self, n: Tensor, rho: Value) -> Tensor:
        values = self.read()
        return interpolate(values, n / rho * ((values.shape[1] - 1) / self.reach))


@angular(name="piecewise", smooth=False)
class PiecewiseAngular(Piecewise):
    """Learned g of θ, piecewise linear from 0 to π; falling throughout where `monotone`."""

    def __init__(
        self, filters: int, init: str = "cosine", knots: int = 9, monotone: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        at = torch.linspace(0, math.pi, knots, dtype=torch.float64, device="cpu").cos()
        super().__init__(filters, start("angular", ANGULARS, init, at), monotone, device, dtype)

    def read(self) -> Tensor:
        return self.values.cummin(1).values if self.monotone else self.values

    def forward(self, c: Tensor) -> Tensor:
        values = self.read()
        return interpolate(values, (math.pi / 2 - arc_sine(c)) * ((values.shape[1] - 1) / math.pi))
