"""SIGTERM and Ctrl-C as a wish that training looks at between two updates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StoppedError(RuntimeError):
    """Training was asked to stop and has saved its state; `signal` says by what."""

    def __init__(self, number: int, told: str) -> None:
        super().__init__(told)
        self.signal = number


class Wish:
    """`signal` is the number of the signal that came, or None."""

    signal: int | None = None


@contextmanager
def watched() -> Iterator[Wish]:
    """Within it the first SIGTERM or Ctrl-C is noted; a second one acts as it always did."""
    wish, numbers = Wish(), (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield wish
        return
    before = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, frame: FrameType | None) -> None:
        wish.signal = number
        for own, handler in before.items():
            signal.signal(own, handler)

    for number in numbers:
        signal.signal(number, note)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
