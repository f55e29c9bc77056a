"""A run's folder belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
"""The file in a run's folder that its process holds, and that has its number."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder; who comes second says so and waits, and then goes on where the first one ended."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            number = os.pread(descriptor, 20, 0).decode().strip()
            holder = f"process {number}" if number else "another process"
            print(f"{folder} is in use: waiting for {holder}, whose run this one goes on with", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
