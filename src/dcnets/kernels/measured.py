"""Where the Triton path was measured to be faster: what `backend("auto")` decides by.

A GPU or a mode that is not here keeps to torch until somebody measures it, and can be asked for Triton by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MILLISECONDS = {
    ("NVIDIA H200", "compiled", "layer"): (37.3, 68.0),
    ("NVIDIA H200", "compiled", "block"): (36.6, 24.0),
}
"""By GPU, mode, and whether it is a layer alone or a block that `fuse` has made: a training step along torch's path and
along Triton's. ResNet-32 of TanhConv layers with cosine, batch 512, bf16, torch 2.11, triton 3.6, 2026-11-16; that of layers
alone before a graph had the launches themselves. The GPU table has them all: `reference`, `resnet32` and `layers` are
compiled, `eager-torch`, `eager` and `eager-layers` are not.
"""

FASTER = {case for case, (along_torch, along_triton) in MILLISECONDS.items() if along_triton < along_torch}


def triton_is_faster(device: int, block: bool) -> bool:
    """Whether the table says so; `device` is the GPU's index."""
    case = "compiled" if torch.compiler.is_compiling() else "eager", "block" if block else "layer"
    known = any(each[1:] == case for each in FASTER)  # the GPU is asked for its name only where it matters
    return known and (torch.cuda.get_device_name(device), *case) in FASTER


@contextmanager
def unmeasured() -> Iterator[None]:
    """Meanwhile "auto" decides as on a GPU that nobody has measured: for torch."""
    global FASTER
    before, FASTER = FASTER, set()
    try:
        yield
    finally:
        FASTER = before
