"""A decoupled layer with the batch norm and ReLU behind it as two operators of torch."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dcnets import reference
from dcnets.angular import ANGULARS
from dcnets.kernels.gpu import launch
from dcnets.kernels.gpu.block_launch import Block
from dcnets.kernels.gpu.ops import folded, known, packed, patches_of, windows_of
from dcnets.magnitude import MAGNITUDES
from dcnets.patches import Patches
from dcnets.reference import Formula
from dcnets.registry import Value

NAMES = launch.NAMES
FIRST_VALUE = 5
"""The place of the first value among the arguments of `block`, after x, unit, γ, β and mean_norm."""


def respond(
    x: Tensor, unit: Tensor, gamma: Tensor, beta: Tensor, mean_norm: Tensor | None, patches: Patches, formula: Formula,
    values: dict[str, Value], bn_eps: float, relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, the mean norm that ρ was measured by, and the mean and (biased) variance of the response."""
    tensors, numbers, present, settings = packed(values, patches)
    h, g = cast(Any, formula.h).name, cast(Any, formula.g).name
    y, _, _, m, mean, variance = block(
        x, unit, gamma, beta, mean_norm, *tensors, numbers, present, h, g, formula.eps, formula.relative, bn_eps, relu,
        *settings, patches.groups,
    )  # fmt: skip
    return y, m, mean, variance


@torch.library.custom_op("dcnets::block", mutates_args=())
def block(
    x: Tensor, unit: Tensor, gamma: Tensor, bn_beta: Tensor, mean_norm: Tensor | None, rho: Tensor | None,
    alpha: Tensor | None, beta: Tensor | None, k: Tensor | None, p: Tensor | None, weight_norm: Tensor | None,
    stretch: Tensor | None, scale: Tensor | None, numbers: list[float], present: list[int], h: str, g: str, eps: float,
    relative: bool, bn_eps: float, relu: bool, stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, z, n, m, mean and variance."""
    values = known((rho, alpha, beta, k, p, weight_norm, stretch, scale), numbers, present)
    x = launch.dense(x)
    z = launch.dense(patches_of(unit, stride, padding, dilation, groups).products(x, unit))
    n, partials, parts = launch.norms(x, groups, windows_of(x, unit, stride, padding, dilation), eps)
    passes = Block(z, n, relative, h, g, values, groups, gamma, bn_beta, bn_eps, relu)
    y, m, mean, variance = passes.forward(mean_norm, partials, parts)
    return y, z, n, m.clone() if m is mean_norm else m, mean, variance.clone()


@block.register_fake
def _(
    x: Tensor, unit: Tensor, gamma: Tensor, bn_beta: Tensor, mean_norm: Tensor | None, rho: Tensor | None,
    alpha: Tensor | None, beta: Tensor | None, k: Tensor | None, p: Tensor | None, weight_norm: Tensor | None,
    stretch: Tensor | None, scale: Tensor | None, numbers: list[float], present: list[int], h: str, g: str, eps: float,
    relative: bool, bn_eps: float, relu: bool, stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    z = patches_of(unit, stride, padding, dilation, groups).products(x, unit)
    out = windows_of(x, unit, stride, padding, dilation).out_size
    n = x.new_empty((len(x), groups, *out), dtype=torch.float32)
    mean, variance = (x.new_empty(len(unit), dtype=torch.float32) for _ in range(2))
    return torch.empty_like(z), z, n, x.new_empty((), dtype=torch.float32), mean, variance


@torch.library.custom_op("dcnets::block_backward", mutates_args=())
def block_backward(
    dy: Tensor, x: Tensor, unit: Tensor, gamma: Tensor, bn_beta: Tensor, z: Tensor, n: Tensor, m: Tensor, mean: Tensor,
    variance: Tensor, rho: Tensor | None, alpha: Tensor | None, beta: Tensor | None, k: Tensor | None, p: Tensor | None,
    weight_norm: Tensor | None, stretch: Tensor | None, scale: Tensor | None, numbers: list[float], present: list[int],
    wanted: str, need_x: bool, need_unit: bool, own_mean: bool, h: str, g: str, eps: float, relative: bool, bn_eps: float,
    relu: bool, stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dx, dunit, dβ and dγ (2, filters), the gradients of the values named in `wanted`, and dm; empty where not needed."""
    values, names = known((rho, alpha, beta, k, p, weight_norm, stretch, scale), numbers, present), wanted.split()
    x = launch.dense(x)
    passes = Block(z, n, relative, h, g, values, groups, gamma, bn_beta, bn_eps, relu)
    dz, dn, sums, totals = passes.backward(dy, m, mean, variance, names)
    dx, dunit = patches_of(unit, stride, padding, dilation, groups).products_backward(dz, x, unit, need_x, need_unit)
    dmean = dy.new_zeros((), dtype=torch.float32)
    if relative and "rho" in names:
        per_rho = totals[names.index("rho")]
        dmean = (per_rho * values["rho"]).sum()
        per_rho *= m
    if dx is not None:
        dx = launch.dense(dx)
        view = windows_of(x, unit, stride, padding, dilation)
        launch.add_norm_gradient(dx, x, n, dn, dmean if relative and own_mean else None, groups, view)
    return dy.new_empty(0) if dx is None else dx, dy.new_empty(0) if dunit is None else dunit, sums, totals, dmean


@block_backward.register_fake
def _(
    dy: Tensor, x: Tensor, unit: Tensor, gamma: Tensor, bn_beta: Tensor, z: Tensor, n: Tensor, m: Tensor, mean: Tensor,
    variance: Tensor, rho: Tensor | None, alpha: Tensor | None, beta: Tensor | None, k: Tensor | None, p: Tensor | None,
    weight_norm: Tensor | None, stretch: Tensor | None, scale: Tensor | None, numbers: list[float], present: list[int],
    wanted: str, need_x: bool, need_unit: bool, own_mean: bool, h: str, g: str, eps: float, relative: bool, bn_eps: float,
    relu: bool, stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    patches = patches_of(unit, stride, padding, dilation, groups)
    dx, dunit = patches.products_backward(torch.empty_like(z), x, unit, need_x, need_unit)
    sums, totals = (dy.new_empty((count, z.shape[1]), dtype=torch.float32) for count in (2, max(1, len(wanted.split()))))
    scalar = dy.new_empty((), dtype=torch.float32)
    return dy.new_empty(0) if dx is None else dx, dy.new_empty(0) if dunit is None else dunit, sums, totals, scalar


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what the backward pass computes with."""
    x, unit, gamma, bn_beta, mean_norm, *rest = inputs
    tensors, ctx.settings = rest[: len(NAMES)], rest[len(NAMES) :]
    ctx.own_mean = mean_norm is None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, unit, gamma, bn_beta, mean_norm, *output[1:], *tensors)


def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    """The gradients of `block`'s arguments; with a graph of their own they go through the definition."""
    nothing = (None,) * len(ctx.settings)
    if dy is None:
        return (*(None,) * (FIRST_VALUE + len(NAMES)), *nothing)
    x, unit, gamma, bn_beta, mean_norm, z, n, m, mean, variance, *tensors = ctx.saved_tensors
    numbers, present, h, g, eps, relative, bn_eps, relu, *windows = ctx.settings
    if torch.is_grad_enabled():
        return (*through_definition(ctx, (x, unit, gamma, bn_beta, mean_norm), tensors, dy), *nothing)
    need_x, need_unit, need_gamma, need_beta, need_mean, *need_values = ctx.needs_input_grad[: FIRST_VALUE + len(NAMES)]
    wanted = [name for name, need in zip(NAMES, need_values, strict=True) if need]
    if relative and "rho" not in wanted and (need_mean or (need_x and ctx.own_mean)):
        wanted.append("rho")
    dx, dunit, sums, totals, dmean = block_backward(
        dy, x, unit, gamma, bn_beta, z, n, m, mean, variance, *tensors, numbers, present, " ".join(wanted), need_x,
        need_unit, ctx.own_mean, h, g, eps, relative, bn_eps, relu, *windows,
    )  # fmt: skip
    dvalues = [
        folded(totals[wanted.index(name)], tensor) if need and tensor is not None else None
        for name, tensor, need in zip(NAMES, tensors, need_values, strict=True)
    ]
    of_norm = sums[1].to(gamma.dtype) if need_gamma else None, sums[0].to(bn_beta.dtype) if need_beta else None
    given = dmean if need_mean else None
    return (dx if need_x else None, dunit if need_unit else None, *of_norm, given, *dvalues, *nothing)


def through_definition(
    ctx: Any, first: tuple[Tensor | None, ...], tensors: list[Tensor | None], dy: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again: response, batch norm and ReLU in plain torch."""
    numbers, present, h, g, eps, relative, bn_eps, relu, stride, padding, dilation, groups = ctx.settings
    needs = ctx.needs_input_grad[: FIRST_VALUE + len(NAMES)]
    own = [t.view_as(t) if t is not None and need else t for t, need in zip((*first, *tensors), needs, strict=True)]
    x, unit, gamma, bn_beta, mean_norm = (cast(Tensor, t) for t in own[:FIRST_VALUE])
    shape = (1, groups, -1, *(1,) * (x.dim() - 2))
    values: dict[str, Value] = {
        name: value.reshape(shape) if isinstance(value, Tensor) else value
        for name, value in known(tuple(own[FIRST_VALUE:]), numbers, present).items()
    }
    formula = Formula(MAGNITUDES[h], ANGULARS[g], eps, relative)
    patches = patches_of(unit, stride, padding, dilation, groups)
    f, _ = reference.decouple(x, unit, None, mean_norm, patches, formula, values)
    y = F.batch_norm(f, None, None, gamma, bn_beta, training=True, eps=bn_eps)
    wanted = [t for t, need in zip(own, needs, strict=True) if need and t is not None]
    found = iter(torch.autograd.grad(y.relu() if relu else y, wanted, dy, create_graph=True, allow_unused=True))
    return tuple(next(found) if need and t is not None else None for t, need in zip(own, needs, strict=True))


torch.library.register_autograd("dcnets::block", backward, setup_context=remember)
