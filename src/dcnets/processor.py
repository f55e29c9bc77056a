"""What is known of the CPU, as far as a choice between two formulas goes by it."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

LISTED = Path("/proc/cpuinfo")


@functools.cache
def tanh_is_fast() -> bool:
    """Whether torch.tanh takes less time than the same by expm1: on Intel's CPUs, by way of MKL.

    Nanoseconds an element, one thread, torch 2.13: 0.27 against 1.05 on a Xeon with AVX-512, 3.2 against 2.0 on an EPYC.
    """
    told = LISTED.read_text(encoding="utf-8", errors="replace") if LISTED.exists() else platform.processor()
    return torch.backends.mkl.is_available() and "GenuineIntel" in told  # type: ignore[no-untyped-call]
