"""Buffers that half precision cannot hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def kept_wide(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Around a conversion of a module: buffers of these names that it halves come out in float32, as they were."""
    before = {name: module._buffers.get(name) for name in names}
    yield
    for name, kept in before.items():
        moved = module._buffers.get(name)
        if kept is not None and moved is not None and moved.dtype in (torch.float16, torch.bfloat16):
            module._buffers[name] = kept.to(device=moved.device, dtype=torch.float32)
