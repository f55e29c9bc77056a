"""The Triton path as two operators of torch, which eager mode, torch.compile and CUDA graphs all take.

A layer, and where there are any the batch norm, residual sum and ReLU behind it. In eager mode the same functions are called
without torch's dispatcher, whose time for so many arguments would show.
"""

from __future__ import annotations

import functools
import math
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

from dcnets.kernels.gpu import angulars, launch, launcher, layout, magnitudes
from dcnets.kernels.gpu.call import ARGUMENTS, TENSORS, Call
from dcnets.kernels.gpu.definition import through_definition
from dcnets.kernels.gpu.launch import NAMES
from dcnets.kernels.gpu.tapes import Taped
from dcnets.kernels.response import NOTHING, Behind, Response
from dcnets.patches import Matrix, Patches
from dcnets.reference import Formula
from dcnets.registry import Named, Value


def checksum(folder: Path) -> int:
    """Of all Python files in a folder."""
    return zlib.crc32(b"".join(file.read_bytes() for file in sorted(folder.glob("*.py"))))


BUILD = checksum(Path(__file__).parent)
"""An argument of the operators: torch keeps compiled graphs on disk, with what an operator became in them, by arguments."""
TAPS = 64
"""The most taps of a window that the programs are unrolled for."""
MOST_FILTERS = 4096
"""The most filters of a group: the programs that add up over all of them have one tile for them."""


def can(x: Tensor, weight: Tensor, patches: Patches, formula: Formula) -> bool:
    """Whether there are programs for this: formulas with twins, ordinary windows, not too many filters."""
    for function, twins in ((formula.h, magnitudes.TWINS), (formula.g, angulars.TWINS)):
        if not isinstance(function, Named) or function.name not in twins:
            if not torch.compiler.is_compiling():
                say_once(function.name if isinstance(function, Named) else function.named.name)
            return False
    if x.numel() == 0 or x.dtype is torch.float64 or weight.shape[0] > MOST_FILTERS:
        return False
    return isinstance(patches, Matrix) or (not patches.transposed and math.prod(patches.kernel) <= TAPS)


@functools.cache
def say_once(name: str) -> None:
    """Tell that a formula has no twin for the GPU."""
    warnings.warn(f"{name!r} has no Triton twin, so its layers take the slower path through torch", stacklevel=2)


def respond(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean_norm: Tensor | None, patches: Patches, formula: Formula,
    values: dict[str, Value], *, raw: bool, unit: bool, behind: Behind = NOTHING,
) -> Response:  # fmt: skip
    """The output, as `reference.decouple` and torch's batch norm define it; see `Call` for `raw` and `unit`."""
    given: list[Tensor | None] = []
    numbers, present = [], []
    for name in NAMES:
        value = values.get(name)
        given.append(value.reshape(-1) if isinstance(value, Tensor) else None)
        numbers.append(1.0 if value is None or isinstance(value, Tensor) else float(value))
        present.append(int(value is not None))
    windows: tuple[Any, ...] = ((), (), ())
    if not isinstance(patches, Matrix):
        windows = patches.stride, patches.padding, patches.dilation
    tensors = (
        x, behind.sums, weight, bias if behind.gamma is None else behind.beta, behind.residual, behind.token, behind.gamma,
        behind.centre, behind.variance, mean_norm, *given,
    )  # fmt: skip
    settings = (
        tuple(numbers), tuple(present), cast(Any, formula.h).name, cast(Any, formula.g).name, formula.eps, formula.relative,
        raw, unit, behind.bn_eps, behind.relu, behind.wants_sums, behind.wants_token, *windows, patches.groups, BUILD,
    )  # fmt: skip
    return answer(tensors, settings)


def answer(tensors: tuple[Tensor | None, ...], settings: tuple[Any, ...]) -> Response:
    """The operator's response to the tensors and the settings of a `Call`."""
    arguments: tuple[Any, ...] = (*tensors, *settings)
    if compiling := torch.compiler.is_compiling():
        y, sums, token, _, _, _, m, moments = decouple(*arguments)
    else:
        y, sums, token, m, moments = in_eager_mode(settings, tensors)
    call = Call(*arguments)
    return Response(
        y, sums if call.wants_sums else None, token if call.wants_token else None,
        m if call.mean_norm is None else call.mean_norm, moments, None if compiling else (tensors, settings),
    )  # fmt: skip


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """y, its sums, its token, and what is kept beside them: ŵ, z, n, m, and mean and variances of the response.

    Empty where there is none: ŵ where the weight is one, m where it was given, and the statistics where they were.
    """
    call = Call(*arguments)
    x, weight = layout.dense(call.x), call.weight
    empty = x.new_empty(0)
    squares = launch.square_sums(x, call.groups) if call.sums is None else call.sums
    filters = None if call.unit else layout.whole_filters(weight)
    n, partials, unit = launch.prepare(squares, call.view, call.eps, filters, x.dtype)
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
        launch.add_norm_gradient(dx, x, own, call.groups)
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


def launches_in_graph(operator: torch._library.custom_ops.CustomOpDef, run: Callable[..., tuple[Tensor, ...]]) -> None:
    """Let torch.compile see an operator's launches and convolutions, which its code then makes without our Python.

    This is what `torch.library.triton_op` does. Where sizes are left open the operator stays one node: programs are cut for
    sizes that are known.
    """

    def rule(mode: Any, overload: Any, types: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not all(on_gpu(t) and known(t) for t in arguments if isinstance(t, Tensor)):
            return mode.__torch_dispatch__(overload, types, arguments, options)
        with mode, launcher.traced():
            return run(*arguments)

    operator.register_torch_dispatch(FunctionalTensorMode, rule)


def on_gpu(t: Tensor) -> bool:
    """Whether a tensor lies where compiled programs run; what Triton interprets stays out of graphs."""
    return t.is_cuda


def known(t: Tensor) -> bool:
    """Whether all sizes and strides are numbers."""
    return not any(isinstance(size, torch.SymInt) for size in (*t.shape, *t.stride()))


decouple = torch.library.custom_op(
    "dcnets::decouple", forward, mutates_args=(), schema=f"({ARGUMENTS}) -> ({', '.join(['Tensor'] * 8)})"
)
decouple.register_fake(like_forward)
launches_in_graph(decouple, forward)
decouple_backward = torch.library.custom_op(
    "dcnets::decouple_backward", all_gradients, mutates_args=(),
    schema=(
        "(Tensor dy, Tensor? dsums, Tensor? dtoken, Tensor? y, Tensor kept_unit, Tensor z, Tensor n, Tensor m, "
        "Tensor moments, str wanted, "
        f"bool need_x, bool need_weight, bool need_norm, bool need_residual, {ARGUMENTS}) -> "
        f"({', '.join(['Tensor'] * len(Gradients._fields))})"
    ),
)  # fmt: skip
decouple_backward.register_fake(lambda *arguments: tuple(like_backward(*arguments)))
launches_in_graph(decouple_backward, all_gradients)


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the arguments, ŵ, z, n, m and the statistics for the backward pass, and y where it is needed."""
    y, _, _, *kept = output
    ctx.settings = inputs[TENSORS:]
    ctx.set_materialize_grads(False)
    call = Call(*inputs)
    ctx.save_for_backward(*inputs[:TENSORS], *kept, y if needs_output(call) else None)


def needs_output(call: Call) -> bool:
    """Whether the backward pass needs y: with a residual in it, it cannot be computed anew."""
    return call.residual is not None and (call.relu or call.wants_sums)


def gradients_of_arguments(ctx: Any, *directions: Any) -> tuple[Any, ...]:
    """The gradients of all of `decouple`'s arguments."""
    found = gradients(decouple_backward, ctx, ctx.needs_input_grad[:TENSORS], *directions)
    return (*found, *(None,) * len(ctx.settings))


def gradients(
    run: Any, ctx: Any, needs: tuple[bool, ...], dy: Tensor | None, dsums: Tensor | None, dtoken: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """The gradients of `decouple`'s tensors by `run`, a `backward`; those with a graph go through the definition."""
    *tensors, unit, z, n, m, moments, y = ctx.saved_tensors
    call = Call(*tensors, *ctx.settings)
    if dy is None:
        dy, dtoken = dtoken, None
    if dy is None and dsums is None:
        return (None,) * TENSORS
    if dy is None:
        dy = torch.zeros_like(z)
    if dtoken is not None and (y is None or torch.is_grad_enabled()):  # the programs add it where they store the sum
        dy, dtoken = dy + dtoken, None
    if torch.is_grad_enabled():
        return through_definition(call, needs, dy, dsums)
    need_x, need_sums, need_weight, need_bias, need_residual, need_token, need_gamma, _, _, need_mean, *need_values = needs
    wanted = [name for name, need in zip(NAMES, need_values, strict=True) if need]
    if call.relative and "rho" not in wanted and (need_mean or ((need_x or need_sums) and call.mean_norm is None)):
        wanted.append("rho")
    if need_bias and call.gamma is None:
        wanted.append("bias")
    asked = Needs(" ".join(wanted), need_x or need_sums, need_weight, need_gamma or (need_bias and call.gamma is not None),
                  y is not None and (need_residual or need_token))  # fmt: skip
    kept = call.weight.to(call.x.dtype) if call.unit else unit, z, n, call.mean_norm if m.numel() == 0 else m, moments
    found = Gradients(*run(dy, dsums, dtoken, y, *kept, *asked, *tensors, *ctx.settings))
    of = {**dict(zip(wanted, found.values.unbind(0), strict=False)), "rho": found.radius}
    dvalues = [
        folded(of[name], tensor) if need and tensor is not None else None
        for name, tensor, need in zip(NAMES, call.tensors, need_values, strict=True)
    ]
    dbias = found.norm[0] if need_bias and call.gamma is not None else of.get("bias")
    dweight = found.weight.to(call.weight.dtype) if need_weight else None
    behind = dy if y is None else found.residual
    return (
        found.x if need_x else None, found.sums if need_sums else None, dweight,
        None if dbias is None or call.bias is None else dbias.to(call.bias.dtype),
        behind.to(call.residual.dtype) if need_residual and call.residual is not None else None,
        behind.to(call.token.dtype) if need_token and call.token is not None else None,
        found.norm[1].to(call.gamma.dtype) if need_gamma and call.gamma is not None else None, None, None,
        found.mean if need_mean else None, *dvalues,
    )  # fmt: skip


def folded(gradient: Tensor, value: Tensor) -> Tensor:
    """A gradient for each filter in the shape and dtype of a value, which may be one for all."""
    return (gradient.sum().reshape(value.shape) if value.numel() == 1 else gradient).to(value.dtype)


decouple.register_autograd(gradients_of_arguments, setup_context=remember)


taped_forward, taped_backward = Taped(forward), Taped(all_gradients)


class InEagerMode(torch.autograd.Function):
    """`decouple` without torch's dispatcher, and with no more outputs for autograd than have gradients."""

    @staticmethod
    def forward(ctx: Any, beside: list[Tensor], settings: tuple[Any, ...], *tensors: Tensor | None) -> Any:
        output = taped_forward(*tensors, *settings)
        remember(ctx, (*tensors, *settings), output)
        beside += output[-2:]
        return tuple(t if t.numel() else None for t in output[:3])

    @staticmethod
    def backward(ctx: Any, *directions: Any) -> tuple[Any, ...]:
        return None, None, *gradients(taped_backward, ctx, ctx.needs_input_grad[2:], *directions)


def in_eager_mode(settings: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """y, its sums and its token, the mean norm, and the statistics of the response."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        beside: list[Tensor] = []
        return *InEagerMode.apply(beside, settings, *tensors), *beside  # type: ignore[no-untyped-call]
    y, sums, token, *_, m, moments = taped_forward(*tensors, *settings)
    return y, sums, token, m, moments
