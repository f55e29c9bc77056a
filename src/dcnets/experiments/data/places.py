"""Where data lies: the folder for it, and what is already there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLE = "DCNETS_DATA"


def locate(folder: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the one given, else that of the environment variable DCNETS_DATA, else ~/.cache/dcnets.

    XDG_CACHE_HOME takes the place of ~/.cache where it is set.
    """
    if folder is not None:
        return Path(folder).expanduser()
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dcnets"


def first(folder: Path, homes: Iterable[str], holds: Callable[[Path], bool]) -> Path | None:
    """The first place that `holds` what is looked for: folder/home or folder/*/home for each home in turn, else folder."""
    for home in homes:
        for place in (folder / home, *sorted(folder.glob(f"*/{home}"))):
            if holds(place):
                return place
    return folder if holds(folder) else None
