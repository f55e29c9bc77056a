"""Every angular function g(θ), beside its equation and its slopes.

Each is written in c = cos θ, which is what a convolution yields: θ itself costs an arc sine. All are odd about θ = π/2
except `relu_cosine`, and all stay within [−1, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dcnets.registry import Named, Registrar, Value, multiply_add, one_minus_

POWER_FLOOR = 1e-6
"""|cos θ| below which `power_cosine` is a straight line, so that its slopes are finite for every p ≥ 1."""
STEEP_K = 0.25
"""Fixed k below which the sigmoid angle comes so near to ±1 that its slope is lost in 1 − t²."""
QUICK_K = 1.0
"""Fixed k up to which the sigmoid angle is computed by σ, on AMD's CPUs in a third of tanh's time; above it loses digits."""


class Angular(Named):
    """A registered g."""

    symbol, argument, allowed = "g", "c", ("k", "p")


ANGULARS: dict[str, Angular] = {}
angular = Registrar(ANGULARS, Angular)
"""Register g(c, …), which may take k and p; a module gets c as (batch, groups, filters in a group, *positions)."""


def arc_sine(c: Tensor) -> Tensor:
    """asin(c) = π/2 − θ, with |c| held below 1 by the number format's rounding unit u.

    The slope 1/√(1 − c²) so stays below 1/√(2u), which is 2,048 in float32 (in which half precision is computed too) and
    4.7e7 in float64; nearer to ±1, where rounding hides the angle, it is zero.
    """
    end = 1 - torch.finfo(c.dtype).eps
    return torch.asin(c.clamp(-end, end))


def arc_slope(c: Tensor) -> Tensor:
    """∂arc_sine/∂c = 1/√(1 − c²), zero within a rounding unit of ±1."""
    rest = one_minus_(c * c)
    return torch.threshold_(rest, 1.5 * torch.finfo(c.dtype).eps, math.inf).rsqrt_()


def half_turn(k: Value) -> Value:
    """tanh(π / 4k): what the sigmoid angle reaches at θ = 0."""
    return torch.tanh(math.pi / 4 / k) if isinstance(k, Tensor) else math.tanh(math.pi / 4 / k)


@angular(slopes={"c": lambda c: (2 / math.pi) * arc_slope(c)})
def linear(c: Tensor) -> Tensor:
    """Linear, Eq. (11): g = 1 − 2θ/π = (2/π) · asin(cos θ)."""
    return arc_sine(c).mul_(2 / math.pi)


@angular(degree=1, slopes={"c": lambda: 1.0})
def cosine(c: Tensor) -> Tensor:
    """Cosine, Eq. (12): g = cos θ."""
    return c


def _sigmoid_c(g: Tensor, c: Tensor, k: Value) -> Tensor:
    """∂g/∂c = (1 − t²) / 2kT · ∂asin/∂c with t = gT, T = tanh(π/4k); near ±1, 1 − t² = 4σ(1 − σ) with σ(−|asin c|/k)."""
    top = half_turn(k)
    if isinstance(k, Tensor) or k < STEEP_K:
        s = torch.sigmoid(arc_sine(c).abs_().mul_(-1 / k))
        rest = torch.addcmul(s, s, s, value=-1).mul_(4)
    else:
        rest = one_minus_((g * top).square_())
    return rest.mul_(0.5 / (k * top)).mul_(arc_slope(c))


def _sigmoid_k(g: Tensor, c: Tensor, k: Value) -> Tensor:
    """∂g/∂k, from g = t/T with t = tanh(asin(c)/2k) and T = tanh(π/4k)."""
    top = half_turn(k)
    along = (1 - (g * top).square_()) * arc_sine(c)
    return ((math.pi / 2) * (1 - top * top) * g - along) / (2 * k * k * top)


@angular(slopes={"c": _sigmoid_c, "k": _sigmoid_k})
def sigmoid(c: Tensor, k: Value = 0.3) -> Tensor:
    """Sigmoid, Eq. (13): g = tanh(asin(cos θ) / 2k) / tanh(π / 4k), up to QUICK_K with tanh(a/2) = 2σ(a) − 1."""
    top = half_turn(k)
    if isinstance(k, Tensor) or k > QUICK_K:
        return torch.tanh(arc_sine(c) * (0.5 / k)) * (1 / top)
    return multiply_add(c.new_full((), -1 / float(top)), torch.sigmoid(arc_sine(c) * (1 / k)), 2 / top)


@angular(degree=2, slopes={"c": lambda c: c.abs() * 2})
def square_cosine(c: Tensor) -> Tensor:
    """Square cosine, Eq. (14): g = sign(cos θ) · cos² θ."""
    return c * c.abs()


def _power(c: Tensor, p: Value) -> Tensor:
    """|c|^(p−1), held constant below POWER_FLOOR."""
    return c.abs().clamp(min=POWER_FLOOR) ** (p - 1)


def _power_c(c: Tensor, p: Value) -> Tensor:
    """∂g/∂c = p |c|^(p−1), and below the floor the slope of the straight line."""
    bent = (c.abs() >= POWER_FLOOR).to(c.dtype)
    return (1 + bent * (p - 1)) * _power(c, p)


def _power_p(g: Tensor, c: Tensor) -> Tensor:
    """∂g/∂p = g · log|c|."""
    return g * c.abs().clamp(min=POWER_FLOOR).log()


@angular(slopes={"c": _power_c, "p": _power_p})
def power_cosine(c: Tensor, p: Value = 2.0) -> Tensor:
    """Power cosine: g = sign(cos θ) · |cos θ|^p; B-cos and sharpened cosine similarity."""
    return c * _power(c, p)


@angular(degree=1, smooth=False, slopes={"c": lambda g: g.sign()})
def relu_cosine(c: Tensor) -> Tensor:
    """Rectified cosine, section 5: g = max(0, cos θ)."""
    return torch.relu(c)
