"""Checkpoints that survive a kill at any instant: one file each, visible when it is whole, the one before it kept.

Tensors and JSON share one safetensors file (the JSON is in its header): of two files, one could be there without the other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dcnets.experiments.durable import reason, remove, sync, write
from dcnets.experiments.tensor_file import DamagedError, is_whole, pack, unpack, verify

FORMAT, VERSION = "dcnets checkpoint", "1"
NAME = re.compile(r"step-(\d{9,})\.safetensors")
UNFINISHED = ".unfinished"
"""What the name of a file ends in while it is written."""
ATTEMPTS = 10
"""How often a reader looks again when a writer has removed what it was about to read."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, read or used; the message says what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """What `save` was given, the tensors on the CPU; `note` tells of damaged newer files that were passed over."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    path: Path
    note: str | None = None


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint, and return when it is on the disk; the one before it is kept, all others of the folder go.

    Checkpoints of later steps go too: whoever saves step 5 after step 9 has gone back. Values of tensors and floats in
    `state`, which is JSON, come back bit for bit, inf and nan too; tuples come back as lists. One process writes a folder.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be a whole number, 0 or more, got {step!r}")
    texts = {"format": FORMAT, "version": VERSION, "step": str(step), "state": json.dumps(state)}
    pieces = pack(tensors, texts)
    path = folder / f"step-{step:09}.safetensors"
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove(unfinished_files(folder))
        write(unfinished, pieces)
        os.replace(unfinished, path)
        sync(folder)
        older = [file for file in found(folder) if step_of(file) < step]
        kept = next((file for file in reversed(older) if is_whole(file)), None)
        remove(file for file in found(folder) if file not in (path, kept))
    except OSError as error:
        last = found(folder)[-1:]
        kept_safe = f"the last checkpoint, {last[0].name}, is untouched" if last else "there is no checkpoint before it"
        raise CheckpointError(
            f"{path} was not written: {reason(error)}; {kept_safe}; mend it, then run the same command again"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return path


def latest(folder: Path) -> Checkpoint | None:
    """The newest good checkpoint, or None where there is none; a CheckpointError where all are damaged.

    A file of another program or version is an error at once: to go on from an older one would throw work away.
    """
    for _ in range(ATTEMPTS):
        damaged: list[str] = []
        with suppress(FileNotFoundError):
            for path in reversed(found(folder)):
                try:
                    checkpoint = load(path)
                except DamagedError as error:
                    damaged.append(f"{path.name} {error}")
                    continue
                if not damaged:
                    return checkpoint
                note = f"{'; '.join(damaged)}; going on from {path.name}"
                return Checkpoint(checkpoint.step, checkpoint.tensors, checkpoint.state, path, note)
            if damaged:
                raise CheckpointError(f"no good checkpoint in {folder}: {'; '.join(damaged)}; use another folder or --fresh")
            return None
    raise CheckpointError(f"the checkpoints in {folder} vanish faster than they can be read; is a run writing there?")


def discard(folder: Path) -> None:
    """Remove all checkpoints of a folder, finished or not."""
    remove([*unfinished_files(folder), *found(folder)])


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and compare its checksum."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise CheckpointError(f"{path} cannot be read: {reason(error)}") from error
    except OSError as error:
        raise DamagedError(f"cannot be read ({reason(error)})") from error
    tensors, texts = unpack(data)
    if texts.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of dcnets; move it away, or use another folder")
    if texts.get("version") != VERSION:
        raise CheckpointError(
            f"{path} is a checkpoint of version {texts.get('version')}, this dcnets reads version {VERSION}; "
            "go on with the dcnets that wrote it, or use another folder or --fresh"
        )
    verify(tensors, texts)
    if int(texts["step"]) != step_of(path):
        raise DamagedError(f"holds step {texts['step']}, which is not what its name says")
    return Checkpoint(int(texts["step"]), tensors, json.loads(texts["state"]), path)


def found(folder: Path) -> list[Path]:
    """The files named as checkpoints, oldest step first."""
    return sorted((folder / name for name in names_in(folder) if NAME.fullmatch(name)), key=step_of)


def unfinished_files(folder: Path) -> list[Path]:
    """What killed processes have left."""
    endings = (name.removesuffix(UNFINISHED) for name in names_in(folder) if name.endswith(UNFINISHED))
    return [folder / (name + UNFINISHED) for name in endings if NAME.fullmatch(name)]


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none where it is not there."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {reason(error)}") from error


def short_name(path: Path) -> str:
    """A checkpoint by its run's folder and its own name, wherever that lies."""
    return f"{path.parent.name}/{path.name}"


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step-").removesuffix(".safetensors"))
