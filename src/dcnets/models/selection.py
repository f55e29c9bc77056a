"""Which layers of a network are decoupled: the authors' choice, all convolutions, or everything."""

from __future__ import annotations

from torch import nn

from dcnets.conversion import Select


def spatial(name: str, module: nn.Module) -> bool:
    """Every convolution larger than 1×1, the authors' choice: neither shortcuts nor the classifier."""
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1


def convolutions(name: str, module: nn.Module) -> bool:
    """Every convolution."""
    return isinstance(module, nn.Conv2d)


def everything(name: str, module: nn.Module) -> bool:
    """Convolutions and fully connected layers, the classifier too."""
    return True


SELECTIONS: dict[str, Select] = {"spatial": spatial, "convolutions": convolutions, "all": everything}
