"""`fuse`: decoupled layers take what follows them into their own passes over the data, and blocks speak to each other."""

from __future__ import annotations

from torch import nn

from dcnets.fusing.blocks import FusedBlock, FusedSequence, fit
from dcnets.fusing.units import FusedUnit, kind_of


def fuse(model: nn.Module) -> nn.Module:
    """Let decoupled layers be computed together with the batch norm, residual sum and ReLU behind them.

    In the model itself, whose names, parameters and checkpoints stay; the model is returned. It changes what the Triton
    path does and nothing else: see `functional.backend`. For inference fuse a frozen model.

    A block is a decoupled layer with its batch norm, its ReLU, or both, in a row in an `nn.Sequential`, as all of it or as a
    part. The residual units of `dcnets.models`, of torchvision and of timm are made of blocks, the last of which adds the
    shortcut. Blocks that follow each other hand on the sums of squares of their outputs. Modules of other kinds that call
    their layers themselves stay as they are.
    """
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and (kind := kind_for(child)) is not None:
                parent._modules[name] = become(child, kind)
    kind = kind_for(model)
    model = model if kind is None else become(model, kind)
    for module in model.modules():
        if isinstance(module, FusedSequence | FusedUnit):
            module.parts()  # found now, not when torch.compile looks on
    return model


def kind_for(module: nn.Module) -> type[nn.Module] | None:
    """What a module becomes."""
    if type(module) is nn.Sequential:
        return FusedBlock if fit(list(module)) else FusedSequence
    return kind_of(module)


def become(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A module of another class with everything that one has."""
    twin = kind.__new__(kind)
    vars(twin).update(vars(module))
    return twin
