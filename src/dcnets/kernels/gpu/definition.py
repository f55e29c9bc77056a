"""What the Triton operator computes, by its definition in plain torch: for gradients of gradients, and many at once."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.nn import functional as F

from dcnets import reference
from dcnets.anew import gradients_of
from dcnets.angular import ANGULARS
from dcnets.kernels.gpu.call import TENSORS, Call
from dcnets.magnitude import MAGNITUDES
from dcnets.options import radius_of
from dcnets.patches import normalise
from dcnets.reference import Formula
from dcnets.registry import Value


def through_definition(call: Call, needs: tuple[bool, ...], dy: Tensor, dsums: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of a call's tensors, in plain torch."""

    def defined(tensors: list[Any]) -> list[Tensor]:
        y = plainly(Call(*tensors, *call[TENSORS:]))
        return [y] if dsums is None else [y, (y.float() ** 2).sum(1).flatten(1).unsqueeze(1)]

    return gradients_of(defined, call[:TENSORS], needs, [dy] if dsums is None else [dy, dsums])


def plainly(call: Call) -> Tensor:
    """Response, batch norm, residual sum and ReLU by their definitions."""
    shape = (1, call.groups, -1, *(1,) * (call.x.dim() - 2))
    values: dict[str, Value] = {
        name: value.reshape(shape if value.numel() > 1 else (1,) * len(shape)) if isinstance(value, Tensor) else value
        for name, value in call.values.items()
    }
    if call.raw:
        values["rho"] = radius_of(cast(Tensor, values["rho"]))
    formula = Formula(MAGNITUDES[call.h], ANGULARS[call.g], call.eps, call.relative)
    unit = call.weight if call.unit else normalise(call.weight, call.patches, call.eps)[0]
    bias = call.bias if call.gamma is None else None
    f, _ = reference.decouple(call.x, unit.to(call.x.dtype), bias, call.mean_norm, call.patches, formula, values)
    if call.gamma is not None:
        batch = call.centre is None
        f = F.batch_norm(f, call.centre, call.variance, call.gamma, call.bias, training=batch, eps=call.bn_eps)
    f = f if call.residual is None else f + call.residual
    f = f if call.token is None else f + call.token
    return f.relu() if call.relu else f
