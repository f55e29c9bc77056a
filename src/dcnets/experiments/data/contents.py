"""The bytes of a file as it is, of a gzipped one, and of members of an archive, without unpacking to disk."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from dcnets.experiments.data.errors import DataError, flaw

BROKEN = (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile)
"""What a damaged compressed file raises."""


def read(path: Path) -> bytearray:
    """All bytes of a file, unpacked where its name ends in .gz."""
    with path.open("rb") as raw:
        if path.suffix != ".gz":
            return bytearray(raw.read())
        content = bytearray()
        with gzip.GzipFile(fileobj=raw) as unpacked:
            try:
                while block := unpacked.read(1 << 20):
                    content += block
            except BROKEN as error:
                raise flaw(str(path), raw.tell(), f"the gzip file is damaged ({error})") from error
        return content


def members(archive: Path, names: Sequence[str]) -> dict[str, bytearray]:
    """The bytes of the named regular files in a .tar.gz; whatever else it holds is passed over, and nothing is written."""
    found: dict[str, bytearray] = {}
    with archive.open("rb") as raw:
        try:
            with tarfile.open(fileobj=raw, mode="r:gz") as tar:
                for member in tar:
                    name = member.name.removeprefix("./")
                    if name in names and member.isreg() and (file := tar.extractfile(member)):
                        found[name] = bytearray(file.read())
        except BROKEN as error:
            raise flaw(str(archive), raw.tell(), f"the archive is damaged ({error})") from error
    for name in names:
        if name not in found:
            raise DataError(f"{archive} has no {name}; it is cut off or another archive: delete it and fetch it again")
    return found
