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


def calibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Set running norms, absolute radii and batch-norm statistics from a few batches; return the model.

    Each batch is the model's input, or a tuple or list whose first element is. Every decoupled layer's `running_norm`
    becomes the average over the batches, an absolute ρ becomes the mean patch norm that it meets, and batch norm's
    statistics are estimated anew. α and all weights stay as they are, and dropout is off. An absolute ρ that has been
    learned is lost: it is for networks that have just been converted.
    """
    batches = iter(batches)
    try:
        first = next(batches)
    except StopIteration:
        raise ValueError("calibrate got no batches; pass at least one, in a list or from a loader") from None
    with evaluating(model), measuring(model), torch.no_grad():
        for batch in chain([first], batches):
            model(batch[0] if isinstance(batch, tuple | list) else batch)
    return model


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """Decoupled layers and batch norms in training mode, begun anew, and averaging all batches alike."""
    momenta: dict[nn.Module, Any] = {}
    handles = []
    try:
        for module in model.modules():
            if isinstance(module, Decoupled):
                module.train()
                module.reset_statistics()
                if module.operator.has_radius and module.operator.radius == "absolute":
                    handles.append(module.register_forward_pre_hook(RadiusFromNorms(), with_kwargs=True))
            elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                module.train()
                module.reset_running_stats()
                momenta[module], module.momentum = module.momentum, None  # None: a cumulative average
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, momentum in momenta.items():
            cast(nn.BatchNorm2d, module).momentum = momentum


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
