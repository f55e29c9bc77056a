"""`fuse`: decoupled layers take the batch norm and ReLU behind them into their own passes over the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dcnets import dispatch
from dcnets.decoupled import Decoupled
from dcnets.patches import Patches
from dcnets.reference import Formula
from dcnets.registry import Value

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class FusedBlock(nn.Sequential):
    """A decoupled layer, its batch norm and perhaps its ReLU, under the names that they had.

    In training on a GPU, with `functional.backend("fused")`, they are one operator: the response is not stored between
    them. Everywhere else it is the sequence that it replaces.
    """

    def forward(self, x: Tensor) -> Tensor:
        layer, norm, *rest = self
        assert isinstance(layer, Decoupled)
        assert isinstance(norm, NORMS)
        relu, mean_norm = bool(rest), layer._mean_norm(x)

        def compute(
            x: Tensor, unit: Tensor, bias: Tensor | None, mean_norm: Tensor | None, patches: Patches, formula: Formula,
            values: dict[str, Value],
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            if not norm.training or not dispatch.on_triton(x, unit, patches, formula):
                y, m = dispatch.compute(x, unit, bias, mean_norm, patches, formula, values)
                y = norm(y)
                return y.relu() if relu else y, m
            from dcnets.kernels.gpu import block_ops

            y, m, mean, variance = block_ops.respond(
                x, unit, norm.weight, norm.bias, mean_norm, patches, formula, values, norm.eps, relu
            )
            track(norm, mean, variance, y.numel() // len(mean))
            return y, m

        tensors: Any = {**layer.tensors(), "mean_norm": mean_norm}
        y, m = dispatch.respond(x, layer.weight, layer.bias, layer.geometry, layer.operator, tensors, compute)
        layer._track(x, mean_norm, m)
        return y


@torch.no_grad()
def track(norm: Any, mean: Tensor, variance: Tensor, count: int) -> None:
    """Average a batch's mean and variance into batch norm's running statistics, as torch does."""
    if norm.track_running_stats:
        norm.num_batches_tracked += 1
        share = 1.0 / norm.num_batches_tracked.float() if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
        norm.running_var.lerp_((variance * (count / max(1, count - 1))).to(norm.running_var.dtype), share)


def fuse(model: nn.Module) -> nn.Module:
    """Put a `FusedBlock` in the place of each `nn.Sequential` of a decoupled layer, batch norm and perhaps ReLU.

    In the model itself, whose names, parameters and checkpoints stay; the model is returned.
    """
    for parent in model.modules():
        for name, child in parent._modules.items():
            if fits(child):
                assert child is not None
                twin = FusedBlock()
                vars(twin).update(vars(child))
                parent._modules[name] = twin
    return model


def fits(module: nn.Module | None) -> bool:
    """Whether a module is a sequence that can be fused: no bias before batch norm, which has weights of its own."""
    parts = list(module.children()) if type(module) is nn.Sequential else []
    if len(parts) not in (2, 3) or not isinstance(parts[0], Decoupled) or type(parts[1]) not in NORMS:
        return False
    ordinary = (parts[0].operator.h.name, parts[0].operator.g.name) == ("inner_product", "cosine")
    has_weights = parts[1].weight is not None
    return not ordinary and parts[0].bias is None and has_weights and all(type(part) is nn.ReLU for part in parts[2:])
