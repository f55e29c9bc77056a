"""A study in several processes: each has images and networks of its own, and takes the next task when it is free."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from dcnets.experiments import data
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.robustness.study.tasks import Task
from dcnets.experiments.robustness.study.work import Book, Done, Ended, Tell, attempt

EXIT = 20.0
"""Seconds that a process has to end when there is nothing left to do."""


@dataclass(frozen=True)
class Place:
    """What a process needs to open its arena: the data, which is there, the device, and its threads on a CPU."""

    data: str
    folder: Path | None
    device: str
    batch: int
    images: int | None
    threads: int

    def opened(self) -> Arena:
        """The arena."""
        torch.set_num_threads(self.threads)
        loaded = data.load(self.data, self.folder, download=False)
        return Arena(loaded, torch.device(self.device), batch=self.batch, images=self.images)


def carry_out(
    tasks: Sequence[Task], place: Place, file: Path, lanes: int, tell: Tell, done: Done = lambda cost: None
) -> dict[str, str]:  # fmt: skip
    """Do the tasks in `lanes` processes, each with its line; what is told of those that cannot be done, by their names.

    A task whose process dies has failed, and another process takes the place. A full memory ends all.
    """
    book, waiting = Book(tell, done), deque(tasks)
    with Workers(place, file).ended() as workers:
        while waiting or workers.busy:
            while waiting and len(workers.busy) < lanes:
                workers.give(waiting.popleft())
            for ended in workers.answers():
                book.note(ended)
    return book.failed


class Workers:
    """Processes that do tasks, one each at a time."""

    def __init__(self, place: Place, file: Path) -> None:
        self.place, self.file = place, file
        self.context = multiprocessing.get_context("spawn")  # which has this process's variables of the environment
        self.idle: list[tuple[BaseProcess, Connection]] = []
        self.busy: dict[Connection, tuple[BaseProcess, Task]] = {}

    def give(self, task: Task) -> None:
        """Let a free process, or a new one, do a task."""
        process, line = self.idle.pop() if self.idle else self.started()
        line.send(task)
        self.busy[line] = process, task

    def started(self) -> tuple[BaseProcess, Connection]:
        """A new process."""
        own, its = self.context.Pipe()
        process = self.context.Process(target=work, args=(self.place, self.file, its), daemon=True)
        process.start()
        its.close()
        return process, own

    def answers(self) -> Iterator[Ended]:
        """What has ended, after a while."""
        for line in connection.wait([*self.busy]):
            assert isinstance(line, Connection)
            process, task = self.busy.pop(line)
            try:
                answer: Ended | BaseException = line.recv()
            except EOFError:
                process.join(EXIT)
                yield Ended(task, f"its process ended with exit code {process.exitcode}", failed=True)
                continue
            if isinstance(answer, BaseException):
                raise answer
            self.idle.append((process, line))
            yield answer

    @contextmanager
    def ended(self) -> Iterator[Workers]:
        """These, until the end: those that wait for a task go by themselves, those at work are stopped."""
        try:
            yield self
        finally:
            for process, _ in self.busy.values():
                process.kill()
            lines = [*(line for _, line in self.idle), *self.busy]
            processes = [*(process for process, _ in self.idle), *(process for process, _ in self.busy.values())]
            for line in lines:
                line.close()
            for process in processes:
                process.join(EXIT)


def work(place: Place, file: Path, line: Connection) -> None:
    """The life of a process: task after task, until nobody asks any more. Ctrl-C is for the parent, who ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        arena = place.opened()
        while True:
            line.send(attempt(line.recv(), arena, file))
    except (EOFError, BrokenPipeError):
        return
    except BaseException as error:  # an error that no line of the study foresees ends the study, as it does without lanes
        traceback.print_exc()
        line.send(error)
