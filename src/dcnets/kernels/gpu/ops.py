"""The Triton path as two operators of torch, which eager mode, torch.compile and CUDA graphs all take as they are."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from dcnets.angular import ANGULARS
from dcnets.kernels import eager
from dcnets.kernels.gpu import angulars, launch, magnitudes
from dcnets.magnitude import MAGNITUDES
from dcnets.patches import Convolution, Matrix, Patches
from dcnets.reference import Formula
from dcnets.registry import Value

NAMES = launch.NAMES
FIRST_VALUE = 4
"""The place of the first value among the arguments of `decouple`, after x, unit, bias and mean_norm."""
TAPS = 64
"""The most taps of a window that the programs are unrolled for."""


def can(x: Tensor, unit: Tensor, patches: Patches, formula: Formula) -> bool:
    """Whether there are programs for this: formulas with twins, ordinary windows, filters that fit into a tile."""
    named = getattr(formula.h, "name", "") in magnitudes.TWINS and getattr(formula.g, "name", "") in angulars.TWINS
    if not named or x.numel() == 0 or x.dtype is torch.float64 or len(unit) // patches.groups > launch.WIDEST:
        return False
    return isinstance(patches, Matrix) or (not patches.transposed and unit[0, 0].numel() <= TAPS)


def respond(
    x: Tensor, unit: Tensor, bias: Tensor | None, mean_norm: Tensor | None, patches: Patches, formula: Formula,
    values: dict[str, Value],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output and the mean norm that ρ was measured by, as `reference.decouple` defines them."""
    tensors, numbers, present, settings = packed(values, patches)
    h, g = cast(Any, formula.h).name, cast(Any, formula.g).name
    y, _, _, m = decouple(
        x, unit, bias, mean_norm, *tensors, numbers, present, h, g, formula.eps, formula.relative, *settings,
        patches.groups,
    )  # fmt: skip
    return y, m


def packed(
    values: dict[str, Value], patches: Patches
) -> tuple[list[Tensor | None], list[float], list[int], list[list[int]]]:
    """The values as an operator of torch takes them: tensors, numbers, which are there; then stride, padding, dilation."""
    present = [int(name in values) for name in NAMES]
    tensors: list[Tensor | None] = []
    numbers: list[float] = []
    for name in NAMES:
        value = values.get(name, 1.0)
        tensors.append(value.reshape(-1) if isinstance(value, Tensor) else None)
        numbers.append(1.0 if isinstance(value, Tensor) else float(value))
    if isinstance(patches, Matrix):
        return tensors, numbers, present, [[], [], []]
    return tensors, numbers, present, [list(patches.stride), list(patches.padding), list(patches.dilation)]


def known(tensors: tuple[Tensor | None, ...], numbers: list[float], present: list[int]) -> dict[str, Tensor | float]:
    """The values that are there, by name."""
    rows = zip(NAMES, tensors, numbers, present, strict=True)
    return {name: number if tensor is None else tensor for name, tensor, number, there in rows if there}


def windows_of(x: Tensor, unit: Tensor, stride: list[int], padding: list[int], dilation: list[int]) -> launch.Windows:
    """The windows of x that filters see; a row of a matrix is one window."""
    return launch.windows(tuple(x.shape[2:]), tuple(unit.shape[2:]), tuple(stride), tuple(padding), tuple(dilation))


def patches_of(unit: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Patches:
    """How patches meet filters."""
    if unit.dim() == 2:
        return Matrix()
    settings = (tuple(unit.shape[2:]), tuple(stride), tuple(padding), tuple(dilation))
    return Convolution(*settings, groups, False, (0,) * len(stride))


@torch.library.custom_op("dcnets::decouple", mutates_args=())
def decouple(
    x: Tensor, unit: Tensor, bias: Tensor | None, mean_norm: Tensor | None, rho: Tensor | None, alpha: Tensor | None,
    beta: Tensor | None, k: Tensor | None, p: Tensor | None, weight_norm: Tensor | None, stretch: Tensor | None,
    scale: Tensor | None, numbers: list[float], present: list[int], h: str, g: str, eps: float, relative: bool,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, z, n and m."""
    values = known((rho, alpha, beta, k, p, weight_norm, stretch, scale), numbers, present)
    x = launch.dense(x)
    z = launch.dense(patches_of(unit, stride, padding, dilation, groups).products(x, unit))
    n, partials, parts = launch.norms(x, groups, windows_of(x, unit, stride, padding, dilation), eps)
    y, m = launch.respond(z, n, bias, mean_norm, partials, parts, relative, h, g, values, groups)
    return y, z, n, m.clone() if m is mean_norm else m


@decouple.register_fake
def _(
    x: Tensor, unit: Tensor, bias: Tensor | None, mean_norm: Tensor | None, rho: Tensor | None, alpha: Tensor | None,
    beta: Tensor | None, k: Tensor | None, p: Tensor | None, weight_norm: Tensor | None, stretch: Tensor | None,
    scale: Tensor | None, numbers: list[float], present: list[int], h: str, g: str, eps: float, relative: bool,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    z = patches_of(unit, stride, padding, dilation, groups).products(x, unit)
    out = windows_of(x, unit, stride, padding, dilation).out_size
    n = x.new_empty((len(x), groups, *out), dtype=torch.float32)
    return torch.empty_like(z), z, n, x.new_empty((), dtype=torch.float32)


@torch.library.custom_op("dcnets::decouple_backward", mutates_args=())
def decouple_backward(
    dy: Tensor, x: Tensor, unit: Tensor, z: Tensor, n: Tensor, m: Tensor, rho: Tensor | None, alpha: Tensor | None,
    beta: Tensor | None, k: Tensor | None, p: Tensor | None, weight_norm: Tensor | None, stretch: Tensor | None,
    scale: Tensor | None, numbers: list[float], present: list[int], wanted: str, need_x: bool, need_unit: bool,
    own_mean: bool, h: str, g: str, eps: float, relative: bool, stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dx, dunit, the gradients of the values named in `wanted` (values, filters) and dm; empty where not needed."""
    values, names = known((rho, alpha, beta, k, p, weight_norm, stretch, scale), numbers, present), wanted.split()
    x = launch.dense(x)
    dz, dn, totals = launch.respond_backward(dy, z, n, m, relative, h, g, values, names, groups)
    patches = patches_of(unit, stride, padding, dilation, groups)
    dx, dunit = patches.products_backward(dz, x, unit, need_x, need_unit)
    dmean = dy.new_zeros((), dtype=torch.float32)
    if relative and "rho" in names:
        per_rho = totals[names.index("rho")]
        dmean = (per_rho * values["rho"]).sum()
        per_rho *= m
    if dx is not None:
        dx = launch.dense(dx)
        view = windows_of(x, unit, stride, padding, dilation)
        launch.add_norm_gradient(dx, x, n, dn, dmean if relative and own_mean else None, groups, view)
    empty = dy.new_empty(0)
    return empty if dx is None else dx, empty.clone() if dunit is None else dunit, totals, dmean


@decouple_backward.register_fake
def _(
    dy: Tensor, x: Tensor, unit: Tensor, z: Tensor, n: Tensor, m: Tensor, rho: Tensor | None, alpha: Tensor | None,
    beta: Tensor | None, k: Tensor | None, p: Tensor | None, weight_norm: Tensor | None, stretch: Tensor | None,
    scale: Tensor | None, numbers: list[float], present: list[int], wanted: str, need_x: bool, need_unit: bool,
    own_mean: bool, h: str, g: str, eps: float, relative: bool, stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    patches = patches_of(unit, stride, padding, dilation, groups)
    dx, dunit = patches.products_backward(torch.empty_like(z), x, unit, need_x, need_unit)
    totals = dy.new_empty((max(1, len(wanted.split())), z.shape[1]), dtype=torch.float32)
    empty = dy.new_empty(0)
    scalar = dy.new_empty((), dtype=torch.float32)
    return empty if dx is None else dx, dy.new_empty(0) if dunit is None else dunit, totals, scalar


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep x, ŵ, z, n, m and the values for the backward pass."""
    x, unit, bias, mean_norm, *rest = inputs
    tensors, ctx.settings = rest[: len(NAMES)], rest[len(NAMES) :]
    _, z, n, m = output
    ctx.own_mean = mean_norm is None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, unit, bias, mean_norm, z, n, m, *tensors)


def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    """The gradients of `decouple`'s arguments; with a graph of their own they go through the definition."""
    nothing = (None,) * len(ctx.settings)
    if dy is None:
        return (*(None,) * (FIRST_VALUE + len(NAMES)), *nothing)
    x, unit, bias, mean_norm, z, n, m, *tensors = ctx.saved_tensors
    numbers, present, h, g, eps, relative, stride, padding, dilation, groups = ctx.settings
    needs = ctx.needs_input_grad
    if torch.is_grad_enabled():
        return (*through_definition(ctx, x, unit, bias, mean_norm, tensors, dy), *nothing)
    need_x, need_unit, need_bias, need_mean = needs[:FIRST_VALUE]
    wanted = [name for name, need in zip(NAMES, needs[FIRST_VALUE:], strict=False) if need]
    if relative and "rho" not in wanted and (need_mean or (need_x and ctx.own_mean)):
        wanted.append("rho")
    dx, dunit, totals, dmean = decouple_backward(
        dy, x, unit, z, n, m, *tensors, numbers, present, " ".join(wanted), need_x, need_unit, ctx.own_mean, h, g, eps,
        relative, stride, padding, dilation, groups,
    )  # fmt: skip
    dvalues = [
        folded(totals[wanted.index(name)], tensor) if need and tensor is not None else None
        for name, tensor, need in zip(NAMES, tensors, needs[FIRST_VALUE : FIRST_VALUE + len(NAMES)], strict=True)
    ]
    dbias = dy.transpose(0, 1).flatten(1).float().sum(1).to(bias.dtype) if need_bias else None
    given = dmean if need_mean else None
    return (dx if need_x else None, dunit if need_unit else None, dbias, given, *dvalues, *nothing)


def folded(gradient: Tensor, value: Tensor) -> Tensor:
    """A gradient for each filter in the shape and dtype of a value, which may be one for all."""
    return (gradient.sum().reshape(value.shape) if value.numel() == 1 else gradient).to(value.dtype)


def through_definition(
    ctx: Any,
    x: Tensor,
    unit: Tensor,
    bias: Tensor | None,
    mean_norm: Tensor | None,
    tensors: list[Tensor | None],
    dy: Tensor,
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again."""
    numbers, present, h, g, eps, relative, stride, padding, dilation, groups = ctx.settings
    patches = patches_of(unit, stride, padding, dilation, groups)
    formula = Formula(MAGNITUDES[h], ANGULARS[g], eps, relative)
    shape = (1, groups, -1, *(1,) * (x.dim() - 2))
    names, values, needs = [], [], list[bool]()
    of_values = ctx.needs_input_grad[FIRST_VALUE : FIRST_VALUE + len(NAMES)]
    for name, tensor, number, there, need in zip(NAMES, tensors, numbers, present, of_values, strict=True):
        if there:
            names.append(name)
            values.append(number if tensor is None else tensor.reshape(shape if tensor.numel() > 1 else (1,) * len(shape)))
            needs.append(need)
    inputs = (x, unit, bias, mean_norm, patches, formula, tuple(names), *values)
    found = eager.through_definition(inputs, (*ctx.needs_input_grad[:FIRST_VALUE], False, False, False, *needs), dy)
    by_name = dict(zip(names, found[7:], strict=True))
    own = [
        None if (gradient := by_name.get(name)) is None or tensor is None else gradient.reshape(tensor.shape)
        for name, tensor in zip(NAMES, tensors, strict=True)
    ]
    return (*found[:FIRST_VALUE], *own)


torch.library.register_autograd("dcnets::decouple", backward, setup_context=remember)
