"""The keywords of every decoupled layer, and what each is unless given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypedDict

from torch import Tensor

from dcnets.operator import Operator

RADIUS_FLOOR = 1e-4
"""What a radius is never below."""
LEARNABLE = ("radius", "alpha", "beta", "k", "p")


class Options(TypedDict, total=False):
    """The keywords of every layer, beside torch's.

    magnitude, angular, weighting: names, see `dcnets.Operator`; alpha, beta, k, p, eps: its numbers, which are the starting
    values of what is learned. radius: "relative" (in mean patch norms) or "absolute"; radius_init: ρ at the start;
    radius_per: "filter" or "layer"; learn: which of radius, alpha, beta, k, p are parameters; sync: whether processes
    share the mean norm of a batch.
    """

    magnitude: str
    angular: str
    weighting: str
    alpha: float
    beta: float | None
    k: float | None
    p: float | None
    eps: float
    radius: str
    radius_init: float
    radius_per: str
    learn: Sequence[str]
    sync: bool


class Raw(NamedTuple):
    """The parameter r of a radius, for a path that takes it as it is."""

    r: Tensor


def radius_of(raw: Tensor) -> Tensor:
    """ρ = r² + 1e-4, r being the parameter."""
    return raw.square() + RADIUS_FLOOR


DEFAULTS: dict[str, Any] = {
    **{field.name: field.default for field in fields(Operator)},
    "radius_init": 1.0, "radius_per": "filter", "learn": ("radius",), "sync": False,
}  # fmt: skip
"""What each option is unless given."""
