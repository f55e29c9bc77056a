"""Where the Triton path was measured to be faster: what `backend("auto")` decides by."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import torch

H200 = "NVIDIA H200"
MILLISECONDS = {
    (H200, "compiled", "layer"): (36.6, 28.9),
    (H200, "compiled", "block"): (36.6, 24.0),
    (H200, "eager", "layer"): (141.7, 38.3),
    (H200, "eager", "block"): (141.7, 28.4),
}
"""By GPU, mode, and whether it is a layer alone or a block that `fuse` has made: a training step along torch's path and
along Triton's. ResNet-32 of TanhConv layers with cosine, batch 512, bf16, torch 2.11, triton 3.6, 2026-11-16; the ordinary
network's step took 23.4 ms compiled and 27.7 ms in eager mode. In the GPU table `reference`, `layers` and `resnet32` are
compiled, `eager-torch`, `eager-layers` and `eager` are not.
"""
PROGRAMMABLE = (8, 0)
"""The least compute capability of a GPU that nobody has measured for which the figures of the H200 stand."""

FASTER = {case for case, (along_torch, along_triton) in MILLISECONDS.items() if along_triton < along_torch}


def triton_is_faster(device: int, block: bool, groups: int) -> bool:
    """Whether the table says so; `device` is the GPU's index. Layers with groups were not measured, and take torch."""
    if groups != 1:
        return False
    mode, kind = "compiled" if torch.compiler.is_compiling() else "eager", "block" if block else "layer"
    return (measured_as(device), mode, kind) in FASTER


def measured_as(device: int) -> str | None:
    """The GPU of the table whose figures stand for a device; None where Triton might not run at all."""
    return looked_up(device)


# what torch.compiler.assume_constant_result does, but that it loads the compiler
measured_as._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def looked_up(device: int) -> str | None:
    """The same, found out; torch's compiler does not look into caches."""
    name = torch.cuda.get_device_name(device)
    if name in {gpu for gpu, _, _ in MILLISECONDS}:
        return name
    runs = importlib.util.find_spec("triton") and not torch.version.hip
    return H200 if runs and torch.cuda.get_device_capability(device) >= PROGRAMMABLE else None


@contextmanager
def unmeasured() -> Iterator[None]:
    """Meanwhile "auto" decides for torch."""
    global FASTER
    before, FASTER = FASTER, set()
    try:
        yield
    finally:
        FASTER = before
