"""The definition: f = h(n)·g(z/n) in plain torch, which every transform of torch can take apart."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dcnets.patches import Patches, grouped, patch_norm
from dcnets.registry import Bound, Named, Value, Values


@dataclass(frozen=True)
class Formula:
    """What is computed from inner products and norms: h, g, ε and whether ρ is measured in mean norms."""

    h: Named | Bound
    g: Named | Bound
    eps: float
    relative: bool


def mean(n: Tensor) -> Tensor:
    """The mean norm m; of an empty batch it is 1, so that nothing is divided by 0."""
    return n.mean() if n.numel() else n.sum() + 1


def response(formula: Formula, z: Tensor, n: Tensor, values: Values) -> Tensor:
    """y = scale · h(stretch · n) · g(z/n); all in the grouped layout, `values` being shaped to meet it."""
    stretch, scale = values.get("stretch"), values.get("scale")
    h = formula.h(n if stretch is None else n * stretch, values)
    y = formula.g(z / n, values) * h  # z's side first: its memory format is the output's
    return y if scale is None else y * scale


def with_radius(values: dict[str, Value], formula: Formula, n: Tensor, mean_norm: Tensor | None) -> dict[str, Value]:
    """The values with ρ·m in place of ρ where the radius is relative."""
    if not formula.relative:
        return values
    return {**values, "rho": values["rho"] * (mean(n) if mean_norm is None else mean_norm)}


def decouple(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean_norm: Tensor | None,
    patches: Patches,
    formula: Formula,
    values: dict[str, Value],
) -> tuple[Tensor, Tensor]:
    """The output y (batch, filters, *positions) and the patch norms n, from x and unit filters."""
    z = patches.products(x, weight)
    n = patch_norm(x, patches, formula.eps)
    values = with_radius(values, formula, n, mean_norm)
    y = response(formula, grouped(z, patches.groups).to(n.dtype), n, values).flatten(1, 2)
    if bias is not None:
        y = y + bias.view(-1, *(1,) * (y.dim() - 2))
    return y.to(z.dtype), n
