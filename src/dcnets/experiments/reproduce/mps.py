"""A daemon of NVIDIA's multi-process service (MPS) in a folder of its own.

`python mps.py FOLDER SECONDS` ends it once nobody holds its input open any more: so it ends with whoever began it, even if
that process is killed. For that this file needs Python's own library alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
"""The variables by which the daemon and the programs that use it find each other."""
CHOSEN = "CUDA_VISIBLE_DEVICES"
CUDA_STARTS = """
import ctypes, sys
code = ctypes.CDLL("libcuda.so.1").cuInit(0)
sys.exit(f"CUDA error {code}" if code else 0)
"""
LOOK = 0.05


class MpsError(RuntimeError):
    """The service cannot be had; the message says why."""


def variables(folder: Path) -> dict[str, str]:
    """The variables of the daemon in a folder."""
    return {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}


def start(folder: Path, seconds: float, cuda_seconds: float) -> None:
    """Start a daemon that answers within so many seconds, and under which CUDA starts within so many more."""
    ours = variables(folder)
    for path in ours.values():
        Path(path).mkdir()
    call([PROGRAM, "-d"], daemon_environment(os.environ) | ours, seconds)
    until = time.monotonic() + seconds
    while True:
        try:
            ask("get_server_list", folder, seconds)
            break
        except MpsError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK)
    call([sys.executable, "-I", "-c", CUDA_STARTS], os.environ | ours, cuda_seconds, name="CUDA under it")


def daemon_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without a choice of GPUs by number: a daemon would number anew those that its programs choose from."""
    chosen = environment.get(CHOSEN, "")
    by_number = not chosen.startswith(("GPU-", "MIG-"))
    return {name: value for name, value in environment.items() if name != CHOSEN or not by_number}


def ask(command: str, folder: Path, seconds: float) -> None:
    """Give the daemon in a folder a command."""
    call([PROGRAM], os.environ | variables(folder), seconds, said=command)


def call(
    command: list[str], environment: Mapping[str, str], seconds: float, *, said: str = "", name: str = PROGRAM
) -> None:  # fmt: skip
    """Run a program that has to end well within so many seconds."""
    with tempfile.TemporaryFile() as words:  # what a program leaves running would keep a pipe open
        try:
            code = subprocess.run(
                command, input=f"{said}\n".encode(), stdout=words, stderr=subprocess.STDOUT, timeout=seconds,
                env=environment, start_new_session=True,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MpsError(f"{name} does not answer within {seconds:g} seconds") from None
        if code:
            words.seek(0)
            told = words.read().decode(errors="replace").strip().splitlines()
            raise MpsError(f"{name} failed with exit code {code}" + (f": {told[-1]}" if told else ""))


def end(folder: Path, seconds: float) -> None:
    """Let the daemon in a folder quit, kill it if it has not gone after so many seconds, and remove the folder."""
    until = time.monotonic() + seconds
    with suppress(MpsError, OSError):
        ask("quit -t 5", folder, seconds)
    while any(processes(folder)) and time.monotonic() < until:
        time.sleep(LOOK)
    for process in processes(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path) -> Iterator[int]:
    """The daemon in a folder and what it has started."""
    mark = os.fsencode(f"{PIPES}={variables(folder)[PIPES]}")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is another user's
            named = (process / "comm").read_text().startswith("nvidia-cuda-mps")
            if named and mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    end(Path(sys.argv[1]), float(sys.argv[2]))
