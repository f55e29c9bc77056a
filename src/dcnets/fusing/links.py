"""Modules that hand on, beside their output, what the next decoupled layer would have to find out about it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

from torch import Tensor, nn

from dcnets.fusing.tracking import Seen
from dcnets.surroundings import symbolic


class Known(NamedTuple):
    """What is known of a tensor x beside itself, or may be None."""

    sums: Tensor | None = None
    """Σx² over the channels, (batch, 1, positions)."""
    token: Tensor | None = None
    """Zeros in x's shape whose gradient counts as x's: who adds x somewhere can leave the gradient there, unadded."""


NOTHING_KNOWN = Known()


class Wants(NamedTuple):
    """What a module would like to know of its input."""

    sums: bool = False
    token: bool = False


NOTHING_WANTED = Wants()


class Link:
    """A module that can use what is known of its input, and can tell of its output."""

    def wants(self) -> Wants:
        """What it would like to know."""
        raise NotImplementedError

    def linked(self, x: Tensor, known: Known, seen: Seen, wanted: Wants) -> tuple[Tensor, Known]:
        """The output and what is known of it, no more than is wanted; `seen` takes a batch's statistics."""
        raise NotImplementedError

    def alone(self, x: Tensor) -> Tensor:
        """The output for an input of which nothing is known."""
        seen = Seen()
        y, _ = self.linked(x, NOTHING_KNOWN, seen, NOTHING_WANTED)
        seen.average_in()
        return y


def in_turn(modules: Iterable[nn.Module | None], x: Any) -> Any:
    """What comes out of modules one after the other."""
    if symbolic(x):
        return reduce(lambda y, module: y if module is None else module(y), modules, x)
    seen = Seen()
    y, _ = linked_in_turn(modules, x, NOTHING_KNOWN, seen, NOTHING_WANTED)
    seen.average_in()
    return y


def linked_in_turn(
    modules: Iterable[nn.Module | None], x: Any, known: Known, seen: Seen, wanted: Wants
) -> tuple[Any, Known]:
    """What comes out of modules one after the other, as of one `Link`."""
    own = [module for module in modules if module is not None]
    for place, module in enumerate(own):
        if isinstance(module, Link) and not hooked(module):
            x, known = module.linked(x, known, seen, wants_of(own[place + 1 :]) if place + 1 < len(own) else wanted)
        else:
            x, known = module(x), NOTHING_KNOWN
    return x, known


def wants_of(modules: Iterable[nn.Module | None]) -> Wants:
    """What the first of some modules would like to know."""
    first = next((module for module in modules if module is not None), None)
    return first.wants() if isinstance(first, Link) and not hooked(first) else NOTHING_WANTED


def hooked(module: nn.Module) -> bool:
    """Whether someone looks on when the module is called, so that it has to be."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)
