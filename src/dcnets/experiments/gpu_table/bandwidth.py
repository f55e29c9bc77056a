"""The bandwidth of each Triton pass over a layer, against that of a copy on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dcnets.experiments.gpu_table.conditions import conditions, precision
from dcnets.experiments.gpu_table.ready import captured
from dcnets.experiments.gpu_table.rows import BANDWIDTH
from dcnets.experiments.gpu_table.timing import in_turns

SHAPES = ((512, 96, 32, 32), (512, 384, 8, 8))
"""The first and the last stage of the ResNet-32."""
BLOCKS = 256
"""Partial sums of the norms that the passes over a layer are given."""
UNCACHED = 2**28
"""Bytes that no GPU keeps near its processors: the tensors of a pass are together as large, so that it reads memory."""

Pass = tuple[int, Callable[[], object]]
"""How many tensors as large as z are read and written, and what does it."""


def bandwidth(shape: tuple[int, ...], device: torch.device) -> Iterator[dict[str, Any]]:
    """GB/s of each Triton pass over a layer's products of a shape, against a copy of a tensor of that shape.

    Tensors as large as z are counted, those with one element a position or a filter are not.
    """
    size = math.prod(shape) * precision(device).itemsize
    layers = [passes(shape, device) for _ in range(math.ceil(UNCACHED / size))]
    (moved, _), copy = layers[0]["copy"], all_of("copy", layers, device)
    for name, (tensors, _) in layers[0].items():
        if name == "copy":
            continue
        found = in_turns(copy, all_of(name, layers, device), device)
        rates = [
            1e-6 * len(layers) * size * count / found[side] for count, side in ((moved, "baseline"), (tensors, "measured"))
        ]
        yield {
            "row": BANDWIDTH, "what": f"{name}, {'×'.join(map(str, shape))}", "shape": shape, "tensors": tensors,
            **conditions(device), "milliseconds": found["measured"] / len(layers), "unit": "GB/s", "baseline": rates[0],
            "measured": rates[1], "ratio": rates[1] / rates[0], "control": 1 / found["control"], "bar": None,
            "stretch": None,
        }  # fmt: skip


def all_of(name: str, layers: list[dict[str, Pass]], device: torch.device) -> Callable[[], object]:
    """One pass over all layers, whose results are in memory at once."""
    return captured(lambda: [layer[name][1]() for layer in layers], device)


def passes(shape: tuple[int, ...], device: torch.device) -> dict[str, Pass]:
    """The Triton passes over a layer of tanh-cosine with batch norm and ReLU behind it, and a copy."""
    from dcnets.kernels.gpu.launch import Layer, Norm

    batch, filters, height, width = shape

    def random() -> Tensor:
        return torch.randn(shape, device=device, dtype=precision(device)).to(memory_format=torch.channels_last)

    z, dy, y, residual = random(), random(), random(), random()
    n = 1 + torch.rand(batch, 1, 1, height, width, device=device)
    partials = (n.sum() / BLOCKS).repeat(BLOCKS)
    m, dsums = n.mean(), torch.randn(batch, 1, height * width, device=device)
    gamma, beta, raw = torch.ones(filters, device=device), torch.zeros(filters, device=device), n.new_ones(filters)
    layer = Layer(z, n, "tanh", "cosine", {"rho": raw}, True, True, 1)
    moments = layer.statistics(None, m, partials)
    norm = Norm(moments[0], moments[1], gamma, 1e-3)
    sums, _ = layer.gradient_sums(dy, dsums, None, m, beta, norm, True)
    return {
        "copy": (2, z.clone),
        "statistics": (1, lambda: layer.statistics(None, m, partials)),
        "respond": (2, lambda: layer.respond(m, m, partials, beta, norm, None, True, True)),
        "respond with a residual": (3, lambda: layer.respond(m, m, partials, beta, norm, residual, True, True)),
        "gradient_sums": (2, lambda: layer.gradient_sums(dy, dsums, None, m, beta, norm, True)),
        "gradient_sums with a residual": (4, lambda: layer.gradient_sums(dy, dsums, y, m, beta, norm, True)),
        "respond_backward": (3, lambda: layer.respond_backward(dy, dsums, m, beta, norm, sums, True, ["rho"])),
    }  # fmt: skip
