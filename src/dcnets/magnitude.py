"""Every magnitude function h(‖x‖), beside its equation and its slopes.

Symbols: n is the patch norm ‖x‖, rho the radius that it is measured by. A formula that does not take α is multiplied by
it afterwards. At a kink (n = ρ) the slope is the outer one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dcnets.processor import tanh_is_fast
from dcnets.registry import Named, Registrar, Value, Values, multiply_add, one_minus_
from dcnets.text import write_sum


class Magnitude(Named):
    """A registered h."""

    symbol, argument, allowed = "h", "n", ("rho", "alpha", "beta", "weight_norm")

    @property
    def takes_norm(self) -> bool:
        """Whether h depends on ‖x‖ at all."""
        return self.name != "sphere"


MAGNITUDES: dict[str, Magnitude] = {}
magnitude = Registrar(MAGNITUDES, Magnitude)
"""Register h(n, …), which may take rho, alpha, beta and weight_norm; a module gets n as (batch, groups, 1, *positions)."""


def lesser(n: Tensor, rho: Value) -> Tensor:
    """min(n, ρ), whose gradient at n = ρ goes to ρ: the outer slope."""
    return torch.clamp(rho if isinstance(rho, Tensor) else n.new_full((), rho), max=n)


def inside(n: Tensor, rho: Value) -> Tensor:
    """1 where n < ρ, 0 elsewhere, as a number (a mask of booleans costs ten times as much)."""
    return (rho - n).gt_(0)


@magnitude(slopes={"n": lambda: 0.0})
def sphere(n: Tensor) -> Tensor:
    """SphereConv, Eq. (4): h = α."""
    return torch.ones_like(n)


@magnitude(
    smooth=False,
    slopes={"n": lambda n, rho: inside(n, rho).div_(rho), "rho": lambda h_n, n, rho: (h_n * n).div_(-rho)},
)
def ball(n: Tensor, rho: Value) -> Tensor:
    """BallConv, Eq. (5): h = α · min(‖x‖, ρ) / ρ."""
    return lesser(n, rho) / rho


@magnitude(slopes={"n": lambda h, rho: one_minus_(h * h).div_(rho), "rho": lambda h_n, n, rho: (h_n * n).div_(-rho)})
def tanh(n: Tensor, rho: Value) -> Tensor:
    """TanhConv, Eq. (6): h = α · tanh(‖x‖ / ρ)."""
    if n.device.type == "cpu" and not torch.compiler.is_compiling() and tanh_is_fast():
        return torch.tanh(n * (1 / rho))
    e = torch.expm1(n * (-2 / rho))  # tanh(u) = (1 − e^−2u) / (1 + e^−2u): as exact, and elsewhere faster
    return e / (-2 - e)


@magnitude(slopes={"n": lambda: 1.0})
def linear(n: Tensor) -> Tensor:
    """LinearConv, Eq. (7): h = α · ‖x‖."""
    return n


@magnitude(
    smooth=False,
    slopes={
        "n": lambda n, rho, alpha, beta: inside(n, rho) * (alpha - beta) + beta,
        "rho": lambda h_n, alpha: alpha - h_n,
        "alpha": lambda n, rho: lesser(n, rho),
        "beta": lambda n, rho: n - lesser(n, rho),
    },
)
def segmented(n: Tensor, rho: Value, alpha: Value, beta: Value = 0.5) -> Tensor:
    """SegConv, Eq. (8): h = α‖x‖ inside ρ, and β(‖x‖ − ρ) + αρ outside."""
    return multiply_add(beta * n, lesser(n, rho), alpha - beta)


@magnitude(slopes={"n": lambda n: 1 / (1 + n)})
def log(n: Tensor) -> Tensor:
    """LogConv, Eq. (9): h = α · log(1 + ‖x‖)."""
    return torch.log1p(n)


@magnitude(
    slopes={
        "n": lambda n, alpha, beta: alpha + beta / (1 + n),
        "alpha": lambda n: n,
        "beta": lambda n: torch.log1p(n),
    }
)
def mixed(n: Tensor, alpha: Value, beta: Value = 1.0) -> Tensor:
    """MixConv, Eq. (10): h = α‖x‖ + β log(1 + ‖x‖)."""
    return alpha * n + beta * torch.log1p(n)


@magnitude(slopes={"n": lambda weight_norm: weight_norm, "weight_norm": lambda n: n})
def inner_product(n: Tensor, weight_norm: Value) -> Tensor:
    """The ordinary convolution, Eq. (2): h = ‖w‖ · ‖x‖."""
    return weight_norm * n


class Sum(Magnitude):
    """h = α · Σ cᵢ hᵢ: the terms share one ρ and one β, and each is taken at α = 1."""

    def __init__(self, terms: Sequence[tuple[float, Magnitude]]) -> None:
        self.terms = tuple(terms)
        self.name = write_sum((c, h.name) for c, h in self.terms)
        self.smooth = all(h.smooth for _, h in self.terms)
        self.is_module, self.degree = False, None
        self.options = ()
        taken = {name for _, h in self.terms for name in h.parameters}
        self.parameters = tuple(name for name in self.allowed if name in taken and name != "alpha")
        self.defaults = {name: value for _, h in reversed(self.terms) for name, value in h.defaults.items()}

    @property
    def takes_norm(self) -> bool:
        return any(h.takes_norm for _, h in self.terms)

    @property
    def has_slopes(self) -> bool:
        return all(h.has_slopes for _, h in self.terms)

    def __call__(self, argument: Tensor, values: Values) -> Tensor:
        at_one = {**values, "alpha": 1.0}
        (c, h), *rest = self.terms
        total = c * h(argument, at_one)
        for c, h in rest:
            total = total + c * h(argument, at_one)
        return total

    def slope(self, of: str, known: Values) -> Value:
        total: Value = 0.0
        for c, h in self.terms:
            if of in ("n", *h.parameters):
                own = {**known, "alpha": 1.0, "h": h(torch.as_tensor(known["n"]), {**known, "alpha": 1.0})}
                own["h_n"] = h.slope("n", own)
                total = total + c * (own["h_n"] if of == "n" else h.slope(of, own))
        return total
