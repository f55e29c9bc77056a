"""What all pictures that matplotlib draws share: formats, looks, and how a file is written."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from dcnets.experiments.palette import INK, LINE

FORMATS = (".svg", ".png", ".pdf")
SETTINGS: Any = {
    "svg.hashsalt": "dcnets", "svg.fonttype": "path", "font.size": 11, "axes.edgecolor": LINE, "axes.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 12, "xtick.color": LINE, "ytick.color": LINE,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK,
}  # fmt: skip


def check(path: Path) -> None:
    """Refuse a file of another kind before anything is computed, and say what matplotlib's absence means."""
    if path.suffix not in FORMATS:
        raise ValueError(f"a figure is one of {', '.join(FORMATS)}, got {path.name!r}; name the file so")
    drawing()


def drawing() -> Any:
    """matplotlib, or an ImportError that says how to install it."""
    try:
        return import_module("matplotlib.figure") and import_module("matplotlib")
    except ImportError as error:
        raise ImportError(f"a figure as a file needs matplotlib ({error}); pip install 'dcnets[demo]'") from error


def write(figure: Any, path: Path) -> None:
    """A figure as a file, the same bytes for the same figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fixed = {"metadata": {"Date": None, "Creator": None}} if path.suffix == ".svg" else {}
    figure.savefig(path, facecolor="white", dpi=160, **fixed)
