"""The hand-written first-order path: one convolution, one sum of squares, one box sum, one pass in cache-sized blocks.

The backward pass keeps x, ŵ, z and the one-channel norm, and goes through the definition when it is itself to be
differentiated, or done for many gradients at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from dcnets import reference
from dcnets.anew import definition_needed, gradients_of
from dcnets.kernels.blocks import beside, chunk_size, in_blocks, square_sums
from dcnets.patches import Patches, grouped, memory_format
from dcnets.reference import Formula
from dcnets.registry import Named, Value


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
    n = patches.sums(square_sums(x, patches.groups)).add_(formula.eps).sqrt_().unsqueeze(2)
    values = reference.with_radius(values, formula, n, mean_norm)
    shift = None if bias is None else bias.view(1, patches.groups, -1, *(1,) * (x.dim() - 2))
    batch = len(x)
    samples = chunk_size(patches.filters(weight) * n[:1].numel() // patches.groups, weight) if keep_products else batch
    if samples >= batch:
        z = patches.products(x, weight)
        y = torch.empty_like(z) if keep_products else z
        fill(grouped(y, patches.groups), grouped(z, patches.groups), n, formula, values, shift)
        return y, z, n
    y = z = x
    for first in range(0, batch, samples):
        part = slice(first, first + samples)
        products = patches.products(x[part], weight)
        if first == 0:
            y, z = like(products, batch), like(products, batch)
        z[part] = products
        fill(grouped(y[part], patches.groups), grouped(products, patches.groups), n[part], formula, values, shift)
    return y, z, n


def like(t: Tensor, batch: int) -> Tensor:
    """An empty tensor laid out as t, for a batch of another size."""
    return torch.empty((batch, *t.shape[1:]), dtype=t.dtype, device=t.device, memory_format=memory_format(t))


def fill(y: Tensor, z: Tensor, n: Tensor, formula: Formula, values: dict[str, Value], shift: Tensor | None) -> None:
    """y = scale · h(stretch · n) · g(z/n) + shift, block by block; y may be z."""
    H, G = cast(Named, formula.h), cast(Named, formula.g)
    stretch, scale, inverse = values.get("stretch"), values.get("scale"), n.reciprocal()
    scaled, own = varies(scale), varies(stretch, *(values[name] for name in H.parameters))
    if G.degree is not None and not scaled and not own:
        # all filters share h, and g(z/n) = g(z) / n^degree: one factor a position is left
        factor = H(n if stretch is None else n * stretch, values) * inverse**G.degree
        factor = factor if scale is None else factor * scale
        for z_part, y_part, factor_part in in_blocks(z, y, factor):
            put(y_part, factor_part, G(z_part.to(n.dtype), values), shift)
        return
    for z_part, y_part, n_part, inverse_part in in_blocks(z, y, n, inverse):
        n_part = beside(n_part, z_part) if own else n_part
        h = H(n_part if stretch is None else n_part * stretch, values)
        h = h if scale is None else (beside(h, z_part) if scaled else h) * scale
        # y serves as the buffer of c, so that fewer lines of the cache are in use
        c = torch.mul(z_part, inverse_part, out=y_part if y.dtype == n.dtype else None)
        put(y_part, h, G(c, values), shift)


def put(y: Tensor, h: Tensor, g: Tensor, shift: Tensor | None) -> None:
    """y = h · g + shift."""
    if y.dtype == g.dtype:
        torch.mul(h, g, out=y)
        if shift is not None:
            y += shift
    else:
        y.copy_(h * g if shift is None else h * g + shift)


def varies(*values: Value | None) -> bool:
    """Whether any of them differs from filter to filter."""
    return any(isinstance(value, Tensor) and value.numel() > 1 for value in values)


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
        if definition_needed(dy):
            return gradients_of(defined, inputs, ctx.needs_input_grad, [dy])
        return first_order(inputs, ctx.needs_input_grad, z, n, dy)


def defined(inputs: list[Any]) -> list[Tensor]:
    """y by the definition."""
    x, weight, bias, mean_norm, patches, formula, names, *values = inputs
    return [reference.decouple(x, weight, bias, mean_norm, patches, formula, dict(zip(names, values, strict=True)))[0]]


def first_order(
    inputs: tuple[Any, ...], needed: tuple[bool, ...], z: Tensor, n: Tensor, dy: Tensor
) -> tuple[Tensor | None, ...]:
    """One pass over dy that yields dz, dn and the values' gradients; then the convolution's own backward."""
    x, weight, bias, mean_norm, patches, formula, names, *own_values = inputs
    need_x, need_weight, need_bias, need_mean, _, _, _, *need_values = needed
    own: dict[str, Value] = dict(zip(names, own_values, strict=True))
    wanted = {name for name, need in zip(names, need_values, strict=True) if need}
    through_mean = formula.relative and (need_mean or (need_x and mean_norm is None))
    values = reference.with_radius(own, formula, n, mean_norm)
    totals = Totals(values, wanted | {"rho"} if through_mean else wanted)

    dn, inverse = torch.zeros_like(n) if need_x else None, n.reciprocal()

    def products_gradient(part: slice) -> Tensor:
        dz = torch.empty_like(z[part])
        z_part, dy_part, dz_part = (grouped(t, patches.groups) for t in (z[part], dy[part], dz))
        for block in in_blocks(z_part, dy_part, dz_part, n[part], inverse[part], None if dn is None else dn[part]):
            block_backward(formula, values, totals, *block)
        return dz

    samples = chunk_size(z[:1].numel(), weight)
    dx, dweight = through_products(products_gradient, samples, patches, x, weight, need_x, need_weight)
    gradients: dict[str, Tensor | None] = {name: totals.sums.get(name) for name in names}
    dmean = None
    if formula.relative and "rho" in totals.sums:
        m = reference.mean(n) if mean_norm is None else mean_norm
        per_rho, rho = totals.sums["rho"], own["rho"]
        dmean = (per_rho * rho).sum()
        gradients["rho"] = (per_rho * m).sum_to_size(rho.shape) if isinstance(rho, Tensor) else None
        if mean_norm is None and dn is not None:
            dn += dmean / max(n.numel(), 1)
    if dx is not None and dn is not None:
        add_norm_gradient(dx, x, patches, dn.mul_(inverse).squeeze(2))
    dbias = dy.transpose(0, 1).flatten(1).sum(1).to(bias.dtype) if need_bias else None
    dvalues = (gradients[name] if need else None for name, need in zip(names, need_values, strict=True))
    return dx, dweight, dbias, dmean if need_mean else None, None, None, None, *dvalues


def through_products(
    gradient: Callable[[slice], Tensor],
    samples: int,
    patches: Patches,
    x: Tensor,
    weight: Tensor,
    need_x: bool,
    need_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """dx and dweight from dz, which `gradient` gives for so many samples at a time; added up in a fixed order."""
    batch = len(x)
    if samples >= batch:
        return patches.products_backward(gradient(slice(None)), x, weight, need_x, need_weight)
    dx = dweight = None
    for first in range(0, batch, samples):
        part = slice(first, first + samples)
        dx_part, dweight_part = patches.products_backward(gradient(part), x[part], weight, need_x, need_weight)
        if dx_part is not None:
            dx = like(dx_part, batch) if dx is None else dx
            dx[part] = dx_part
        if dweight_part is not None:
            wide = dweight_part.to(torch.promote_types(weight.dtype, torch.float32))
            dweight = wide if dweight is None else dweight.add_(wide)
    return dx, None if dweight is None else dweight.to(weight.dtype)


def block_backward(
    formula: Formula,
    values: dict[str, Value],
    totals: Totals,
    z: Tensor,
    dy: Tensor,
    dz: Tensor,
    n: Tensor,
    inverse: Tensor,
    dn: Tensor | None,
) -> None:
    """Fill dz and dn for one block, and add its share to the totals."""
    H, G = cast(Named, formula.h), cast(Named, formula.g)
    stretch, scale = values.get("stretch"), values.get("scale")
    c = z * inverse
    if varies(stretch, *(values[name] for name in H.parameters)):
        n = beside(n, z)
    u = n if stretch is None else n * stretch
    h, g = H(u, values), G(c, values)
    in_h: dict[str, Value] = {**values, "n": u, "h": h}
    in_g: dict[str, Value] = {**values, "c": c, "g": g}
    dy = dy.to(n.dtype)
    if scale is not None:
        if "scale" in totals.wanted:
            totals.add("scale", dy * h * g)
        dy = dy * scale
    dg = dy * h
    in_g["g_c"] = G.slope("c", in_g)
    for name in totals.wanted.intersection(G.parameters):
        totals.add(name, dg * G.slope(name, in_g))
    dc = times(dg, in_g["g_c"])
    if dz.dtype == dc.dtype:
        dc = torch.mul(dc, inverse, out=dz)
    else:
        dz.copy_(dc.mul_(inverse))
    dh = dy * g
    in_h["h_n"] = H.slope("n", in_h)
    if "stretch" in totals.wanted:
        totals.add("stretch", dh * in_h["h_n"] * n)
    for name in totals.wanted.intersection(H.parameters):
        totals.add(name, dh * H.slope(name, in_h))
    if dn is not None:
        slope = in_h["h_n"] if stretch is None else in_h["h_n"] * stretch
        torch.sub(over_filters(dh, slope), c.mul_(dc).sum(2, keepdim=True), out=dn)


def times(t: Tensor, factor: Value) -> Tensor:
    """t · factor, without a pass over t where the factor is the number 1."""
    return t if isinstance(factor, float) and factor == 1 else t * factor


def over_filters(t: Tensor, factor: Value) -> Tensor:
    """Σ t · factor over a group's filters, multiplied after the sum where the factor is the same for all of them."""
    if isinstance(factor, Tensor) and factor.shape[2] > 1:
        return (t * factor).sum(2, keepdim=True)
    return t.sum(2, keepdim=True) * factor


def add_norm_gradient(dx: Tensor, x: Tensor, patches: Patches, d: Tensor) -> None:
    """dx += x · spread(dn / n), in place: what the patch norms hand back to the input."""
    spread = patches.sums_backward(d, x.shape[2:]).unsqueeze(2)
    dx, x = grouped(dx, patches.groups), grouped(x, patches.groups)
    if dx.dtype == spread.dtype:
        dx.addcmul_(x, spread)
        return
    for dx_part, x_part, spread_part in in_blocks(dx, x, spread):
        dx_part.copy_(torch.addcmul(dx_part.to(spread.dtype), x_part.to(spread.dtype), spread_part))
