"""Stages of 3×3 convolutions that each end in a 2×2 max pool, as CNN-9 and VGG have them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from dcnets.models.style import Style, convolution, named


def pooled_stages(style: Style, before: int, stages: Iterable[tuple[int, int]]) -> dict[str, nn.Module]:
    """`stage1`, `stage2`, …, for each its filters and its number of convolutions, `conv1`, `conv2`, …."""
    layers: dict[str, nn.Module] = {}
    for stage, (after, count) in enumerate(stages, 1):
        parts: dict[str, nn.Module] = {}
        for i in range(1, count + 1):
            parts[f"conv{i}"] = convolution(style, before, after, 3)
            before = after
        layers[f"stage{stage}"] = named({**parts, "pool": nn.MaxPool2d(2)})
    return layers
