"""The rows of the table: what is measured, against which bars, and the names by which it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcnets.naming import choose


@dataclass(frozen=True)
class Case:
    """What both sides of a row have in common; `how` is compiled, eager, captured (compiled too) or inference (likewise)."""

    network: str
    classes: int
    batch: int
    side: int
    how: str = "compiled"
    width: int | None = None


@dataclass(frozen=True)
class Contender:
    """What stands in the place of the convolutions, and the path that computes it, by its name in `paths`."""

    operator: str | None
    path: str = "fused"


@dataclass(frozen=True)
class Row:
    """A comparison with the plain network; the ratio may be `bar` and should be `stretch`."""

    name: str
    case: Case
    contender: Contender
    bar: float | None = None
    stretch: float | None = None
    of_memory: bool = False


CIFAR = Case("resnet32", 100, 512, 32)
IMAGENET = Case("resnet18", 1000, 256, 224)
PLAIN, B_COS, TANH = Contender(None, "auto"), Contender("b-cos", "auto"), Contender("tanh-cosine")
ROWS = (  # those that share networks stand together
    Row("resnet32", CIFAR, TANH, 1.20, 1.08),
    Row("memory", CIFAR, TANH, 1.05, 1.0, of_memory=True),
    Row("segmented", CIFAR, Contender("segmented-square_cosine"), 1.25, 1.10),
    Row("angle", CIFAR, Contender("tanh-linear"), 1.25, 1.10),
    Row("b-cos", CIFAR, B_COS),
    Row("reference", CIFAR, replace(TANH, path="reference")),
    Row("layers", CIFAR, replace(TANH, path="layers")),
    Row("eager", replace(CIFAR, how="eager"), TANH, 1.5, 1.2),
    Row("eager-layers", replace(CIFAR, how="eager"), replace(TANH, path="layers")),
    Row("eager-torch", replace(CIFAR, how="eager"), replace(TANH, path="torch")),
    Row("captured", replace(CIFAR, batch=128, how="captured"), TANH, 1.25, 1.10),
    Row("inference", replace(CIFAR, how="inference"), TANH, 1.10, 1.03),
    Row("resnet18", IMAGENET, TANH, 1.20, 1.08),
)
BANDWIDTH = "bandwidth"


def names() -> list[str]:
    """The rows that can be asked for."""
    return [*(row.name for row in ROWS), BANDWIDTH]


def read_names(text: str) -> list[str]:
    """Rows that a text names, separated by commas."""
    return [choose("row", name.strip(), names()) for name in text.split(",")]
