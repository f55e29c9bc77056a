"""The command line: `dcnets train | evaluate | convert | bench | models | recipes | data`."""

from __future__ import annotations

import sys

EXTRA = ("click", "numpy", "PIL", "rich", "safetensors")
"""What the extra `train` installs, by the names that are imported."""


def main() -> None:
    """Run the command in sys.argv and exit; without the extra's packages, say how to install them."""
    try:
        from dcnets.cli.program import program
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        sys.exit(needs(error.name))
    program()


def needs(package: str) -> str:
    """What is told of a missing package."""
    return f"dcnets' command line needs {'pillow' if package == 'PIL' else package}: pip install 'dcnets[train]'"
