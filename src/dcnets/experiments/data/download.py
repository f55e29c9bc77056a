"""Downloads: to a temporary name, resumed where they broke off, checked, then renamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from io import BufferedRandom
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dcnets.experiments.data.catalogue import Remote
from dcnets.experiments.data.errors import DataError

try:
    import fcntl
except ImportError:  # a system without file locks: there, the checksum tells when two processes wrote one file
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[str, int, int | None], None]
"""(what is worked on, how much of it is done, of how much if that is known)."""
SECONDS = 30
"""How long a server may be silent."""
ATTEMPTS = 3
"""How many connections to one address may break off."""
BLOCK = 1 << 18
NOTHING_THERE = 416
PART_FOLLOWS = 206


def fetch(remote: Remote, folder: Path, progress: Progress | None = None) -> Path:
    """The file's path below the data folder; what is not there is downloaded from the first address that has it."""
    target = folder / remote.path
    if target.exists():
        return target
    part = target.with_name(target.name + ".part")
    problems = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(part) as file:
            for address in remote.addresses:
                if target.exists():  # another process had it first
                    return target
                try:
                    complete(file, address, remote.md5, lambda *done: progress(target.name, *done) if progress else None)
                except (OSError, HTTPException, DataError) as error:
                    problems.append(f"{address}: {error}")
                else:
                    os.fsync(file.fileno())
                    os.replace(part, target)
                    return target
    except OSError as error:
        problems.append(str(error))
    raise DataError(f"cannot download {target.name} ({'; '.join(problems)}); {by_hand(remote, folder)}")


def by_hand(remote: Remote, folder: Path) -> str:
    """What to do without a network."""
    return f"fetch {remote.addresses[0]} (MD5 {remote.md5}) by other means and put it at {folder / remote.path}"


@contextmanager
def alone(part: Path) -> Iterator[BufferedRandom]:
    """The unfinished file, open for this process alone."""
    with part.open("a+b") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def complete(file: BufferedRandom, address: str, md5: str, progress: Callable[[int, int | None], None]) -> None:
    """Add to the file what it lacks, in several connections if need be, and check it; a wrong file is emptied."""
    resumed = file.seek(0, os.SEEK_END) > 0
    for attempt in range(1, ATTEMPTS + 1):
        try:
            receive(file, address, progress)
        except (ConnectionError, TimeoutError, HTTPException):
            if attempt == ATTEMPTS:
                raise
            continue
        file.seek(0)
        came = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if came == md5:
            return
        file.truncate(0)
        if not resumed:
            break
        resumed = False  # the old beginning may be at fault: once more from the start
    raise DataError(f"MD5 is {came}, expected {md5}; the file there is another one, or it was changed on its way")


def receive(file: BufferedRandom, address: str, progress: Callable[[int, int | None], None]) -> None:
    """One connection: append what comes after the bytes that are there, or everything if the server starts over."""
    done = file.seek(0, os.SEEK_END)
    wanted = {"Range": f"bytes={done}-"} if done else {}
    try:
        response = urlopen(Request(address, headers={"User-Agent": "dcnets", **wanted}), timeout=SECONDS)
    except HTTPError as error:
        error.close()
        if done and error.code == NOTHING_THERE:
            return  # nothing after these bytes: the checksum tells whether they are the file
        raise
    with response:
        if not (response.status == PART_FOLLOWS and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")):
            file.truncate(0)
            done = 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        progress(done, total)
        while block := response.read(BLOCK):
            file.write(block)
            done += len(block)
            progress(done, total)
        file.flush()
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke off at byte {done} of {total}; the next attempt goes on from there")
