"""Where the images of a shard lie: read off its tar headers once, then remembered."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from dcnets.experiments.data.errors import flaw
from dcnets.experiments.data.listing import IMAGES
from dcnets.experiments.data.places import locate

ADVICE = "write or fetch the shard again"
MOST_CLASSES = 1_000_000
DIGEST = hashlib.sha256().digest_size


def places(shard: Path) -> Tensor:
    """First byte, length and class of each image, int64 (count, 3).

    They are kept in the data folder that `locate` tells, by the shard's path, size and time: a million headers take minutes.
    """
    state = shard.stat()
    key = hashlib.sha256(f"{shard.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()
    kept = locate() / "shards" / f"{key}.index"
    with contextlib.suppress(OSError):
        content = bytearray(kept.read_bytes())
        table, digest = content[:-DIGEST], content[-DIGEST:]
        if table and hashlib.sha256(table).digest() == digest:
            return torch.frombuffer(table, dtype=torch.int64).view(-1, 3)
    found = torch.tensor(scan(shard))
    with contextlib.suppress(OSError):  # a folder that cannot be written costs time, no more
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.part")
        table = bytearray(found.flatten().view(torch.uint8).tolist())
        part.write_bytes(table + hashlib.sha256(table).digest())
        os.replace(part, kept)
    return found


def scan(shard: Path) -> list[tuple[int, int, int]]:
    """First byte, length and class of each image; what belongs together has one name up to the first dot."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, tuple[int, int]] = {}
    with shard.open("rb") as raw:
        try:
            with tarfile.open(fileobj=raw, mode="r:") as tar:
                for member in tar:
                    key, kind = split_name(member.name)
                    if not member.isreg() or kind not in (".cls", *IMAGES):
                        continue
                    place = member.offset_data, member.size
                    if key in (labels if kind == ".cls" else images):
                        raise flaw(str(shard), member.offset, f"{member.name} is the second of its kind", ADVICE)
                    if kind == ".cls":
                        labels[key] = read_class(shard, raw, place)
                    else:
                        images[key] = place
                end = tar.offset
            raw.seek(end)
        except tarfile.TarError as error:
            raise flaw(str(shard), raw.tell(), f"not a readable tar file without compression ({error})", ADVICE) from error
        if raw.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise flaw(str(shard), end, "the shard is damaged here, or cut off", ADVICE)
    if alone := sorted(images.keys() ^ labels.keys()):
        lone = images.get(alone[0]) or labels[alone[0]]
        raise flaw(str(shard), lone[0], f"{alone[0]} lacks its image or its class (.cls)", ADVICE)
    if not images:
        raise flaw(str(shard), 0, "the shard holds no images", ADVICE)
    return [(*place, labels[key][1]) for key, place in images.items()]


def split_name(name: str) -> tuple[str, str]:
    """The name of a sample, and what it is of the sample, in small letters."""
    folder, slash, file = name.rpartition("/")
    key, dot, kind = file.partition(".")
    return folder + slash + key, dot + kind.lower()


def read_class(shard: Path, raw: BinaryIO, place: tuple[int, int]) -> tuple[int, int]:
    """Where a class stands in a shard, and the class."""
    raw.seek(place[0])
    text = raw.read(min(place[1], 32))
    if not text.strip().isdigit() or int(text) >= MOST_CLASSES:
        raise flaw(str(shard), place[0], f"a class is a whole number below {MOST_CLASSES}, got {text!r}", ADVICE)
    return place[0], int(text)
