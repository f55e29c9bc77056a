"""The keywords of every decoupled layer, what each is unless given, and an operator in place of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypedDict, cast

import torch
from torch import Tensor

from dcnets.operator import Operator

RADIUS_FLOOR = 1e-4
"""What a radius is never below."""
LEARNABLE = ("radius", "alpha", "beta", "k", "p")


class Options(TypedDict, total=False):
    """The keywords of every layer, beside torch's.

    operator: an `Operator` or its text, in place of its parts, which are: magnitude, angular, weighting: names, see
    `dcnets.Operator`; alpha, beta, k, p, eps: its numbers, which are the starting values of what is learned; radius:
    "relative" (in mean patch norms) or "absolute". radius_init: ρ at the start; radius_per: "filter" or "layer"; learn:
    which of radius, alpha, beta, k, p are parameters; sync: whether processes share the mean norm of a batch.
    """

    operator: Operator | str | None
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
    """ρ = r² + 1e-4, r being the parameter; in float32 at least, as half precision holds no ρ above 65,504."""
    return (raw.float() if raw.dtype.itemsize < 4 else raw).square() + RADIUS_FLOOR


def raw_of(rho: Tensor | float, like: Tensor) -> Tensor:
    """r = √(ρ − 1e-4), the inverse of `radius_of`, on the device of `like` and in float32 at least."""
    wide = torch.promote_types(like.dtype, torch.float32)
    return (torch.as_tensor(rho, device=like.device, dtype=wide) - RADIUS_FLOOR).clamp(min=0).sqrt()


def absolute(v: Tensor) -> Tensor:
    """|v|, with slope 1 at 0, so that a value that starts at its lowest can leave it."""
    return torch.where(v < 0, -v, v)


def spelled_out(options: Options) -> Options:
    """The options with the parts of their `operator` in its place; none of them may be named twice.

    What an operator has by default is left to the layers, which start a learned k elsewhere and refuse a radius without use.
    """
    rest = cast(Options, {name: value for name, value in options.items() if name != "operator"})
    operator = options.get("operator")
    if operator is None:
        return rest
    spec = Operator.of(operator)
    own = {part.name: getattr(spec, part.name) for part in fields(Operator)}
    twice = next((name for name in rest if name in own), None)
    if twice is not None:
        raise TypeError(
            f"got operator='{spec}' and {twice} as well; name {twice} in the operator, or leave the operator out"
        )
    default = Operator(spec.magnitude, spec.angular)
    changed = {name: value for name, value in own.items() if value != getattr(default, name)}
    return cast(Options, {"magnitude": spec.magnitude, "angular": spec.angular, **changed, **rest})


DEFAULTS: dict[str, Any] = {
    "operator": None,
    **{field.name: field.default for field in fields(Operator)},
    "radius_init": 1.0, "radius_per": "filter", "learn": ("radius",), "sync": False,
}  # fmt: skip
"""What each option is unless given."""
