"""What the Triton operator computes, both ways: passes and convolutions in their order, and the shapes of each."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dcnets.kernels.gpu import edges, launch, layout
from dcnets.kernels.gpu.call import Call


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """y, its sums, its token, and what is kept beside them: ŵ, z, n, m, and mean and variances of the response.

    Empty where there is none: ŵ where the weight is one, m where it was given, and the statistics where they were.
    """
    call = Call(*arguments)
    x, weight = layout.dense(call.x), call.weight
    empty = x.new_empty(0)
    squares = edges.square_sums(x, call.groups) if call.sums is None else call.sums
    filters = None if call.unit else layout.whole_filters(weight)
    n, partials, unit = edges.prepare(squares, call.view, call.eps, filters, x.dtype)
    if call.unit:
        unit = weight.to(x.dtype)
    z = layout.dense(call.patches.products(x, unit))
    layer, mean = call.layer(z, n), call.mean_norm
    m = torch.empty((), dtype=torch.float32, device=x.device) if mean is None else mean
    own = mean
    norm, moments = None, empty
    if call.gamma is not None:
        if call.centre is None:
            moments, own = layer.statistics(mean, m, partials), m
        norm = norm_of(call, moments)
    residual = None if call.residual is None else layout.dense(call.residual)
    y, sums, token = layer.respond(own, m, partials, call.bias, norm, residual, call.relu, call.wants_sums, call.wants_token)
    return y, sums, token, empty.clone() if call.unit else unit, z, n, m if mean is None else empty.clone(), moments


def norm_of(call: Call, moments: Tensor) -> launch.Norm:
    """Batch norm with the statistics that it uses."""
    assert call.gamma is not None
    if call.centre is None or call.variance is None:
        return launch.Norm(moments[0], moments[1], call.gamma, call.bn_eps)
    return launch.Norm(call.centre, call.variance, call.gamma, call.bn_eps)


def like_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Tensors without memory in the shapes that `forward` gives."""
    call = Call(*arguments)
    x, weight = layout.dense(call.x), call.weight
    empty = x.new_empty(0)
    unit = weight.to(x.dtype) if call.unit else torch.empty_like(layout.whole_filters(weight), dtype=x.dtype)
    z = layout.dense(call.patches.products(x, unit))
    out = call.view.out_size
    n = x.new_empty((x.shape[0], call.groups, *out), dtype=torch.float32)
    rows = out[0] * out[1] * out[2]
    sums = x.new_empty((x.shape[0], 1, rows), dtype=torch.float32) if call.wants_sums else empty
    m = x.new_empty((), dtype=torch.float32) if call.mean_norm is None else empty.clone()
    own = call.gamma is not None and call.centre is None
    moments = x.new_empty((3, z.shape[1]), dtype=torch.float32) if own else empty.clone()
    token = z.new_empty(1).expand(z.shape) if call.wants_token else empty.clone()
    return torch.empty_like(z), sums, token, empty.clone() if call.unit else unit, z, n, m, moments


class Needs(NamedTuple):
    """What the backward pass is asked for."""

    wanted: str
    """The values, and `bias` where there is no batch norm, with spaces between them."""
    x: bool
    weight: bool
    norm: bool
    residual: bool


class Gradients(NamedTuple):
    """What the backward pass gives; empty where it was not asked for."""

    x: Tensor
    sums: Tensor
    weight: Tensor
    norm: Tensor
    """Of batch norm's bias and weight (2, filters)."""
    residual: Tensor
    values: Tensor
    """Of what was wanted (wanted, filters), but that of ρ is that of ρ·m."""
    radius: Tensor
    mean: Tensor


def backward(
    dy: Tensor, dsums: Tensor | None, dtoken: Tensor | None, y: Tensor | None, unit: Tensor, z: Tensor, n: Tensor, m: Tensor,
    moments: Tensor, wanted: str, need_x: bool, need_weight: bool, need_norm: bool, need_residual: bool, *arguments: Any,
) -> Gradients:  # fmt: skip
    """The gradients of `forward`; y is given where `needs_output` says so."""
    call, names = Call(*arguments), wanted.split()
    dtoken = None if dtoken is None else layout.dense(dtoken)
    x, dy, layer = layout.dense(call.x), layout.dense(dy), call.layer(z, n)
    empty = functools.partial(dy.new_empty, 0, dtype=torch.float32)
    sums, masked, norm, relu = None, None, None, call.relu
    if call.gamma is not None:
        assert call.bias is not None
        norm = norm_of(call, moments)
        if call.centre is None or need_norm or y is not None:
            sums, masked = layer.gradient_sums(dy, dsums, y, m, call.bias, norm, relu, dtoken)
        if masked is not None:
            dy, dsums, relu = masked, None, False
    dnorm = sums if sums is not None and need_norm else None
    if norm is not None and call.centre is not None:
        sums = torch.zeros(2, z.shape[1], dtype=torch.float32, device=z.device)
    dz, dn, totals = layer.respond_backward(dy, dsums, m, call.bias, norm, sums, relu, names)
    dx, dunit = call.patches.products_backward(dz, x, unit, need_x, need_weight)
    of_radius = totals[names.index("rho")] if "rho" in names else None
    own, dweight, dradius, dmean = layer.finish(
        dn, of_radius, m, call.view, dunit, None if call.unit else layout.whole_filters(call.weight), call.eps,
        need_sums=need_x, through_mean=call.relative and call.mean_norm is None,
    )  # fmt: skip
    dunit = dunit if call.unit else dweight
    if dx is not None and call.sums is None and own is not None:
        dx = layout.dense(dx)
        edges.add_norm_gradient(dx, x, own, call.groups)
        own = None
    found = (dx, own, dunit, dnorm, masked if need_residual else None, totals, dradius, dmean)
    return Gradients(*(empty() if t is None else t for t in found))


def all_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """`backward` as an operator has it."""
    return tuple(backward(*arguments))


def like_backward(
    dy: Tensor, dsums: Tensor | None, dtoken: Tensor | None, y: Tensor | None, unit: Tensor, z: Tensor, n: Tensor, m: Tensor,
    moments: Tensor, wanted: str, need_x: bool, need_weight: bool, need_norm: bool, need_residual: bool, *arguments: Any,
) -> Gradients:  # fmt: skip
    """Tensors without memory in the shapes that `backward` gives."""
    call, names = Call(*arguments), wanted.split()
    x = layout.dense(call.x)
    empty = functools.partial(dy.new_empty, dtype=torch.float32)
    dx, dunit = call.patches.products_backward(torch.empty_like(z), x, unit, need_x, need_weight)
    if dunit is not None and not call.unit:
        dunit = torch.empty_like(layout.whole_filters(call.weight))
    own = None if dx is None or call.sums is None else torch.empty_like(call.sums)
    dradius, dmean = (empty(z.shape[1]), empty(())) if "rho" in names else (None, None)
    found = (
        None if dx is None else layout.dense(dx), own, dunit, empty((2, z.shape[1])) if need_norm else None,
        torch.empty_like(z) if need_residual else None, empty((max(1, len(names)), z.shape[1])), dradius,
        dmean,
    )  # fmt: skip
    return Gradients(*(empty(0) if t is None else t for t in found))
