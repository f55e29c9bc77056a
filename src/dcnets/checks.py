"""Values from outside: whole numbers, shares, yes or no."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any, SupportsIndex


def whole_number(name: str, value: int, least: int = 1) -> int:
    """The value, if it is a whole number, `least` or more."""
    found = scalar(value)
    if isinstance(found, bool) or hasattr(found, "shape") or not isinstance(found, SupportsIndex):
        raise TypeError(f"{name} is a whole number, got {value!r}")
    found = operator.index(found)
    if found < least:
        raise ValueError(f"{name} must be {least} or more, got {found}")
    return found


def share(name: str, value: float) -> float:
    """The value, if it is a number from 0 to 1."""
    found = real(value)
    if found is None:
        raise TypeError(f"{name} is a number from 0 to 1, got {value!r}")
    if not 0 <= found <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {found}")
    return found


def yes_or_no(name: str, value: bool) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, got {value!r}")
    return value


def real(value: Any) -> float | None:
    """A number as a float; None where it is none."""
    found = scalar(value)
    return None if isinstance(found, bool) or not isinstance(found, Real) else float(found)


def scalar(value: Any) -> Any:
    """The number in a numpy or torch scalar; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
