"""Data sets by name: readers, downloads, the embedded digits, streams of images; imported when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dcnets.experiments.data.catalogue import names

if TYPE_CHECKING:
    from dcnets.experiments.data.errors import DataError
    from dcnets.experiments.data.loading import load
    from dcnets.experiments.data.opening import stream
    from dcnets.experiments.data.places import locate
    from dcnets.experiments.data.sets import Dataset, Split
    from dcnets.experiments.data.source import Source
    from dcnets.experiments.data.streaming import Stream

__all__ = ["DataError", "Dataset", "Source", "Split", "Stream", "load", "locate", "names", "stream"]

HOMES = {
    "DataError": "errors",
    "Dataset": "sets",
    "Source": "source",
    "Split": "sets",
    "Stream": "streaming",
    "load": "loading",
    "locate": "places",
    "stream": "opening",
}
"""Where each public name lives: `names` and `locate` answer without torch, the rest of `load` without Pillow."""


def __getattr__(name: str) -> Any:
    """Import a public name, once."""
    if name not in HOMES:
        raise AttributeError(f"module 'dcnets.experiments.data' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"dcnets.experiments.data.{HOMES[name]}"), name)
    return value
