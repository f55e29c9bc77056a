"""The command line.

`dcnets train | evaluate | attack | reproduce | study | report | figure | convert | bench | models | recipes | data`
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

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
    try:
        program()
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            leave(end.code)
        raise


def leave(code: str | int | None) -> NoReturn:
    """End one of several processes at once: now and then torch's threads for messages abort an orderly exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def what_is_missing(error: ModuleNotFoundError) -> str | None:
    """What is told of a missing package, if it is one that the extra installs."""
    package = EXTRA.get((error.name or "").partition(".")[0])
    return f"dcnets' command line needs {package}: pip install 'dcnets[train]'" if package else None
