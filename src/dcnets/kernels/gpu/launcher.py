"""How a program gets onto the device: Triton's own way first, which compiles, and then without looking again.

Triton looks at every argument of every call, which in eager mode takes longer than the GPU has work. Here a call that was
made before finds its kernel at once. While torch.compile traces, a call is written into its graph instead.
"""

from __future__ import annotations

import functools
import threading
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


class Watch(threading.local):
    """What becomes of this thread's launches."""

    traced = False
    recorder: Any = None


WATCH = Watch()


@contextmanager
def traced() -> Iterator[None]:
    """Meanwhile launches are written into the graph that torch is tracing."""
    before, WATCH.traced = WATCH.traced, True
    try:
        yield
    finally:
        WATCH.traced = before


@contextmanager
def recorded_by(recorder: Any) -> Iterator[None]:
    """Meanwhile a recorder is told of launches."""
    before, WATCH.recorder = WATCH.recorder, recorder
    try:
        yield
    finally:
        WATCH.recorder = before


def at_home(t: Tensor) -> bool:
    """Whether launches go to the device of t: Triton's go to the current one."""
    device = t.get_device()
    return device < 0 or device == torch._C._cuda_getDevice()


def run(
    program: Any, grid: tuple[int, int, int], tensors: tuple[Any, ...], numbers: tuple[float, ...],
    constants: dict[str, Any], warps: int = USUAL_WARPS,
) -> None:  # fmt: skip
    """Launch a program on the current stream: its arguments are tensors (or numbers in their place), numbers, constants."""
    if not isinstance(program, triton.JITFunction):
        launch = functools.partial(interpret, program[grid], numbers, constants)
        launch(*tensors)
        if WATCH.recorder:
            WATCH.recorder.launched(tensors, launch, None)
        return
    if WATCH.traced:
        others = {} if warps == USUAL_WARPS else {"num_warps": warps}
        wrap_triton(program)[grid](*tensors, *numbers, **constants, **others)
        return
    if not at_home(tensors[0]):
        with torch.cuda.device(tensors[0].device):
            run(program, grid, tensors, numbers, constants, warps)
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
            rest = (*numbers, *(constants[name] for name in program.arg_names[given:]))
            found = LAUNCHES[key] = kernel[grid], rest
    else:
        found[0](*places, *found[1])
    if WATCH.recorder:
        WATCH.recorder.launched(tensors, *(found if found and not bits & 15 else (None, None)))


def interpret(program: Any, numbers: tuple[float, ...], constants: dict[str, Any], *tensors: Any) -> None:
    """Launch by Triton's interpreter."""
    program(*tensors, *numbers, **constants)


def ceiling(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, least - 1).bit_length()
