"""What a progress bar says: how far, how well, how fast and how long still."""

from __future__ import annotations

import time
from collections import deque

MARK, WINDOW = 0.5, 60
"""The speed is that of the last 60 half seconds: steady to look at, and soon right again after a change."""


class Bar:
    """One task on its way; `update` is called at every step and does next to nothing."""

    def __init__(self, title: str, total: int, unit: str, images_per_step: int | None) -> None:
        self.title, self.total, self.unit, self.images_per_step = title, total, unit, images_per_step
        self.step = 0
        self.loss: float | None = None
        self.accuracy: float | None = None
        self.rate: float | None = None
        self.begin = self.now = time.perf_counter()
        self.marks: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    def update(self, step: int, loss: float | None, accuracy: float | None, rate: float | None) -> float:
        """Take note, and return the time; the speed counts from the first call, which may be at any step."""
        self.step, self.now = step, time.perf_counter()
        if loss is not None:
            self.loss = loss
        if accuracy is not None:
            self.accuracy = accuracy
        if rate is not None:
            self.rate = rate
        if not self.marks or self.now - self.marks[-1][0] >= MARK:
            self.marks.append((self.now, step))
        return self.now

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.total

    def steps_per_second(self) -> float | None:
        """The speed of late, or None where nothing was measured yet."""
        if not self.marks or self.step <= self.marks[0][1]:
            return None
        then, step = self.marks[0]
        return (self.step - step) / max(self.now - then, 1e-9)

    def time_told(self) -> str:
        """The time left, or the time taken."""
        if self.finished:
            return f"in {clock(time.perf_counter() - self.begin)}"
        speed = self.steps_per_second()
        return f"{clock((self.total - self.step) / speed)} left" if speed else "– left"

    def numbers(self) -> list[str]:
        """What was measured, each with its name."""
        speed, told = self.steps_per_second(), [f"{self.unit} {self.step:,}/{self.total:,}"]
        if self.loss is not None:
            told.append(f"loss {self.loss:.4f}" if abs(self.loss) < 1000 else f"loss {self.loss:.3e}")
        if self.accuracy is not None:
            told.append(f"accuracy {100 * self.accuracy:.2f} %")
        if speed is not None:
            images = self.images_per_step
            told.append(f"{three_digits(speed * images)} images/s" if images else f"{three_digits(speed)}/s")
        if self.rate is not None:
            told.append(f"rate {self.rate:.3g}")
        return told


def three_digits(value: float) -> str:
    """A number above 0 with its first three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 0:34."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
