"""Residual units whose last block adds the shortcut: ours, torchvision's and timm's."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from dcnets.fusing.blocks import FusedBlock, parts_of
from dcnets.fusing.links import NOTHING_KNOWN, Known, Link, Wants, hooked, linked_in_turn
from dcnets.fusing.tracking import Seen
from dcnets.surroundings import symbolic


class Layout(NamedTuple):
    """A residual unit by the names of its modules: those on the way, the ReLU after the sum, the shortcut.

    `idle` are those that have to be absent or to do nothing.
    """

    way: tuple[str, ...]
    relu: str
    shortcut: str
    idle: tuple[str, ...] = ()


TIMM_IDLE = ("drop_block", "aa", "se", "drop_path")
LAYOUTS = {
    ("dcnets.models.resnet", "ResidualUnit"): Layout(("first", "second"), "relu", "shortcut"),
    ("torchvision.models.resnet", "BasicBlock"): Layout(("conv1", "bn1", "relu", "conv2", "bn2"), "relu", "downsample"),
    ("torchvision.models.resnet", "Bottleneck"): Layout(
        ("conv1", "bn1", "relu", "conv2", "bn2", "relu", "conv3", "bn3"), "relu", "downsample"
    ),
    ("timm.models.resnet", "BasicBlock"): Layout(
        ("conv1", "bn1", "act1", "conv2", "bn2"), "act2", "downsample", TIMM_IDLE
    ),
    ("timm.models.resnet", "Bottleneck"): Layout(
        ("conv1", "bn1", "act1", "conv2", "bn2", "act2", "conv3", "bn3"), "act3", "downsample", TIMM_IDLE
    ),
}  # fmt: skip
"""By module and name of the class."""


def kind_of(module: nn.Module) -> type[nn.Module] | None:
    """What a residual unit becomes; None for what is none."""
    kind = type(module)
    return fused_kind(kind) if (kind.__module__, kind.__qualname__) in LAYOUTS else None


KINDS: dict[Any, type[nn.Module]] = {}
"""The class of fused units, by the class that they had."""


def fused_kind(original: type[nn.Module]) -> type[nn.Module]:
    """The class of the fused units that were of a class."""
    if original not in KINDS:
        own = {"original": original, "layout": LAYOUTS[original.__module__, original.__qualname__]}
        KINDS[original] = type(f"Fused{original.__name__}", (FusedUnit, original), own)
    return KINDS[original]


def revived(original: type[nn.Module]) -> nn.Module:
    """An empty fused unit, for a copy or a pickle."""
    kind = fused_kind(original)
    return kind.__new__(kind)


def does_nothing(module: nn.Module | None) -> bool:
    """Whether a module is absent or the identity, and nobody looks on."""
    return module is None or (type(module) is nn.Identity and not hooked(module))


class FusedUnit(Link):
    """A residual unit whose last block adds the shortcut; each is also of the class that it had."""

    original: ClassVar[type[nn.Module]]
    layout: ClassVar[Layout]
    _modules: dict[str, nn.Module | None]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if symbolic(x) else self.alone(x)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return revived, (self.original,), vars(self)

    def wants(self) -> Wants:
        """The sums of squares and, where the shortcut is the input itself, its token."""
        return Wants(sums=True, token=self.adds_input)

    @property
    def adds_input(self) -> bool:
        """Whether the shortcut is the input itself."""
        return does_nothing(self._modules.get(self.layout.shortcut))

    def parts(self) -> list[nn.Module]:
        """The modules on the way, those of a block as one."""
        return parts_of(self, [self._modules.get(name) for name in self.layout.way])

    def linked(self, x: Tensor, known: Known, seen: Seen, wanted: Wants) -> tuple[Tensor, Known]:
        """The output and what is known of it."""
        *before, last = self.parts()
        relu, shortcut = self._modules.get(self.layout.relu), self._modules.get(self.layout.shortcut)
        simple = does_nothing(relu) or (type(relu) is nn.ReLU and not hooked(relu))
        idle = all(does_nothing(self._modules.get(name)) for name in self.layout.idle)
        if not (simple and idle and isinstance(last, FusedBlock)) or hooked(last):
            return super().forward(x), NOTHING_KNOWN  # type: ignore[misc]
        y, own = linked_in_turn(before, x, known, seen, last.wants()) if before else (x, known)
        residual = x if shortcut is None else shortcut(x)
        token = known.token if self.adds_input else None
        return last.linked(y, own, seen, wanted, residual=residual, token=token, relu=isinstance(relu, nn.ReLU))
