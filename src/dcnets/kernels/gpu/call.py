"""The arguments of the Triton operator, and what follows from them."""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

from torch import Tensor

from dcnets.kernels.gpu import launch, layout
from dcnets.kernels.gpu.launch import NAMES
from dcnets.patches import Convolution, Matrix, Patches


class Call(NamedTuple):
    """The arguments of `dcnets::decouple`, in its order."""

    x: Tensor
    sums: Tensor | None
    """Σx² over the channels, (batch, 1, positions), where the producer of x has computed it."""
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    token: Tensor | None
    """Zeros that are added to the residual and have its gradient."""
    gamma: Tensor | None
    """Batch norm's weight; its bias is `bias`."""
    centre: Tensor | None
    variance: Tensor | None
    """The statistics that batch norm uses; the batch's own where they are not given."""
    mean_norm: Tensor | None
    rho: Tensor | None
    alpha: Tensor | None
    beta: Tensor | None
    k: Tensor | None
    p: Tensor | None
    weight_norm: Tensor | None
    stretch: Tensor | None
    scale: Tensor | None
    numbers: list[float]
    """The values that are no tensors."""
    present: list[int]
    """Which values there are."""
    h: str
    g: str
    eps: float
    relative: bool
    raw: bool
    """Whether `rho` is r, of which ρ = r² + 1e-4."""
    unit: bool
    """Whether the weight's filters are of unit length already."""
    bn_eps: float
    relu: bool
    wants_sums: bool
    wants_token: bool
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    build: int
    """BUILD."""

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The values that are tensors, in the order of NAMES."""
        return self.rho, self.alpha, self.beta, self.k, self.p, self.weight_norm, self.stretch, self.scale

    @property
    def values(self) -> dict[str, Tensor | float]:
        """The values that are there, by name."""
        rows = zip(NAMES, self.tensors, self.numbers, self.present, strict=True)
        return {name: number if tensor is None else tensor for name, tensor, number, there in rows if there}

    @property
    def view(self) -> layout.Windows:
        """The windows of x that filters see; a row of a matrix is one window."""
        settings = tuple(self.stride), tuple(self.padding), tuple(self.dilation)
        return layout.windows(tuple(self.x.shape[2:]), tuple(self.weight.shape[2:]), *settings)

    @property
    def patches(self) -> Patches:
        """How patches meet filters."""
        if self.weight.dim() == 2:
            return Matrix()
        settings = tuple(self.weight.shape[2:]), tuple(self.stride), tuple(self.padding), tuple(self.dilation)
        return Convolution(*settings, self.groups, False, (0,) * len(self.stride))

    def layer(self, z: Tensor, n: Tensor) -> launch.Layer:
        """The passes over z and n."""
        return launch.Layer(z, n, self.h, self.g, self.values, self.raw, self.relative, self.groups)


TENSORS = Call._fields.index("numbers")
"""How many of the arguments may be tensors; they come first."""
KINDS: dict[Any, str] = {
    Tensor: "Tensor", Tensor | None: "Tensor?", list[float]: "float[]", list[int]: "int[]", str: "str", float: "float",
    bool: "bool", int: "int",
}  # fmt: skip
"""Types as torch writes them in an operator's schema."""
ARGUMENTS = ", ".join(f"{KINDS[kind]} {name}" for name, kind in get_type_hints(Call).items())
