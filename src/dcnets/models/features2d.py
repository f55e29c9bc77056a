"""The MNIST network whose features have two dimensions, so that Figs. 1, 6 and 7 can show them as they are."""

from __future__ import annotations

from torch import nn

from dcnets.models.checks import whole_number
from dcnets.models.network import Network
from dcnets.models.style import Style, convolution, named


def features2d(style: Style, num_classes: int, in_channels: int, *, width: int = 16, image_size: int = 28) -> Network:
    """[3×3 ×2, 2×2 max pool] of w, 2w and 4w filters, a fully connected layer of two outputs, classifier.

    The two outputs are the features: neither batch norm nor ReLU follows, which would centre them or keep them positive.
    """
    whole_number("width", width)
    whole_number("image_size", image_size, least=16)  # below, the fully connected layer would be 1×1
    layers: dict[str, nn.Module] = {}
    before = in_channels
    for stage, after in enumerate((width, 2 * width, 4 * width), 1):
        parts = {f"conv{i}": convolution(style, before if i == 1 else after, after, 3) for i in (1, 2)}
        layers[f"stage{stage}"] = named({**parts, "pool": nn.MaxPool2d(2)})
        before = after
    layers["fc"] = nn.Conv2d(before, 2, image_size // 8, bias=False)
    layers["flatten"] = nn.Flatten()
    return Network(layers, 2, num_classes, in_channels=in_channels, image_size=image_size)
