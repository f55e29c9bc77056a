"""Blocks of a decoupled layer with batch norm, residual sum and ReLU as one operator, and sequences of them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_not
from typing import Any, cast

import torch
from torch import Tensor, nn

from dcnets.decoupled import Decoupled
from dcnets.freezing import Frozen
from dcnets.fusing import routes
from dcnets.fusing.links import NOTHING_KNOWN, Known, Link, Wants, hooked, in_turn, linked_in_turn, wants_of
from dcnets.fusing.tracking import Seen
from dcnets.kernels.response import Behind, Response
from dcnets.settling import is_convolution
from dcnets.surroundings import symbolic
from dcnets.twins import is_itself

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fit(parts: list[nn.Module]) -> bool:
    """Whether modules can be the parts of a block; a batch norm has weights and running statistics of its own."""
    if len(parts) < 2:
        return False
    layer, following = parts[0], parts[1]
    if type(layer) is not Frozen and not (isinstance(layer, Decoupled) and is_itself(layer)):
        return False
    if is_convolution(layer.operator, {}):
        return False
    norm: Any = following if type(following) in NORMS else None
    rest = parts[1:] if norm is None else parts[2:]
    usable = norm is None or (norm.weight is not None and norm.track_running_stats)
    return usable and len(rest) <= 1 and all(type(part) is nn.ReLU for part in rest)


def bias_of(norm: Any) -> Tensor:
    """Batch norm's bias, which may be none."""
    bias: Tensor | None = norm.bias
    return torch.zeros_like(norm.weight) if bias is None else bias


def shifted_bias(children: tuple[nn.Module, ...]) -> Tensor | None:
    """Batch norm's bias with the layer's in it, β + bγ/σ; None where there are not both.

    In training the batch's mean takes a layer's bias away, and its gradient is 0.
    """
    bias: Tensor | None = getattr(children[0], "bias", None)
    norm: Any = children[1] if len(children) > 1 else None
    if bias is None or not isinstance(norm, NORMS) or norm.weight is None or norm.running_var is None:
        return None
    if norm.training:
        return bias_of(norm) + 0 * bias
    return torch.addcmul(bias_of(norm), norm.weight * bias, (norm.running_var + norm.eps).rsqrt())


def with_bias(moments: Tensor, bias: Tensor) -> Tensor:
    """The moments (3, filters) of a response to which a bias is added."""
    return torch.cat([moments[:1] + bias.detach(), moments[1:]])


class FusedBlock(nn.Sequential, Link):
    """A decoupled layer with its batch norm and its ReLU, under the names that they had.

    On the Triton path they are one operator: the response is not stored between them. Everywhere else it is the sequence
    that it replaces.
    """

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = in_turn(self, x) if symbolic(x) else self.alone(x)
        return y

    def wants(self) -> Wants:
        """The sums of squares."""
        return Wants(sums=True)

    def linked(
        self, x: Tensor, known: Known, seen: Seen, wanted: Wants, residual: Tensor | None = None,
        token: Tensor | None = None, relu: bool = False,
    ) -> tuple[Tensor, Known]:  # fmt: skip
        """The output and what is known of it; with a residual, whose token takes its gradient, its sum and ReLU."""
        children = tuple(self._modules.values())
        apart = residual if residual is None or token is None else residual.detach()
        shifted = shifted_bias(children)
        given = x, known.sums, apart, token, shifted
        key = routes.key_of(children, given, wanted, relu)
        found = routes.follow(self, key, children, given)
        if found is None:
            found = self.respond(x, known, wanted, apart, token, relu, shifted)
            if found is None:
                y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
                y = y if residual is None else y + residual
                return y.relu() if relu else y, NOTHING_KNOWN
            routes.remember(self, key, children, given, found)
        layer, norm, _ = self.parts()
        if norm is not None and norm.training:
            if found.y.numel() == found.y.shape[1]:
                raise ValueError(f"expected more than 1 value per channel in training, got {tuple(found.y.shape)}")
            seen.norms.append((norm, found.moments if layer.bias is None else with_bias(found.moments, layer.bias)))
        if isinstance(layer, Decoupled) and layer._tracks:
            seen.layers.append((layer, found.m))
        return found.y, Known(found.sums, found.token)

    def respond(
        self, x: Tensor, known: Known, wanted: Wants, residual: Tensor | None, token: Tensor | None, relu: bool,
        shifted: Tensor | None,
    ) -> Response | None:  # fmt: skip
        """The response as one operator, or None where it cannot be one."""
        if not fit(list(self.children())) or any(map(hooked, self.children())):
            return None
        layer, norm, own_relu = self.parts()
        if residual is not None and (norm is None or own_relu):
            return None
        behind = Behind(
            gamma=None if norm is None else norm.weight,
            beta=shifted if norm is None or shifted is not None else bias_of(norm),
            bn_eps=0.0 if norm is None else norm.eps,
            centre=norm.running_mean if norm is not None and not norm.training else None,
            variance=norm.running_var if norm is not None and not norm.training else None,
            residual=residual, token=token, relu=relu or own_relu, sums=known.sums, wants_sums=wanted.sums,
            wants_token=wanted.token and residual is not None,
        )  # fmt: skip
        return layer.respond_with(x, behind)

    def parts(self) -> tuple[Decoupled | Frozen, Any, bool]:
        """The layer, its batch norm where there is one, and whether there is a ReLU."""
        children = tuple(self._modules.values())
        norm = children[1] if isinstance(children[1], NORMS) else None
        return cast(Any, children[0]), norm, isinstance(children[-1], nn.ReLU)


class FusedSequence(nn.Sequential, Link):
    """A sequence whose blocks speak to each other, be they modules of their own or some of its modules in a row."""

    def forward(self, x: Any) -> Any:
        return in_turn(self if symbolic(x) else self.parts(), x)

    def wants(self) -> Wants:
        """What its first part would like to know."""
        return wants_of(self.parts())

    def linked(self, x: Tensor, known: Known, seen: Seen, wanted: Wants) -> tuple[Tensor, Known]:
        """The output and what is known of it."""
        return linked_in_turn(self.parts(), x, known, seen, wanted)

    def parts(self) -> list[nn.Module]:
        """Its modules, those of a block as one."""
        return parts_of(self, list(self._modules.values()))


def parts_of(owner: Any, modules: list[nn.Module | None]) -> list[nn.Module]:
    """The modules of an owner, those of a block as one; found anew only when a module is not the one that it was."""
    before = owner.__dict__.get("_fused_parts")
    if before is None or len(before[0]) != len(modules) or any(map(is_not, before[0], modules)):
        before = owner.__dict__["_fused_parts"] = modules, grouped(modules)
    found: list[nn.Module] = before[1]
    return found


def grouped(modules: Iterable[nn.Module | None]) -> list[nn.Module]:
    """The modules, but each longest row of them that can be a block as one: a block that nobody else knows."""
    own, found = [module for module in modules if module is not None], []
    while own:
        length = next((length for length in (3, 2) if fit(own[:length]) and len(own) >= length), 1)
        found.append(own[0] if length == 1 else FusedBlock(*own[:length]))
        del own[:length]
    return found
