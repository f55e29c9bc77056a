"""GoogLeNet: nine inception modules, with auxiliary classifiers where they are asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dcnets.checks import share, yes_or_no
from dcnets.models.network import Network
from dcnets.models.style import Style, convolution, named
from dcnets.models.vgg import fully_connected

INCEPTIONS = {
    "inception3a": (64, 96, 128, 16, 32, 32), "inception3b": (128, 128, 192, 32, 96, 64),
    "inception4a": (192, 96, 208, 16, 48, 64), "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64), "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "inception5a": (256, 160, 320, 32, 128, 128), "inception5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip
"""Filters of each module: 1×1; 3×3's reduction and 3×3; 5×5's reduction and 5×5; the pool's projection."""
POOLED_AFTER = ("inception3b", "inception4e")
AUXILIARY_AFTER = {"inception4a": "auxiliary1", "inception4d": "auxiliary2"}


class Inception(nn.Module):
    """1×1, 3×3 and 5×5 convolutions and a max pool side by side; 1×1 convolutions keep the larger ones cheap."""

    def __init__(self, style: Style, before: int, filters: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, projection = filters
        self.branch1 = convolution(style, before, one, 1)
        self.branch3 = named(
            {"reduce": convolution(style, before, reduce3, 1), "spatial": convolution(style, reduce3, three, 3)}
        )
        self.branch5 = named(
            {"reduce": convolution(style, before, reduce5, 1), "spatial": convolution(style, reduce5, five, 5)}
        )
        self.branch_pool = named({"pool": nn.MaxPool2d(3, 1, 1), "project": convolution(style, before, projection, 1)})
        self.width = one + three + five + projection

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], 1)


class Auxiliary(nn.Module):
    """A classifier on what the middle of the network has found: average pool to 4×4, 1×1-128, 1024-dim, dropout 0.7."""

    def __init__(self, style: Style, before: int, num_classes: int) -> None:
        super().__init__()
        self.conv = convolution(style, before, 128, 1)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.fc = fully_connected(style, 4 * 4 * 128, 1024, 0.7)
        self.classifier = nn.Linear(1024, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.fc(self.conv(self.pool(x)).flatten(1)))
        return logits


class GoogLeNet(Network):
    """`Network` whose training gives (logits, first auxiliary logits, second) where it has auxiliary classifiers."""

    def auxiliaries(self) -> dict[str, nn.Module]:
        """The auxiliary classifiers, each under the name of the module that it follows."""
        return {after: getattr(self, name) for after, name in AUXILIARY_AFTER.items() if hasattr(self, name)}

    def forward(self, x: Tensor) -> Any:
        auxiliaries = self.auxiliaries()
        if not (self.training and auxiliaries):
            return super().forward(x)
        self.check_images(x)
        logits = []
        for name in self.order:
            x = getattr(self, name)(x)
            if name in auxiliaries:
                logits.append(auxiliaries[name](x))
        return self.classifier(x), *logits


def googlenet(
    style: Style, num_classes: int, in_channels: int, *, auxiliary: bool = False, dropout: float = 0.4
) -> GoogLeNet:
    """7×7-64 of stride 2, max pool, 1×1-64, 3×3-192, max pool, nine inception modules, global average pool, dropout.

    Batch norm stands in the place of the original's local response normalisation. `auxiliary`: two classifiers on the way,
    whose logits come as well in training; their losses usually count 0.3 each.
    """
    yes_or_no("auxiliary", auxiliary)
    share("dropout", dropout)
    layers: dict[str, nn.Module] = {
        "stem": named({
            "conv1": convolution(style, in_channels, 64, 7, 2), "pool1": nn.MaxPool2d(3, 2, 1),
            "conv2": convolution(style, 64, 64, 1), "conv3": convolution(style, 64, 192, 3), "pool2": nn.MaxPool2d(3, 2, 1),
        })
    }  # fmt: skip
    before, heads = 192, dict[str, nn.Module]()
    for name, filters in INCEPTIONS.items():
        layers[name] = module = Inception(style, before, filters)
        before = module.width
        if auxiliary and name in AUXILIARY_AFTER:
            heads[AUXILIARY_AFTER[name]] = Auxiliary(style, before, num_classes)
        if name in POOLED_AFTER:
            layers[f"pool{name[-2]}"] = nn.MaxPool2d(3, 2, 1)
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
    network = GoogLeNet(layers, before, num_classes, in_channels=in_channels)
    for name, head in heads.items():
        network.add_module(name, head)
    return network
