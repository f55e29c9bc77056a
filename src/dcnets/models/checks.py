"""The values that a network may be asked for: whole numbers, shares, yes or no."""

from __future__ import annotations


def whole_number(name: str, value: int, least: int = 1) -> int:
    """The value, if it is a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")
    return value


def share(name: str, value: float) -> float:
    """The value, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number from 0 to 1, got {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
    return float(value)


def yes_or_no(name: str, value: bool) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, got {value!r}")
    return value
