"""Weight-normalised softmax: the classifier whose logits are s·⟨ŵ, x⟩, and its loss (section 6 of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets import functional
from dcnets.layers import DecoupledLinear
from dcnets.naming import choose
from dcnets.operator import Operator
from dcnets.options import DEFAULTS, Options
from dcnets.registry import Value
from dcnets.surroundings import no_autocast, pure_torch_needed, written_down

IGNORED = -100
"""The target that counts for nothing, as in torch."""
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class NormalisedClassifier(DecoupledLinear):
    """Weight-normalised softmax: logits s·‖x‖·cos θ = s·⟨ŵ, x⟩ of x (…, features), with ŵ = w/√(Σw² + ε) and no bias.

    This is LinearConv with the cosine; `magnitude="sphere"` makes it s·cos θ, as NormFace has it. The scale s is one number
    for all classes, learned (as `alpha`) where `learn_scale` says so. Half precision is computed in float32, in which the
    logits come too. Projection, weighted gradients and penalties leave it alone, as the authors' do.
    """

    has_filters = False

    def __init__(
        self, in_features: int, num_classes: int, *, scale: float = 1.0, learn_scale: bool = False,
        magnitude: str = "linear", eps: float = DEFAULTS["eps"], device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        choose("magnitude of a classifier", magnitude, ("linear", "sphere"))
        own: Options = {"magnitude": magnitude, "eps": eps, "alpha": scale, "learn": ("alpha",) if learn_scale else ()}
        super().__init__(in_features, num_classes, False, device, dtype, **own)

    def _initial(self, device: Any = None, dtype: Any = None) -> dict[str, Tensor]:
        """One α for all classes: one a class would give the norms back that ŵ has lost."""
        return {name: tensor[:1] for name, tensor in super()._initial(device, dtype).items()}

    @property
    def scale(self) -> Tensor | float:
        """The scale s, whether learned or fixed."""
        return self.alpha

    def forward(self, input: Tensor) -> Tensor:
        return class_logits(input, self.weight, self.operator, self.alpha)


def normalised_softmax_loss(
    x: Tensor, weight: Tensor, targets: Tensor, scale: Value = 1.0, *, eps: float = 1e-4, label_smoothing: float = 0.0,
    ignore_index: int = IGNORED,
) -> Tensor:  # fmt: skip
    """The softmax loss of s·⟨ŵ, x⟩ for features x (…, features), weight (classes, features) and targets (…)."""
    logits = class_logits(x, weight, Operator("linear", "cosine", eps=eps), scale)
    return softmax_loss(logits, targets, label_smoothing=label_smoothing, ignore_index=ignore_index)


def softmax_loss(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, ignore_index: int = IGNORED) -> Tensor:
    """Cross-entropy of logits (…, classes), averaged over the targets (…) that count; 0 where none does."""
    targets = checked_targets(targets, logits.shape[:-1], logits.shape[-1], ignore_index)
    rows = full_precision(logits).reshape(targets.numel(), logits.shape[-1])
    total = F.cross_entropy(
        rows, targets.flatten(), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
    )
    return total / (targets != ignore_index).sum().clamp(min=1)


def class_logits(x: Tensor, weight: Tensor, operator: Operator, alpha: Value, g: nn.Module | None = None) -> Tensor:
    """The operator's response to x, outside autocast and in float32 or better; `g` replaces its angular function."""
    with no_autocast(x):
        return functional.decoupled_linear(full_precision(x), full_precision(weight), operator, alpha=alpha, g=g)


def full_precision(t: Tensor) -> Tensor:
    """Half precision as float32; anything else as it is."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def checked_targets(targets: Tensor, shape: torch.Size, classes: int, ignore_index: int) -> Tensor:
    """The targets as int64, after a look at type, shape and range (on the CPU alone, and not where a call is recorded)."""
    if targets.dtype not in INTEGERS:
        raise TypeError(f"targets are {targets.dtype}, expected class numbers of an integer type; convert with .long()")
    if targets.shape != shape:
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, expected {tuple(shape)}: one class number for each row of features"
        )
    targets = targets.long()
    if targets.device.type == "cpu" and not (pure_torch_needed() or written_down(targets)):
        strange = targets[(targets != ignore_index) & ((targets < 0) | (targets >= classes))]
        if strange.numel():
            raise ValueError(
                f"target {strange[0].item()} is no class, expected 0 to {classes - 1}; "
                f"number the classes from 0, or give what is not to count the target {ignore_index}"
            )
    return targets
