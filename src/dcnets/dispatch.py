"""From an operator and its tensors to the path that computes it: the only switch between paths."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from dcnets import reference
from dcnets.geometry import Geometry
from dcnets.kernels import eager
from dcnets.kernels.measured import triton_is_faster
from dcnets.kernels.response import NOTHING, Behind, Response
from dcnets.naming import choose
from dcnets.operator import Operator
from dcnets.options import Raw
from dcnets.patches import Patches, patch_norm
from dcnets.reference import Formula
from dcnets.registry import Value
from dcnets.settling import Tensors, formula_of, is_convolution, settle, values_of
from dcnets.surroundings import differentiated_otherwise, matched, no_autocast, pure_torch_needed, traced, written_down

P = ParamSpec("P")
R = TypeVar("R")

BACKENDS = ("auto", "reference", "fused")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter stands in for a GPU."""

_backend = "auto"


class backend:  # noqa: N801 (a verb, like torch.no_grad)
    """Choose the path: "auto" (the fastest measured), "reference" (the plain formula) or "fused" (or an error).

    "fused" is Triton's on a GPU where there are programs for the layer, and the hand-written one elsewhere.

    `backend("reference")` holds until the next call; as a context manager or decorator it is undone at the end.
    """

    def __init__(self, name: str) -> None:
        global _backend
        self.before, self.name = _backend, choose("backend", name, BACKENDS)
        _backend = name

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        self.__exit__()  # as a decorator it is for the calls, not for now

        @functools.wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> R:
            with backend(self.name):
                return function(*args, **kwargs)

        return within

    def __enter__(self) -> None:
        global _backend
        _backend = self.name

    def __exit__(self, *_: object) -> None:
        global _backend
        _backend = self.before


def respond(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, operator: Operator, tensors: Tensors
) -> tuple[Tensor, Tensor | None]:
    """f(w, x) for every filter and patch, and the mean norm that a relative radius was measured by (None without one)."""
    x = matched(x, weight)
    with no_autocast(x):
        x, patches, finish = geometry.take(x, weight)
        if is_convolution(operator, tensors):
            return finish(patches.products(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))), None
        formula = formula_of(operator, tensors)
        mean_norm = given_mean(x, patches, formula, tensors)
        if on_triton(x, weight, patches, formula):
            found = in_triton(x, weight, bias, mean_norm, patches, formula, operator, tensors)
            y, m = found.y, found.m
        else:
            unit, values = settle(weight, patches, geometry.dims, operator, tensors)
            y, n = in_torch(x, unit.to(x.dtype), bias, mean_norm, patches, formula, values)
            m = reference.mean(n) if mean_norm is None else mean_norm
        return finish(y), m if formula.relative else None


def respond_with(
    x: Tensor, weight: Tensor, geometry: Geometry, operator: Operator, tensors: Tensors, behind: Behind,
    bias: Tensor | None = None,
) -> Response | None:  # fmt: skip
    """The same with what is behind the layer, in Triton; None where there are no programs for it."""
    own = matched(x, weight)
    with no_autocast(x):
        taken, patches, _ = geometry.take(own, weight)
        if is_convolution(operator, tensors) or x.dim() != geometry.dims + 2:
            return None
        formula = formula_of(operator, tensors)
        if not on_triton(taken, weight, patches, formula, block=True):
            return None
        mean_norm, behind = given_mean(taken, patches, formula, tensors), behind.over(taken, x, patches.groups)
        return in_triton(taken, weight, bias, mean_norm, patches, formula, operator, tensors, behind)


def given_mean(x: Tensor, patches: Patches, formula: Formula, tensors: Tensors) -> Tensor | None:
    """The mean norm that a relative radius is measured by, or None where it is that of this batch."""
    mean_norm: Any = tensors.get("mean_norm") if formula.relative else None
    if callable(mean_norm):
        mean_norm = mean_norm(patch_norm(x, patches, formula.eps))
    if mean_norm is None:
        return None
    mean_norm = torch.as_tensor(mean_norm, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    return scalar(mean_norm) if mean_norm.dim() else mean_norm


def scalar(mean_norm: Tensor) -> Tensor:
    """The one number in a tensor with axes."""
    if mean_norm.numel() != 1:
        raise ValueError(
            f"mean_norm has shape {tuple(mean_norm.shape)}, expected one number for the whole batch; "
            "give its mean, and what differs between filters as rho"
        )
    return mean_norm.reshape(())


def respond_settled(
    x: Tensor, unit: Tensor, bias: Tensor | None, geometry: Geometry, formula: Formula, values: dict[str, Value]
) -> Tensor:
    """f for unit filters and values that are ready, an absolute ρ among them, as a frozen layer has them."""
    x = matched(x, unit)
    with no_autocast(x):
        x, patches, finish = geometry.take(x, unit)
        unit = unit.to(x.dtype)
        if on_triton(x, unit, patches, formula):
            return finish(settled_in_triton(x, unit, bias, patches, formula, values, NOTHING).y)
        return finish(in_torch(x, unit, bias, None, patches, formula, values)[0])


def respond_settled_with(
    x: Tensor, unit: Tensor, bias: Tensor | None, geometry: Geometry, formula: Formula, values: dict[str, Value],
    behind: Behind,
) -> Response | None:  # fmt: skip
    """The same with what is behind the layer, in Triton; None where there are no programs for it."""
    own = matched(x, unit)
    with no_autocast(x):
        taken, patches, _ = geometry.take(own, unit)
        if x.dim() != geometry.dims + 2 or not on_triton(taken, unit, patches, formula, block=True):
            return None
        behind = behind.over(taken, x, patches.groups)
        return settled_in_triton(taken, unit, bias, patches, formula, values, behind)


def settled_in_triton(
    x: Tensor, unit: Tensor, bias: Tensor | None, patches: Patches, formula: Formula, values: dict[str, Value],
    behind: Behind,
) -> Response:  # fmt: skip
    """By the Triton programs, with unit filters and values that are ready."""
    from dcnets.kernels.gpu import ops

    return ops.respond(x, unit, bias, None, patches, formula, values, raw=False, unit=True, behind=behind)


def in_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean_norm: Tensor | None, patches: Patches, formula: Formula,
    operator: Operator, tensors: Tensors, behind: Behind = NOTHING,
) -> Response:  # fmt: skip
    """By the Triton programs, which make unit filters and ρ themselves where no other value needs ‖w‖."""
    from dcnets.kernels.gpu import ops

    rho = tensors.get("rho")
    if operator.weighted:
        unit, values = settle(weight, patches, 0, operator, tensors)
        return ops.respond(x, unit, bias, mean_norm, patches, formula, values, raw=False, unit=True, behind=behind)
    raw = isinstance(rho, Raw)
    given: Tensors = {**tensors, "rho": rho.r} if isinstance(rho, Raw) else tensors
    shape, dtype = (patches.filters(weight),), torch.promote_types(weight.dtype, torch.float32)
    values = values_of(operator, given, shape, dtype)
    return ops.respond(x, weight, bias, mean_norm, patches, formula, values, raw=raw, unit=False, behind=behind)


def in_torch(
    x: Tensor,
    unit: Tensor,
    bias: Tensor | None,
    mean_norm: Tensor | None,
    patches: Patches,
    formula: Formula,
    values: dict[str, Value],
) -> tuple[Tensor, Tensor]:
    """The output and the patch norms, without Triton."""
    if pure_torch_needed() or traced() or not hand_written(formula):
        return reference.decouple(x, unit, bias, mean_norm, patches, formula, values)
    if torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in (x, unit, bias, mean_norm, *values.values())
    ):
        y, _, n = eager.Decouple.apply(  # type: ignore[no-untyped-call]
            x, unit, bias, mean_norm, patches, formula, tuple(values), *values.values()
        )
    else:
        y, _, n = eager.forward(x, unit, bias, mean_norm, patches, formula, values, keep_products=False)
    return y, n


def on_triton(x: Tensor, weight: Tensor, patches: Patches, formula: Formula, block: bool = False) -> bool:
    """Whether the Triton programs are to be taken: on a GPU, asked for or measured to be faster, and where there are any."""
    if not (x.is_cuda or INTERPRETED) or _backend == "reference":
        return False
    if _backend == "auto" and not (x.is_cuda and triton_is_faster(x.get_device(), block, patches.groups)):
        return False
    # the flag itself: torch 2.11's compiler takes the function `is_exporting` to be true
    if torch.compiler._is_exporting_flag or differentiated_otherwise() or written_down(x):
        return False
    from dcnets.kernels.gpu import ops

    return ops.can(x, weight, patches, formula)


def hand_written(formula: Formula) -> bool:
    """Whether the hand-written path is to be taken."""
    possible = formula.h.has_slopes and formula.g.has_slopes
    if _backend == "fused" and not possible:
        missing = formula.g if formula.h.has_slopes else formula.h
        raise ValueError(f"{missing} has no slopes written out, so there is no fused path; use backend('auto')")
    return possible and _backend != "reference"
