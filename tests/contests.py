"""Contests that stand for a pair of networks, for processes that are to measure them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Quick:
    """Rows of these numbers at once."""

    numbers: tuple[int, ...]

    def __post_init__(self):
        if -1 in self.numbers:
            raise ValueError("-1 cannot be made ready")

    def measure(self):
        """The rows; 0 cannot be measured."""
        for number in self.numbers:
            yield {"row": number, "ratio": 1 / number}
