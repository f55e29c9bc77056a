"""Which version of dcnets counts, where lines are of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def usual(versions: Iterable[str]) -> str | None:
    """The version of most, the newest of as many; None of none."""
    counts = Counter(versions)
    return max(counts, key=lambda each: (counts[each], ordered(each)), default=None)


def ordered(version: str) -> tuple[tuple[int, str], ...]:
    """A version as it sorts: 0.10 after 0.9."""
    return tuple((int(part) if part.isdecimal() else -1, part) for part in version.split("."))
