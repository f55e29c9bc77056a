"""The paths that a network can be measured along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from dcnets import functional
from dcnets.kernels.measured import unmeasured


@dataclass(frozen=True)
class Path:
    """`words` follow the operator's name; `fuse`: the network is fused; `table`: "auto" goes by its table."""

    words: str
    backend: str
    fuse: bool = False
    table: bool = True

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Meanwhile networks are computed along this path."""
        with functional.backend(self.backend), nullcontext() if self.table else unmeasured():
            yield


PATHS = {
    "auto": Path("", "auto"),
    "fused": Path("", "fused", fuse=True),
    "layers": Path(" in Triton layer by layer", "fused"),
    "torch": Path(" in torch", "auto", table=False),
    "reference": Path(" by the plain formula", "reference"),
}
