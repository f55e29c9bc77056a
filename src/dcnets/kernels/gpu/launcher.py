"""How a program gets onto the device: Triton's own way first, which compiles, and then without looking again.

Triton looks at every argument of every call, which in eager mode takes longer than the GPU has work. Here a call that was
made before finds its kernel at once. While torch.compile traces, a call is written into its graph instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import wrap_triton

LAUNCHES: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
"""Compiled kernels, ready for a grid, and what follows the tensors in a call, by everything but the tensors' places."""
MOST = 10_000
"""Launches that are remembered before all are forgotten."""
USUAL_WARPS = 4
"""What Triton takes where nothing is said."""

_traced = False


@contextmanager
def traced() -> Iterator[None]:
    """Meanwhile launches are written into the graph that torch is tracing."""
    global _traced
    before, _traced = _traced, True
    try:
        yield
    finally:
        _traced = before


def run(
    program: Any, grid: tuple[int, int, int], tensors: tuple[Any, ...], numbers: tuple[float, ...],
    constants: dict[str, Any], warps: int = USUAL_WARPS,
) -> None:  # fmt: skip
    """Launch a program on the current stream: its arguments are tensors (or numbers in their place), numbers, constants."""
    if not isinstance(program, triton.JITFunction):
        program[grid](*tensors, *numbers, **constants)  # Triton's interpreter
        return
    if _traced:
        others = {} if warps == USUAL_WARPS else {"num_warps": warps}
        wrap_triton(program)[grid](*tensors, *numbers, **constants, **others)
        return
    places, traits, bits = [], [], 0
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            places.append(place := tensor.data_ptr())
            traits.append(tensor.dtype)
            bits |= place
        else:
            places.append(tensor)
            traits.append(tensor)
    key = (id(program), torch._C._cuda_getDevice(), warps, grid, numbers, *traits, *constants.values())
    found = LAUNCHES.get(key)
    if found is None or bits & 15:  # Triton compiles for tensors that begin at multiples of 16 bytes, or do not
        kernel = program[grid](*tensors, *numbers, **constants, num_warps=warps)
        if not bits & 15:
            if len(LAUNCHES) >= MOST:
                LAUNCHES.clear()
            given = len(tensors) + len(numbers)
            LAUNCHES[key] = kernel[grid], (*numbers, *(constants[name] for name in program.arg_names[given:]))
        return
    launch, rest = found
    launch(*places, *rest)


def ceiling(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, least - 1).bit_length()
