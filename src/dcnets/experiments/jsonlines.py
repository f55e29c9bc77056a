"""Files with one JSON object a line: lines are added whole, also by several processes, and a torn one is told, not fatal."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add one line; it is in the file, whole, when this returns, or the file is as it was and an OSError says why."""
    data = encode(line)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # what a killed process left stays a line of its own
            data = b"\n" + data
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """All lines; one that is torn or no JSON object is left out, with a warning that gives its number."""
    lines = []
    for number, data in enumerate(path.read_bytes().split(b"\n"), 1):
        if data.strip():
            line = decode(data)
            if line is None:
                warnings.warn(f"{path}, line {number} is torn and left out: {data[:60]!r}", stacklevel=2)
            else:
                lines.append(line)
    return lines


def read_and_tell(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All lines of a file, none where it is not there, and what is told of torn ones."""
    if not path.exists():
        return [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lines = read(path)
    return lines, [str(each.message) for each in caught]


def encode(line: Mapping[str, Any]) -> bytes:
    """One line of strict JSON, its end included."""
    return json.dumps(plain(line), ensure_ascii=False).encode() + b"\n"


def decode(data: bytes) -> dict[str, Any] | None:
    """The object of one line, or None where there is no whole one."""
    try:
        line = json.loads(data)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def plain(value: Any) -> Any:
    """The value as JSON has it: numbers that are not finite as "nan", "inf", "-inf"; one-element tensors as their number."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
