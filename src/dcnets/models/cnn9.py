"""Plain CNN-9: three stages of three convolutions, then a fully connected layer; for attacks half as wide."""

from __future__ import annotations

from torch import nn

from dcnets.checks import whole_number, yes_or_no
from dcnets.models.network import Network
from dcnets.models.stages import pooled_stages
from dcnets.models.style import Style, convolution


def cnn9(
    style: Style, num_classes: int, in_channels: int, *, width: int = 64, image_size: int = 32, fc_relu: bool | None = None
) -> Network:
    """[3×3 ×3, 2×2 max pool] of w, 2w and 4w filters, an 8w-dim fully connected layer, classifier.

    The fully connected layer is a convolution as large as the image that comes to it, 4×4 for 32×32 images, and so is
    decoupled like the others. It has their batch norm, and their ReLU unless `fc_relu` decides otherwise.
    """
    whole_number("width", width)
    whole_number("image_size", image_size, least=16)  # below, the fully connected layer would be 1×1
    if fc_relu is not None:
        yes_or_no("fc_relu", fc_relu)
    layers = pooled_stages(style, in_channels, ((width, 3), (2 * width, 3), (4 * width, 3)))
    layers["fc"] = convolution(style, 4 * width, 8 * width, image_size // 8, padding=0, relu=fc_relu)
    layers["flatten"] = nn.Flatten()
    return Network(layers, 8 * width, num_classes, in_channels=in_channels, image_size=image_size)
