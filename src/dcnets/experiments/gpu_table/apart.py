"""Contests made ready at once, each in a process of its own, and measured one at a time while the others rest."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, Protocol

Found = dict[str, Any]


class Contest(Protocol):
    """What is ready to be measured."""

    def measure(self) -> Iterator[Found]:
        """The rows, one after another."""


def measured_apart(makers: Mapping[str, Callable[[], Contest]], lanes: int) -> Iterator[Found]:
    """The rows of all contests, in their order; `lanes` of them are made ready at a time.

    To compile takes most of the time and one core for each network; what is measured has the device for itself. A row says
    in `preparation` how many seconds its networks took. One that fails leaves the others their rows, and is told at the end.
    """
    context = multiprocessing.get_context("spawn")
    waiting, workers = dict(makers), dict[str, tuple[Any, Connection]]()
    preparing: dict[Connection, str] = {}
    lost = []
    try:
        while waiting or preparing:
            while waiting and len(preparing) < lanes:
                name = next(iter(waiting))
                own, its = context.Pipe()
                process = context.Process(target=work, args=(waiting.pop(name), its), name=name)
                process.start()
                its.close()
                workers[name] = process, own
                preparing[own] = name
            connection.wait(list(preparing))
            for own in [own for own in preparing if own.poll()]:
                name = preparing.pop(own)
                if said(own) is None:
                    lost.append(name)
        for name, (process, own) in workers.items():
            if name in lost:
                continue
            own.send("go")
            while isinstance(found := said(own), dict):
                yield found
            if found is None:
                lost.append(name)
            process.join()
    finally:
        for process, own in workers.values():
            own.close()
            process.kill()
            process.join()
    if lost:
        raise RuntimeError(f"could not be measured, for the reasons above: {', '.join(lost)}")


def said(own: Connection) -> Found | str | None:
    """The next word of a process: a row, or `ready` and `end`; None from one that has ended without it."""
    try:
        word: Found | str = own.recv()
    except (EOFError, ConnectionResetError):
        return None
    return word


def work(make: Callable[[], Contest], pipe: Connection) -> None:
    """The life of a process; cuDNN looks for its fastest algorithms only when the device is its own."""
    import torch
    import torch._dynamo

    torch._dynamo.config.fail_on_recompile_limit_hit = True  # never eager unasked
    begin = time.perf_counter()
    contest = make()
    preparation = round(time.perf_counter() - begin, 1)
    pipe.send("ready")
    pipe.recv()
    torch.backends.cudnn.benchmark = True
    for found in contest.measure():
        pipe.send({**found, "preparation": preparation})
    pipe.send("end")
