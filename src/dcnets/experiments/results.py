"""The lines in `results/`: what a run was, where it ran and what came of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import dcnets
from dcnets.experiments import jsonlines
from dcnets.experiments.durable import sync
from dcnets.experiments.jsonlines import read

__all__ = ["append", "environment", "read"]

PACKAGE = Path(dcnets.__file__).parent


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add one line to a file of results, and return when it is on the disk; several processes may do so at once."""
    jsonlines.append(path, line)
    sync(path)


def environment(device: str | None = None) -> dict[str, str | None]:
    """When, with what and on what a run is done; `device` is cpu or cuda, by default the GPU if there is one."""
    import torch

    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dcnets": dcnets.__version__,
        "commit": own_commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "triton": version("triton"),
        "device": torch.cuda.get_device_name(device) if on_gpu else processor(),
    }


@cache
def own_commit() -> str | None:
    """The commit of this process's code: what it was when first asked, as a clone may move on under a long run."""
    return commit()


def commit(package: Path = PACKAGE) -> str | None:
    """The commit that the package's code is at, with `-dirty` where the code differs from it; None outside a clone."""
    if git(package, "ls-files", "--error-unmatch", "__init__.py") is None:  # a package installed below another project
        return None
    head = git(package, "rev-parse", "HEAD")
    return f"{head}-dirty" if head and git(package, "status", "--porcelain", "--", ".") else head


def git(folder: Path, *arguments: str) -> str | None:
    """What git answers about a folder, or None where it cannot."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook sets some
    clean["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=folder, env=clean, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The name of the CPU."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
