"""Files that outlive a kill and a power cut: on the disk when the call returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def write(path: Path, pieces: Iterable[Any]) -> None:
    """Write a file piece by piece, and wait until it is on the disk."""
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def check_writable(path: Path) -> None:
    """Raise now, before the work, where a file for what comes of it could not be written; folders may be missing."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if there != path and not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(there, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(files: Iterable[Path]) -> None:
    """Remove files, in their order."""
    for file in files:
        file.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """Why the system refused, in words."""
    return FULL.get(error.errno or 0) or error.strerror or str(error)
