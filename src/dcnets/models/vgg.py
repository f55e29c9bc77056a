"""VGG-16, configuration D: thirteen 3×3 convolutions in five stages, and a head of fully connected layers."""

from __future__ import annotations

from torch import nn

from dcnets.checks import share
from dcnets.models.network import Network
from dcnets.models.stages import pooled_stages
from dcnets.models.style import Style, named
from dcnets.naming import choose

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Filters and convolutions of each stage; a 2×2 max pool ends it."""
HIDDEN = 4096


def vgg16(style: Style, num_classes: int, in_channels: int, *, head: str = "large", dropout: float = 0.5) -> Network:
    """Five stages, then the head: "large" for 224×224 images, "small" for 32×32.

    large: average pool to 7×7, two 4096-dim fully connected layers, each with ReLU and dropout; small: global average pool
    and dropout. Neither has batch norm.
    """
    choose("head", head, ("large", "small"))
    share("dropout", dropout)
    layers = pooled_stages(style, in_channels, STAGES)
    width = STAGES[-1][0]
    side = 7 if head == "large" else 1
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())
    if head == "large":
        layers["fc1"] = fully_connected(style, 7 * 7 * width, HIDDEN, dropout)
        layers["fc2"] = fully_connected(style, HIDDEN, HIDDEN, dropout)
        width = HIDDEN
    else:
        layers["dropout"] = nn.Dropout(dropout)
    return Network(layers, width, num_classes, in_channels=in_channels, smallest=32)


def fully_connected(style: Style, before: int, after: int, dropout: float) -> nn.Sequential:
    """A linear layer without bias, its ReLU where the style has any, and dropout."""
    parts: dict[str, nn.Module] = {"linear": nn.Linear(before, after, bias=False)}
    if style.relu:
        parts["relu"] = nn.ReLU()
    return named({**parts, "dropout": nn.Dropout(dropout)})
