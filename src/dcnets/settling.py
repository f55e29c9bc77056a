"""What an operator computes with: its spec and a layer's tensors, made ready for the path that takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn

from dcnets.operator import Operator
from dcnets.options import Raw, radius_of
from dcnets.patches import Patches, normalise
from dcnets.reference import Formula
from dcnets.registry import Bound, Named, Value


class Tensors(TypedDict, total=False):
    """What an operator computes with, where it is not a number of the spec: one value a filter, or one for all.

    `rho` is the radius itself, 1 where none is given. `mean_norm` is m where the radius is relative: None means the mean
    norm of this batch, a function is called with the norms. `h` and `g` are the modules of an operator that has modules.
    """

    rho: Tensor | float | Raw | None
    alpha: Tensor | float | None
    beta: Tensor | float | None
    k: Tensor | float | None
    p: Tensor | float | None
    mean_norm: Tensor | float | Callable[[Tensor], Tensor] | None
    h: nn.Module | None
    g: nn.Module | None


def formula_of(operator: Operator, tensors: Tensors) -> Formula:
    """What is computed from inner products and norms."""
    h, g = function_of(operator.h, tensors.get("h")), function_of(operator.g, tensors.get("g"))
    return Formula(h, g, operator.eps, operator.radius == "relative" and operator.has_radius)


def function_of(named: Named, module: nn.Module | None) -> Named | Bound:
    """The formula, or the module that a layer built for it."""
    if named.is_module and module is None:
        raise ValueError(f"{named.name} is a module; hand over the layer's as {named.symbol}=…")
    return named if module is None else Bound(named, module)


def settle(
    weight: Tensor, patches: Patches, dims: int, operator: Operator, tensors: Tensors
) -> tuple[Tensor, dict[str, Value]]:
    """Unit filters, and everything else that h, g and the weighting compute with, shaped to meet the grouped layout.

    Weightings (section 3.5): linear multiplies by ‖w‖; product, Eq. (15), has ‖w‖·‖x‖ in place of ‖x‖; separate,
    Eq. (16), multiplies by h₁(‖w‖), h₁ being h at α = 1.
    """
    unit, norms = normalise(weight, patches, operator.eps)
    weight_norm = norms.view(1, *norms.shape[:2], *(1,) * dims)
    values = values_of(operator, tensors, weight_norm.shape, weight_norm.dtype)
    scale, weighting = values.pop("scale", 1.0), operator.weighting
    if "weight_norm" in operator.h.parameters:
        values["weight_norm"] = weight_norm
    if weighting == "separate" and "alpha" in values:
        scale, values["alpha"] = values["alpha"], 1.0
    if weighting == "linear":
        scale = scale * weight_norm
    elif weighting == "product":
        values["stretch"] = weight_norm
    elif weighting == "separate":
        scale = scale * function_of(operator.h, tensors.get("h"))(weight_norm, values)
    if isinstance(scale, Tensor) or scale != 1:
        values["scale"] = scale
    return unit, values


def values_of(operator: Operator, tensors: Tensors, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Value]:
    """What h and g compute with beside norms and angles: one value a filter in a shape, or one.

    α is `scale` where h has none.
    """
    filters = math.prod(shape)

    def own(name: str, default: float | None) -> Value:
        value: Any = tensors.get(name)
        value = radius_of(value.r) if isinstance(value, Raw) else value
        if not isinstance(value, Tensor):
            return cast(float, default) if value is None else float(value)
        if value.numel() not in (1, filters):
            raise ValueError(f"{name} has {value.numel()} values for {filters} filters; give one a filter, or one")
        return value.to(dtype).reshape(shape if value.numel() == filters else (1,) * len(shape))

    takes = (*operator.h.parameters, *operator.g.parameters)
    values: dict[str, Value] = {}
    for name in ("alpha", "beta", "k", "p"):
        if name in takes:
            values[name] = own(name, getattr(operator, name))
    if "rho" in takes:
        values["rho"] = own("rho", 1.0)
    if "alpha" not in takes:
        alpha = own("alpha", operator.alpha)
        if isinstance(alpha, Tensor) or alpha != 1:
            values["scale"] = alpha
    return values


def is_convolution(operator: Operator, tensors: Tensors) -> bool:
    """Whether this is Eq. (1), which needs no norm at all."""
    given = tensors.get("alpha")
    alpha = operator.alpha if given is None else given
    named = (operator.h.name, operator.g.name) == ("inner_product", "cosine")
    return named and not isinstance(alpha, Tensor) and alpha == 1
