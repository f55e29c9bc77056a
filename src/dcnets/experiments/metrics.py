"""The numbers of a run as it goes: JSON lines, and TensorBoard where asked for."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from dcnets.experiments import durable, jsonlines


class Metrics:
    """`metrics.jsonl` in a run's folder, a line each time that something was measured; with `tensorboard`, its files too."""

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self.folder, self.path = folder, folder / "metrics.jsonl"
        self.writer_kind = summary_writer() if tensorboard else None
        self.writer: Any = None
        self.first_step: int | None = None

    def write(self, step: int, **values: Any) -> None:
        """Add a line; it survives a kill that comes after. Numbers that are not finite are the texts nan, inf, -inf."""
        jsonlines.append(self.path, {"step": step, **values})
        if self.writer_kind is not None:
            if self.writer is None:
                folder = self.folder / "tensorboard"
                self.writer = self.writer_kind(str(folder), purge_step=self.first_step, flush_secs=10)
            for name, value in values.items():
                if hasattr(value, "item"):
                    value = value.item()
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, step)

    def truncate(self, step: int) -> None:
        """Forget all that came after `step`, and torn lines: the file is then that of a run that has just come so far.

        Call it whenever a run starts, with −1 where it starts anew. The new file takes the old one's place at once, so
        that a kill finds one of them. TensorBoard is told not to show what came after.
        """
        self.close()
        self.first_step = step + 1
        if self.path.exists():
            lines = self.path.read_bytes().split(b"\n")
            unfinished = self.path.with_name(self.path.name + ".unfinished")
            durable.write(unfinished, (line + b"\n" for line in lines if belongs(line, step)))
            os.replace(unfinished, self.path)

    def close(self) -> None:
        """Let TensorBoard write what it holds."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def belongs(data: bytes, step: int) -> bool:
    """Whether a line is whole and not from after `step`."""
    line = jsonlines.decode(data)
    return line is not None and line.get("step", step) <= step


def summary_writer() -> Any:
    """TensorBoard's writer, or an ImportError that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TensorBoard's own, while it is imported
            from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"tensorboard=True needs the package tensorboard ({error}); pip install 'dcnets[tensorboard]'"
        ) from None
    return SummaryWriter
