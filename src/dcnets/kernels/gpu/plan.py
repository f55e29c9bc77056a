"""How passes over a layer are cut into programs."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch

from dcnets.kernels.gpu import angulars, magnitudes
from dcnets.kernels.gpu.launcher import ceiling, power_of_two
from dcnets.kernels.gpu.layout import Steps, steps
from dcnets.patches import Shape

WIDEST = 128
"""The most filters of a tile."""


@functools.lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """How many multiprocessors there are; on a CPU, where the interpreter runs one program after another, some."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.lru_cache(maxsize=1024)
def width_of(filters: int) -> int:
    """How many filters a tile has: a power of two that divides them where there is one of 16 or more."""
    dividing = filters & -filters
    return min(WIDEST, dividing if dividing >= 16 else power_of_two(filters))


class Tiling(NamedTuple):
    """How a pass is cut into programs: elements of a tile, warps, tiles on their way at once, programs a processor."""

    elements: int
    warps: int
    stages: int
    programs: int


class Plan:
    """Everything about the passes over a layer's z that does not depend on what is in it."""

    def __init__(
        self, shape: Shape, strides: Shape, dtype: torch.dtype, device: torch.device, h: str, g: str, kinds: int, groups: int
    ) -> None:
        found = steps(shape, strides)
        assert found is not None
        self.steps, self.groups, self.device = found, groups, device
        self.filters = shape[1] // groups
        self.positions = math.prod(shape[2:])
        self.rows = shape[0] * self.positions
        self.width = width_of(self.filters)
        self.chunks = ceiling(self.filters, self.width)
        self.sizes = (self.rows, self.positions, groups, self.filters, *found)
        self.common = {
            "H": magnitudes.TWINS[h], "G": angulars.TWINS[g], "KINDS": kinds, "WIDTH": self.width, "CHUNKS": self.chunks,
            "FAST": device.type == "cuda" and dtype.itemsize == 2,
        }  # fmt: skip
        self.cuts: dict[Any, dict[str, Any]] = {}

    def cut(self, tiling: Tiling, *others: Steps) -> dict[str, Any]:
        """The constants of a pass over z and tensors with other steps, all of them for `run`."""
        if (key := (tiling, others)) not in self.cuts:
            rows, found = max(1, tiling.elements // self.width), (self.steps, *others)
            self.cuts[key] = {
                **self.common, "ROWS": rows, "STAGES": tiling.stages,
                "FLAT": self.groups == 1 and all(batch == self.positions * position for batch, position, _ in found),
                "WHOLE": self.rows % rows == 0 and self.filters % self.width == 0,
            }  # fmt: skip
        return self.cuts[key]

    def walk(self, tiling: Tiling) -> tuple[int, int, int]:
        """The grid of programs that walk over tiles."""
        lanes = self.groups * self.chunks
        tiles = ceiling(self.rows, max(1, tiling.elements // self.width))
        return min(tiles, ceiling(tiling.programs * processors(self.device), lanes)), lanes, 1


plan_for = functools.lru_cache(maxsize=1024)(Plan)
