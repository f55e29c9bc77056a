"""Margin heads: classifiers whose angular function is harder for the target class (SphereFace, CosFace, ArcFace).

Each margin is a function g(c, m) of c = cos θ and stands beside its published formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dcnets.losses import IGNORED, NormalisedClassifier, checked_targets, class_logits
from dcnets.naming import choose
from dcnets.options import DEFAULTS
from dcnets.registry import Value

Angle = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Margin:
    """A registered g(c, m), the values m it is meant for, and the m, h and scale that its paper has."""

    function: Angle
    m: float
    lowest: float
    highest: float
    whole: bool
    magnitude: str
    scale: float

    def check(self, name: str, m: float) -> float:
        """`m`, or an error where the formula is not meant for it."""
        kind = "whole number" if self.whole else "number"
        if isinstance(m, bool) or not isinstance(m, int | float) or (self.whole and m % 1 != 0):
            raise TypeError(f"m of {name} is a {kind}, got {m!r}; its paper has {self.m:g}")
        if not (math.isfinite(m) and self.lowest <= m <= self.highest):
            end = f" to {self.highest:g}" if math.isfinite(self.highest) else " or more"
            raise ValueError(f"m of {name} must be {self.lowest:g}{end}, got {m!r}; its paper has {self.m:g}")
        return m


MARGINS: dict[str, Margin] = {}


def margin(
    *, m: float, within: tuple[float, float], magnitude: str = "sphere", scale: float = 64.0, whole: bool = False
) -> Callable[[Angle], Angle]:
    """Register g(c, m) under its own name, with its defaults; `within` is the range of m, `whole` asks for integers."""

    def add(function: Angle) -> Angle:
        if function.__name__ in MARGINS:
            raise ValueError(f"margin {function.__name__!r} is registered already; choose another name")
        MARGINS[function.__name__] = Margin(function, m, *within, whole, magnitude, scale)
        return function

    return add


@margin(m=4, within=(1, math.inf), whole=True, magnitude="linear", scale=1.0)
def sphereface(c: Tensor, m: float) -> Tensor:
    """A-Softmax: ψ = (−1)^k cos(mθ) − 2k for θ in [kπ/m, (k + 1)π/m], where cos(mθ) is Chebyshev's T_m(cos θ)."""
    before, cos_m = torch.ones_like(c), c
    k = torch.zeros_like(c)
    for j in range(1, int(m)):
        before, cos_m = cos_m, 2 * c * cos_m - before
        k = k + (c < math.cos(j * math.pi / m)).to(c.dtype)
    return (1 - 2 * (k % 2)) * cos_m - 2 * k


@margin(m=0.35, within=(0, math.inf))
def cosface(c: Tensor, m: float) -> Tensor:
    """CosFace, the additive margin: g = cos θ − m."""
    return c - m


@margin(m=0.5, within=(0, math.pi / 2))
def arcface(c: Tensor, m: float) -> Tensor:
    """ArcFace: g = cos(θ + m) for θ < π − m, and cos θ − m sin m beyond."""
    return torch.where(c > math.cos(math.pi - m), turned(c, m), c - m * math.sin(m))


@margin(m=0.5, within=(0, math.pi / 2))
def arcface_easy(c: Tensor, m: float) -> Tensor:
    """ArcFace with the easy margin: g = cos(θ + m) for θ < π/2, and cos θ beyond."""
    return torch.where(c > 0, turned(c, m), c)


def turned(c: Tensor, m: float) -> Tensor:
    """cos(θ + m) = cos θ cos m − sin θ sin m, with sin² θ held above the number format's rounding unit u.

    The slope of sin θ so stays below 1/√u, which is 2,896 in float32; nearer to ±1 it is zero.
    """
    sine = ((1 - c) * (1 + c)).clamp(min=torch.finfo(c.dtype).eps).sqrt()
    return c * math.cos(m) - sine * math.sin(m)


def sphereface_annealing(
    step: int, start: float = 1000.0, decay: float = 0.12, power: float = 1.0, least: float = 5.0
) -> float:
    """λ = max(λ_min, λ₀ · (1 + γ · step)^−power), with SphereFace's published values."""
    return max(least, start * math.pow(1 + decay * step, -power))


class MarginHead(NormalisedClassifier):
    """Logits h(‖x‖)·cos θ, in which the target class has g(θ) in place of cos θ: a harder task to learn.

    `margin` is a name in `MARGINS`; `m`, `scale` and `magnitude` are its paper's unless given. With targets (…) for an
    input (…, features) the margin applies, with `annealing` λ as (λ cos θ + g)/(1 + λ). Without targets, which training does
    not allow, the logits are plain. A target of `ignore_index` gets no margin.
    """

    def __init__(
        self, in_features: int, num_classes: int, margin: str = "arcface", *, m: float | None = None,
        scale: float | None = None, learn_scale: bool = False, magnitude: str | None = None, eps: float = DEFAULTS["eps"],
        ignore_index: int = IGNORED, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        own = MARGINS[choose("margin", margin, MARGINS)]
        super().__init__(
            in_features, num_classes, scale=own.scale if scale is None else scale, learn_scale=learn_scale, device=device,
            dtype=dtype, magnitude=own.magnitude if magnitude is None else magnitude, eps=eps,
        )  # fmt: skip
        self.margin, self.m, self.ignore_index = margin, own.check(margin, own.m if m is None else m), ignore_index

    def forward(self, input: Tensor, targets: Tensor | None = None, annealing: Value = 0.0) -> Tensor:
        if targets is None:
            if self.training:
                raise ValueError("a MarginHead in training needs targets, got None; pass them, or call eval()")
            return super().forward(input)
        if not isinstance(annealing, Tensor) and not 0 <= annealing < math.inf:
            raise ValueError(f"annealing must be 0 or more and finite, got {annealing!r}")
        targets = checked_targets(targets, input.shape[:-1], self.out_features, self.ignore_index)
        targets = targets.reshape(-1, 1, 1)
        counts = targets != self.ignore_index
        index = torch.where(counts, targets, 0)

        def g(c: Tensor) -> Tensor:
            """Of c (rows, 1, classes): cos θ, but for the target (λ cos θ + g)/(1 + λ)."""
            of_target = c.gather(2, index)
            harder = (annealing * of_target + MARGINS[self.margin].function(of_target, self.m)) / (1 + annealing)
            return c.scatter(2, index, torch.where(counts, harder, of_target))

        return class_logits(input, self.weight, self.operator, self.alpha, cast(nn.Module, g))  # called like a module

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, margin={self.margin}, m={self.m:g}"
