"""Statistics for a converted network, so that training or evaluation can go on from pretrained weights (section 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from dcnets.decoupled import Decoupled
from dcnets.modes import evaluating

MEASURED = ("running_mean", "running_var", "running_norm", "num_batches_tracked", "raw_radius")
"""The tensors of batch norms and of decoupled layers that `calibrate` sets."""


def calibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Set running norms, absolute radii and batch-norm statistics from a few batches; return the model.

    Each batch is the model's input, or a tuple or list whose first element is. Every decoupled layer's `running_norm`
    becomes the average over the batches, an absolute ρ becomes the mean patch norm that it meets, and batch norm's
    statistics are estimated anew. α and all weights stay as they are, and dropout is off. An absolute ρ that has been
    learned is lost: it is for networks that have just been converted. What no batch reaches stays as it is, and so does
    everything where a batch fails.
    """
    batches = iter(batches)
    try:
        first = next(batches)
    except StopIteration:
        raise ValueError("calibrate got no batches; pass at least one, in a list or from a loader") from None
    with evaluating(model), kept_where_unmeasured(model), measuring(model), torch.no_grad():
        for batch in chain([first], batches):
            model(batch[0] if isinstance(batch, tuple | list) else batch)
    return model


@contextmanager
def kept_where_unmeasured(model: nn.Module) -> Iterator[None]:
    """Statistics and absolute radii as they were where no batch was counted, and everywhere after an error."""
    before = {module: copies(module) for module in model.modules() if is_measured(module)}
    try:
        yield
    except BaseException:
        for module, tensors in before.items():
            put_back(module, tensors)
        raise
    for module, tensors in before.items():
        count = module._buffers.get("num_batches_tracked")
        if count is not None and not count.item():
            put_back(module, tensors)


def is_measured(module: nn.Module) -> bool:
    """Whether `calibrate` sets what a layer holds."""
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    return norm or isinstance(module, Decoupled)


def copies(module: nn.Module) -> dict[str, Tensor]:
    """A copy of every tensor that `calibrate` sets."""
    own = {**module._parameters, **module._buffers}
    return {name: tensor.detach().clone() for name in MEASURED if (tensor := own.get(name)) is not None}


def put_back(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The tensors that `copies` kept into their places."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            getattr(module, name).copy_(tensor)


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """Decoupled layers and batch norms in training mode, begun anew, and averaging all batches alike."""
    momenta: dict[nn.BatchNorm2d, Any] = {}
    handles = []
    try:
        for module in model.modules():
            if isinstance(module, Decoupled):
                module.train()
                module.reset_statistics()
                if module.operator.has_radius and module.operator.radius == "absolute":
                    handles.append(module.register_forward_pre_hook(RadiusFromNorms(), with_kwargs=True))
            elif is_measured(module):
                norm = cast(nn.BatchNorm2d, module).train()
                norm.reset_running_stats()
                momenta[norm], norm.momentum = norm.momentum, None  # None: a cumulative average
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, momentum in momenta.items():
            module.momentum = momentum


class RadiusFromNorms:
    """A hook that sets an absolute ρ to the mean patch norm of all batches so far, before the layer computes."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def __call__(self, layer: Decoupled, inputs: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        x = inputs[0] if inputs else keywords["input"]
        if x.numel() == 0:
            return
        self.total += layer.mean_patch_norm(x).item()
        self.count += 1
        layer.set_radius(torch.tensor(self.total / self.count, dtype=torch.float64))
