"""The MNIST network whose features have two dimensions, so that Figs. 1, 6 and 7 can show them as they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from dcnets.checks import whole_number
from dcnets.models.network import Network
from dcnets.models.stages import pooled_stages
from dcnets.models.style import Style, convolution


class Features2d(Network):
    """`Network` that starts with its classes evenly around the circle.

    At random some class would lie behind others, with no direction in which it wins, and take long to come out.
    """

    def initialise(self) -> None:
        super().initialise()
        weight: Any = self.classifier.weight
        angles = torch.arange(len(weight)) * (2 * math.pi / len(weight))
        with torch.no_grad():
            weight.copy_(torch.stack([angles.cos(), angles.sin()], 1))


def features2d(style: Style, num_classes: int, in_channels: int, *, width: int = 16, image_size: int = 28) -> Features2d:
    """[3×3 ×2, 2×2 max pool] of w, 2w and 4w filters, an 8w-dim fully connected layer, two features, classifier.

    The fully connected layer is a convolution as in CNN-9. The layer of the two features is an ordinary linear one: a
    bounded operator would keep them too short to tell ten classes apart, batch norm would centre them, and ReLU keep them
    positive.
    """
    whole_number("width", width)
    whole_number("image_size", image_size, least=16)  # below, the fully connected layer would be 1×1
    layers = pooled_stages(style, in_channels, ((width, 2), (2 * width, 2), (4 * width, 2)))
    layers["fc"] = convolution(style, 4 * width, 8 * width, image_size // 8, padding=0)
    layers["flatten"] = nn.Flatten()
    layers["embedding"] = nn.Linear(8 * width, 2, bias=False)
    return Features2d(layers, 2, num_classes, in_channels=in_channels, image_size=image_size)
