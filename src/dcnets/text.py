"""The text form of an operator: reading and writing `name(argument=value, …)` and `a+0.5*b`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

Argument = bool | int | float | str


def write_call(name: str, arguments: Mapping[str, Argument]) -> str:
    """`name`, or `name(a=1, b=two)`."""
    inner = ", ".join(f"{key}={write_value(value)}" for key, value in arguments.items())
    return f"{name}({inner})" if inner else name


def write_value(value: Argument) -> str:
    """The shortest text that reads back as the same value."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def read_call(text: str) -> tuple[str, dict[str, Argument]]:
    """The inverse of `write_call`."""
    match = re.fullmatch(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise ValueError(f"cannot read {text!r}; expected a name, or name(argument=value, …)")
    arguments: dict[str, Argument] = {}
    for item in (match[2] or "").split(","):
        if item.strip():
            key, equals, value = item.partition("=")
            if not equals:
                raise ValueError(f"cannot read {item.strip()!r} in {text!r}; expected argument=value")
            arguments[key.strip()] = read_value(value.strip())
    return match[1], arguments


def read_value(text: str) -> Argument:
    """An integer, a number, True, False, or else a word."""
    if text in ("True", "False"):
        return text == "True"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def write_sum(terms: Iterable[tuple[float, str]]) -> str:
    """The inverse of `read_sum`."""
    return "+".join(name if c == 1 else f"{write_value(c)}*{name}" for c, name in terms)


def read_sum(text: str) -> list[tuple[float, str]]:
    """`a+0.5*b` as [(1.0, "a"), (0.5, "b")]."""
    terms = []
    for term in re.split(r"(?<![\d.]e)\+", text.replace(" ", "")):
        coefficient, star, name = term.rpartition("*")
        try:
            factor = float(coefficient) if star else 1.0
        except ValueError:
            raise ValueError(f"cannot read {term!r} in {text!r}; expected name or number*name") from None
        if not math.isfinite(factor):
            raise ValueError(f"the coefficient of {name} must be finite, got {coefficient}")
        terms.append((factor, name))
    return terms


def split_parts(text: str) -> list[str]:
    """Magnitude, angular and perhaps weighting, which stand between hyphens (a hyphen before a digit is a minus)."""
    return re.split(r"-(?=[A-Za-z_])", text.strip())
