"""Several processes on one GPU whose kernels run side by side, where NVIDIA's multi-process service (MPS) can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dcnets.experiments.reproduce import mps

ANSWER, CUDA, QUIT = 10.0, 60.0, 15.0
"""Seconds that the daemon has to answer, CUDA to start under it, and the daemon to go."""
PLACE = "/tmp"
"""Where its folder is made: the path of a socket has to be short."""


@contextmanager
def shared_gpu(told: Callable[[str], None]) -> Iterator[bool]:
    """Within it, processes with this one's `variables` share the GPU; it yields whether they do.

    Their daemon is private to this process, so that no other program's use of the GPU changes. Where CUDA_MPS_PIPE_DIRECTORY
    is set, that daemon is used; where there is none, all goes on without. Either is `told`. A process that has initialised
    CUDA before stays as it is.
    """
    theirs = os.environ.get(mps.PIPES)
    if theirs:
        told(f"the runs share the GPU through your own daemon, {mps.PIPES}={theirs}")
        yield True
        return
    with ExitStack() as ends:
        try:
            if shutil.which(mps.PROGRAM) is None:
                raise mps.MpsError(f"{mps.PROGRAM} is not on PATH")
            folder = ends.enter_context(kept())
            mps.start(folder, ANSWER, CUDA)
        except (mps.MpsError, OSError) as error:
            told(f"the runs take turns on the GPU, as NVIDIA's multi-process service cannot be had: {error}")
            ends.close()
            shared = False
        else:
            ends.callback(adopt, variables())
            adopt(mps.variables(folder))
            shared = True
        yield shared


@contextmanager
def kept() -> Iterator[Path]:
    """A folder for a daemon; both are ended by a process of their own, at the end or when this process dies."""
    folder = Path(tempfile.mkdtemp(prefix="dcnets-", dir=PLACE))
    keeper = subprocess.Popen(
        [sys.executable, "-I", mps.__file__, str(folder), str(QUIT)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield folder
    finally:
        keeper.communicate()  # closes its input, and waits
        if folder.exists():  # it was killed
            mps.end(folder, QUIT)


def variables() -> dict[str, str | None]:
    """What this process has in the service's variables, None where they are not set."""
    return {name: os.environ.get(name) for name in (mps.PIPES, mps.LOGS)}


def adopt(variables: Mapping[str, str | None]) -> None:
    """Give this process another one's variables."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
