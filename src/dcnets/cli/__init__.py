"""The command line: `dcnets train | evaluate | convert | bench | models | recipes | data`."""

from __future__ import annotations

import sys

EXTRA = {"click": "click", "numpy": "numpy", "PIL": "pillow", "rich": "rich", "safetensors": "safetensors"}
"""What the extra `train` installs: the names that are imported, and the packages that have them."""


def main() -> None:
    """Run the command in sys.argv and exit; without the extra's packages, say how to install them."""
    try:
        from dcnets.cli.program import program
    except ModuleNotFoundError as error:
        told = what_is_missing(error)
        if told is None:
            raise
        sys.exit(f"error: {told}")
    program()


def what_is_missing(error: ModuleNotFoundError) -> str | None:
    """What is told of a missing package, if it is one that the extra installs."""
    package = EXTRA.get((error.name or "").partition(".")[0])
    return f"dcnets' command line needs {package}: pip install 'dcnets[train]'" if package else None
