"""What a person typed: names, looked up or with the one that was probably meant, and numbers as 8/255."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_miss(name: str, known: Iterable[str]) -> str:
    """The sentence that follows "unknown …": the likely intention, then all choices."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}choose one of {', '.join(choices)}"


def choose(kind: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is known; otherwise raise with the near-miss."""
    choices = list(known)
    if not isinstance(name, str):
        raise TypeError(f"{kind} is a name, got {type(name).__name__}; {near_miss('', choices)}")
    if name not in choices:
        raise ValueError(f"unknown {kind} {name!r}; {near_miss(name, choices)}")
    return name


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for the first given keyword that `owner` does not take."""
    choices = list(known)
    for name in given:
        if name not in choices:
            raise TypeError(f"{owner} got an unknown keyword {name!r}; {near_miss(name, choices)}")


def quotient(text: str) -> float:
    """A number, or two with a stroke between them, as 8/255; raises as `float` and division do."""
    top, stroke, bottom = text.partition("/")
    return float(top) / float(bottom) if stroke else float(text)
