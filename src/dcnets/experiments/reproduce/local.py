"""The engine of one device: each run in a process of its own, so that no crash, leak or compiler cache outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dcnets.experiments.reproduce.job import Job
from dcnets.experiments.reproduce.perform import Ended, Order, attempt
from dcnets.experiments.reproduce.place import Place, here
from dcnets.experiments.reproduce.sharing import adopt, shared_gpu, variables

LOG = "log.txt"
"""The file in a run's folder that has what its process would have said."""
PRELOADED = "dcnets.experiments.reproduce.perform"
GRACE, EXIT = 120.0, 20.0
"""Seconds that a run has to save its state when it is told to stop, and its process to end when all is said."""


class Local:
    """Runs in `lanes` processes at a time, forked from a server that has torch imported and no GPU touched."""

    def __init__(self, lanes: int = 1) -> None:
        self.lanes = lanes
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([PRELOADED])
        self.running: dict[Job, tuple[Any, Connection]] = {}
        self.sharing = ExitStack()

    def share(self, told: Callable[[str], None]) -> None:
        """Let runs share the GPU until `close`, or have it `told` why they do not."""
        self.sharing.enter_context(shared_gpu(told))

    def place(self, device: str) -> Place:
        """The device of the runs."""
        return here(device)

    @property
    def free(self) -> bool:
        """Whether another run can be started."""
        return len(self.running) < self.lanes

    @property
    def width(self) -> int:
        """How many runs there is room for: there is one device."""
        return self.lanes

    def start(self, job: Job, order: Order) -> None:
        """Begin a run."""
        own, its = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(job, order, variables(), its), name=job.title)
        process.start()
        its.close()
        self.running[job] = process, own

    def wait(self, seconds: float) -> list[Ended]:
        """The runs that have ended, after so many seconds at most."""
        connection.wait([own for _, own in self.running.values()], timeout=seconds)
        ended = [self.ended(job, process, own) for job, (process, own) in self.running.items() if own.poll()]
        for each in ended:
            self.bury(*self.running.pop(each.job), EXIT)
        return ended

    @staticmethod
    def ended(job: Job, process: Any, own: Connection) -> Ended:
        """What a process says, or what is told of one that ended without a word."""
        try:
            found: Ended = own.recv()
        except EOFError:
            process.join(EXIT)
            code = process.exitcode
            by = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            return Ended(job, "lost", told=f"its process ended {by}; what it said is in {job.folder / LOG}")
        return found

    def stop(self) -> None:
        """Let all runs save their state and end."""
        for process, _ in self.running.values():
            process.terminate()
        for process, _ in self.running.values():
            process.join(GRACE)

    def close(self) -> None:
        """End what still runs, at once, with all that it has started, then the sharing of the GPU."""
        for process, own in self.running.values():
            self.bury(process, own, 0)
        self.running.clear()
        self.sharing.close()

    @staticmethod
    def bury(process: Any, own: Connection, seconds: float) -> None:
        """Wait so long for a process to end, then kill it and its group."""
        own.close()
        process.join(seconds)
        if process.is_alive():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no group of its own yet, or it has just ended
                process.kill()
            process.join(EXIT)


def work(job: Job, order: Order, variables: Mapping[str, str | None], answer: Connection) -> None:
    """The life of a process: a run, its words in a log, and a wish to stop when the parent dies."""
    apart(job.folder / LOG, variables)
    answer.send(attempt(job, order))


def apart(log: Path, variables: Mapping[str, str | None]) -> None:
    """Leave the terminal's group, whose Ctrl-C is the parent's to pass on, and follow the parent into death."""
    os.setsid()
    adopt(variables)  # the server that this process was forked from may be older than what the parent has in them
    multiprocessing.set_start_method(None, force=True)  # what decodes images starts as anywhere, not as this process did
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    threading.Thread(target=follow_parent, daemon=True).start()


def follow_parent() -> None:
    """Ask this process to save and stop once its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
