"""The hand-written first-order path: one convolution, one sum of squares, one box sum, one pass in cache-sized blocks.

The backward pass keeps x, ŵ, z and the one-channel norm, and goes through the definition when it is itself to be
differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from dcnets import reference
from dcnets.patches import Patches, grouped, sums_of_squares
from dcnets.reference import Formula
from dcnets.registry import Named, Value

BLOCK = 65_536
"""Elements that one thread works on at a time: 256 KiB of float32, so that a block's temporaries stay in its cache."""

Index = tuple[slice, ...]


def blocks(shape: torch.Size, device: torch.device) -> Iterator[Index]:
    """Split a grouped layout along the batch, and one large sample along its first position, into cache-sized pieces."""
    batch, size = shape[0], shape[1:].numel()
    budget = BLOCK * torch.get_num_threads() if device.type == "cpu" else max(shape.numel(), 1)
    samples = max(1, budget // max(size, 1))
    rows = shape[3] if len(shape) > 3 else 1
    step = max(1, rows * budget // max(size, 1)) if samples == 1 else rows
    for first in range(0, batch, samples):
        for row in range(0, rows, max(step, 1)):
            rest = (slice(row, row + step),) if len(shape) > 3 else ()
            yield (slice(first, first + samples), slice(None), slice(None), *rest)


class Totals:
    """Gradients of the values, added up block by block in a fixed order."""

    def __init__(self, values: dict[str, Value], wanted: set[str]) -> None:
        self.values, self.wanted = values, wanted
        self.sums: dict[str, Tensor] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """Fold a block's gradient to the shape of the value."""
        value = self.values[name]
        part = gradient.sum_to_size(value.shape) if isinstance(value, Tensor) else gradient.sum()
        self.sums[name] = self.sums[name] + part if name in self.sums else part


def square_sums(x: Tensor, groups: int) -> Tensor:
    """`sums_of_squares` in blocks, so that the squares never reach memory."""
    s = x.new_empty((x.shape[0], groups, *x.shape[2:]), dtype=torch.promote_types(x.dtype, torch.float32))
    for index in blocks(grouped(x, groups).shape, x.device):
        samples, positions = index[0], index[3:]
        s[(samples, slice(None), *positions)] = sums_of_squares(x[(samples, slice(None), *positions)], groups)
    return s


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean_norm: Tensor | None,
    patches: Patches,
    formula: Formula,
    values: dict[str, Value],
    keep_products: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, z and n; without `keep_products` y is written over z."""
    z = patches.products(x, weight)
    n = (patches.sums(square_sums(x, patches.groups)) + formula.eps).sqrt_().unsqueeze(2)
    values = with_radius(values, formula, n, mean_norm)
    y = torch.empty_like(z) if keep_products else z
    inverse, z_all, y_all = n.reciprocal(), grouped(z, patches.groups), grouped(y, patches.groups)
    stretch, scale = values.get("stretch"), values.get("scale")
    shift = None if bias is None else bias.view(patches.groups, -1, *(1,) * (z.dim() - 2))
    for index in blocks(z_all.shape, z.device):
        u = n[index] if stretch is None else n[index] * stretch
        h = formula.h(u, values)
        g = formula.g(z_all[index] * inverse[index], values)
        if scale is not None:
            h = h * scale
        if shift is None and y.dtype == n.dtype:
            torch.mul(h, g, out=y_all[index])
        else:
            y_all[index] = h * g if shift is None else h * g + shift
    return y, z, n


def with_radius(values: dict[str, Value], formula: Formula, n: Tensor, mean_norm: Tensor | None) -> dict[str, Value]:
    """The values with ρ·m in place of ρ where the radius is relative."""
    if not formula.relative:
        return values
    return {**values, "rho": values["rho"] * (reference.mean(n) if mean_norm is None else mean_norm)}


class Decouple(torch.autograd.Function):
    """`reference.decouple` with its first derivative written out. Returns y, z and n; only y has a gradient."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mean_norm: Tensor | None,
        patches: Patches,
        formula: Formula,
        names: tuple[str, ...],
        *values: Value,
    ) -> tuple[Tensor, Tensor, Tensor]:
        known = dict(zip(names, values, strict=True))
        return forward(x, weight, bias, mean_norm, patches, formula, known, keep_products=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, mean_norm, ctx.patches, ctx.formula, ctx.names, *values = inputs
        _, z, n = output
        ctx.mark_non_differentiable(z, n)
        ctx.set_materialize_grads(False)
        ctx.numbers = [None if isinstance(value, Tensor) else value for value in values]
        tensors = [value if isinstance(value, Tensor) else None for value in values]
        ctx.save_for_backward(x, weight, bias, mean_norm, z, n, *tensors)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * (7 + len(ctx.names))
        x, weight, bias, mean_norm, z, n, *tensors = ctx.saved_tensors
        values = [number if tensor is None else tensor for number, tensor in zip(ctx.numbers, tensors, strict=True)]
        inputs = (x, weight, bias, mean_norm, ctx.patches, ctx.formula, ctx.names, *values)
        if torch.is_grad_enabled():
            return through_definition(inputs, ctx.needs_input_grad, dy)
        return first_order(inputs, ctx.needs_input_grad, z, n, dy)


def through_definition(inputs: tuple[Any, ...], needed: tuple[bool, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients with their own graph: the definition is evaluated anew and left to autograd."""
    aliases = [t.view_as(t) if need else t for t, need in zip(inputs, needed, strict=True)]
    x, weight, bias, mean_norm, patches, formula, names, *values = aliases
    y, _ = reference.decouple(x, weight, bias, mean_norm, patches, formula, dict(zip(names, values, strict=True)))
    wanted = [t for t, need in zip(aliases, needed, strict=True) if need]
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in needed)


def first_order(
    inputs: tuple[Any, ...], needed: tuple[bool, ...], z: Tensor, n: Tensor, dy: Tensor
) -> tuple[Tensor | None, ...]:
    """One pass over dy that yields dz, dn and the values' gradients; then the convolution's own backward."""
    x, weight, bias, mean_norm, patches, formula, names, *own_values = inputs
    need_x, need_weight, need_bias, need_mean, _, _, _, *need_values = needed
    own: dict[str, Value] = dict(zip(names, own_values, strict=True))
    wanted = {name for name, need in zip(names, need_values, strict=True) if need}
    through_mean = formula.relative and (need_mean or (need_x and mean_norm is None))
    values = with_radius(own, formula, n, mean_norm)
    totals = Totals(values, wanted | {"rho"} if through_mean else wanted)

    dz, dn = torch.empty_like(z), torch.zeros_like(n)
    inverse = n.reciprocal()
    z_all, dz_all, dy_all = (grouped(t, patches.groups) for t in (z, dz, dy))
    for index in blocks(z_all.shape, z.device):
        block_backward(
            formula, values, totals, n[index], inverse[index], z_all[index], dy_all[index], dz_all[index],
            dn[index] if need_x else None,
        )  # fmt: skip
    gradients: dict[str, Tensor | None] = {name: totals.sums.get(name) for name in names}
    dmean = None
    if formula.relative and "rho" in totals.sums:
        m = reference.mean(n) if mean_norm is None else mean_norm
        per_rho, rho = totals.sums["rho"], own["rho"]
        dmean = (per_rho * rho).sum()
        gradients["rho"] = (per_rho * m).sum_to_size(rho.shape) if isinstance(rho, Tensor) else None
        if mean_norm is None:
            dn += dmean / max(n.numel(), 1)
    dx, dweight = patches.products_backward(dz, x, weight, need_x, need_weight)
    if dx is not None:
        add_norm_gradient(dx, x, patches, dn.mul_(inverse).squeeze(2))
    dbias = dy.flatten(2).sum((0, 2)).to(bias.dtype) if need_bias else None
    dvalues = (gradients[name] if need else None for name, need in zip(names, need_values, strict=True))
    return dx, dweight, dbias, dmean if need_mean else None, None, None, None, *dvalues


def block_backward(
    formula: Formula,
    values: dict[str, Value],
    totals: Totals,
    n: Tensor,
    inverse: Tensor,
    z: Tensor,
    dy: Tensor,
    dz: Tensor,
    dn: Tensor | None,
) -> None:
    """Fill dz and dn for one block, and add its share to the totals."""
    H, G = cast(Named, formula.h), cast(Named, formula.g)
    stretch, scale = values.get("stretch"), values.get("scale")
    c = z * inverse
    u = n if stretch is None else n * stretch
    h, g = H(u, values), G(c, values)
    in_h: dict[str, Value] = {**values, "n": u, "h": h}
    in_g: dict[str, Value] = {**values, "c": c, "g": g}
    dy = dy.to(n.dtype)
    if scale is not None:
        if "scale" in totals.wanted:
            totals.add("scale", dy * h * g)
        dy = dy * scale
    dh, dg = dy * g, dy * h
    in_g["g_c"] = G.slope("c", in_g)
    dc = times(dg, in_g["g_c"]) * inverse
    dz.copy_(dc)
    for name in totals.wanted.intersection(G.parameters):
        totals.add(name, dg * G.slope(name, in_g))
    in_h["h_n"] = H.slope("n", in_h)
    if "stretch" in totals.wanted:
        totals.add("stretch", dh * in_h["h_n"] * n)
    for name in totals.wanted.intersection(H.parameters):
        totals.add(name, dh * H.slope(name, in_h))
    if dn is not None:
        slope = in_h["h_n"] if stretch is None else in_h["h_n"] * stretch
        dn.copy_(over_filters(dh, slope) - dc.mul_(c).sum(2, keepdim=True))


def times(t: Tensor, factor: Value) -> Tensor:
    """t · factor, without a pass over t where the factor is the number 1."""
    return t if isinstance(factor, float) and factor == 1 else t * factor


def over_filters(t: Tensor, factor: Value) -> Tensor:
    """Σ t · factor over a group's filters, multiplied after the sum where the factor is the same for all of them."""
    if (isinstance(factor, Tensor) and factor.dim() == t.dim() and factor.shape[2] > 1) or (
        isinstance(factor, Tensor) and factor.dim() < t.dim()
    ):
        return (t * factor).sum(2, keepdim=True)
    return t.sum(2, keepdim=True) * factor


def add_norm_gradient(dx: Tensor, x: Tensor, patches: Patches, d: Tensor) -> None:
    """dx += x · spread(dn / n), in place: what the patch norms hand back to the input."""
    spread = patches.sums_backward(d, x.shape[2:]).unsqueeze(2)
    dx_all, x_all = grouped(dx, patches.groups), grouped(x, patches.groups)
    if dx.dtype == spread.dtype:
        dx_all.addcmul_(x_all, spread)
        return
    for index in blocks(dx_all.shape, dx.device):
        dx_all[index] = torch.addcmul(dx_all[index].to(spread.dtype), x_all[index].to(spread.dtype), spread[index])
