"""Residual networks: ResNet-32 for CIFAR, the standard ResNet-18, and the authors' modified ResNet-18."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from dcnets.checks import whole_number
from dcnets.models.network import Network
from dcnets.models.style import Style, convolution, named
from dcnets.naming import choose

VARIANTS = {"table": ((True, 1), (True, 2), (True, 3), (True, 0)), "released": ((False, 1), (True, 2), (True, 3), (True, 1))}
"""Modified ResNet-18, stage by stage: whether a convolution of stride 2 begins it, and how many units follow."""


class ResidualUnit(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes.

    The ReLU after the sum is there where the style has any, except that `relu_after=False` leaves it out.
    """

    def __init__(self, style: Style, before: int, after: int, stride: int = 1, *, relu_after: bool = True) -> None:
        super().__init__()
        self.first = convolution(style, before, after, 3, stride)
        self.second = convolution(style, after, after, 3, relu=False)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else convolution(style, before, after, 1, stride, relu=False)
        self.relu = nn.ReLU() if style.relu and relu_after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.second(self.first(x)) + self.shortcut(x))
        return y


def resnet32(style: Style, num_classes: int, in_channels: int, *, width: int = 96) -> Network:
    """A 3×3 convolution without ReLU, then 3 stages of 5 units with w, 2w and 4w filters."""
    whole_number("width", width)
    stem = convolution(style, in_channels, width, 3, relu=False)
    return residual_network(style, num_classes, in_channels, stem, width, stages=3, units=5)


def resnet18(style: Style, num_classes: int, in_channels: int, *, width: int = 64) -> Network:
    """7×7 of stride 2, 3×3 max pool of stride 2, then 4 stages of 2 units with w, 2w, 4w and 8w filters."""
    whole_number("width", width)
    return residual_network(
        style, num_classes, in_channels, imagenet_stem(style, in_channels, width), width, stages=4, units=2
    )


def residual_network(
    style: Style, num_classes: int, in_channels: int, stem: nn.Module, width: int, *, stages: int, units: int
) -> Network:
    """Stages of units, each twice as wide as the one before and, from the second on, begun with stride 2."""
    layers: dict[str, nn.Module] = {"stem": stem}
    before = width
    for stage in range(stages):
        after, parts = width * 2**stage, dict[str, nn.Module]()
        for unit in range(units):
            parts[f"unit{unit + 1}"] = ResidualUnit(style, before, after, 2 if stage and not unit else 1)
            before = after
        layers[f"stage{stage + 1}"] = named(parts)
    return Network({**layers, "pool": global_average()}, before, num_classes, in_channels=in_channels)


def resnet18_modified(
    style: Style, num_classes: int, in_channels: int, *, width: int = 128, variant: str = "table"
) -> Network:
    """The stem of ResNet-18, then 4 stages of 3×3 convolutions of stride 2 and units with w, 2w, 4w and 8w filters.

    Each ReLU is a PReLU that starts as one, and there is none after the sum of a unit. `variant`: "table" is the paper's
    architecture table, "released" the authors' code, whose first stage has no convolution and whose last has a unit.
    """
    whole_number("width", width)
    stages = VARIANTS[choose("variant", variant, VARIANTS)]
    style = replace(style, prelu=True)
    layers: dict[str, nn.Module] = {"stem": imagenet_stem(style, in_channels, width)}
    before = width
    for stage, (down, units) in enumerate(stages):
        after = width * 2**stage
        parts: dict[str, Any] = {"down": convolution(style, before, after, 3, 2)} if down else {}
        parts |= {f"unit{unit + 1}": ResidualUnit(style, after, after, relu_after=False) for unit in range(units)}
        layers[f"stage{stage + 1}"] = named(parts)
        before = after
    return Network({**layers, "pool": global_average()}, before, num_classes, in_channels=in_channels)


def imagenet_stem(style: Style, in_channels: int, width: int) -> nn.Sequential:
    """7×7 of stride 2 and 3×3 max pool of stride 2: a quarter of the image's side."""
    stem = convolution(style, in_channels, width, 7, 2)
    stem.add_module("pool", nn.MaxPool2d(3, 2, 1))
    return stem


def global_average() -> nn.Sequential:
    """The mean over all positions, one row for each image."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
