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
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

from dcnets.anew import definition_needed
from dcnets.kernels.gpu import angulars, launcher, magnitudes
from dcnets.kernels.gpu.call import ARGUMENTS, TENSORS, Call
from dcnets.kernels.gpu.computation import Gradients, Needs, all_gradients, forward, like_backward, like_forward
from dcnets.kernels.gpu.definition import through_definition
from dcnets.kernels.gpu.edges import UNROLLED
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
    return isinstance(patches, Matrix) or (not patches.transposed and math.prod(patches.kernel) <= UNROLLED)


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
    """The gradients of `decouple`'s tensors by `run`, a `backward`; those of `definition_needed` go through it."""
    *tensors, unit, z, n, m, moments, y = ctx.saved_tensors
    call = Call(*tensors, *ctx.settings)
    if dy is None:
        dy, dtoken = dtoken, None
    if dy is None and dsums is None:
        return (None,) * TENSORS
    if dy is None:
        dy = torch.zeros_like(z)
    defined = definition_needed(dy, dsums, dtoken)
    if dtoken is not None and (y is None or defined):  # the programs add it where they store the sum
        dy, dtoken = dy + dtoken, None
    if defined:
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
