"""The two norms of an attack: the steepest direction, the ball, and a point drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Draws:
    """Random numbers for images like x, from a generator on any device.

    Without one they are those of torch's own CPU generator, which itself stays where it is.
    """

    def __init__(self, generator: torch.Generator | None, x: Tensor) -> None:
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(
                f"generator is a torch.Generator or None, got {generator!r}; make one with torch.Generator().manual_seed(0)"
            )
        self.generator = torch.default_generator.clone_state() if generator is None else generator
        self.place, self.dtype = x.device, x.dtype

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""
        return self.here(torch.rand(shape, generator=self.generator, device=self.generator.device, dtype=self.dtype))

    def normal(self, *shape: int) -> Tensor:
        """Numbers from N(0, 1)."""
        return self.here(torch.randn(shape, generator=self.generator, device=self.generator.device, dtype=self.dtype))

    def below(self, count: int, *shape: int) -> Tensor:
        """Whole numbers from 0 to count − 1."""
        return self.here(torch.randint(count, shape, generator=self.generator, device=self.generator.device))

    def signs(self, *shape: int) -> Tensor:
        """−1 or 1."""
        return (2 * self.below(2, *shape) - 1).to(self.dtype)

    def here(self, t: Tensor) -> Tensor:
        """The tensor where the images are."""
        return t.to(self.place)


def lengths(t: Tensor) -> Tensor:
    """‖t‖₂ of each image, shaped to be multiplied with them."""
    return t.flatten(1).square().sum(1).sqrt().view(-1, *(1,) * (t.dim() - 1))


def unit(t: Tensor) -> Tensor:
    """t/‖t‖₂ of each image, however small t is; 0 where it is 0."""
    peak = t.flatten(1).abs().amax(1).view(-1, *(1,) * (t.dim() - 1))
    t = t / torch.where(peak > 0, peak / torch.frexp(peak).mantissa, 1)  # by a power of two, which rounds nothing
    length = lengths(t)
    return t * (1 / torch.where(length > 0, length, 1))


def cut(t: Tensor, eps: float) -> Tensor:
    """The nearest point to t with ‖t‖∞ ≤ ε."""
    return t.clamp(-eps, eps)


def shortened(t: Tensor, eps: float) -> Tensor:
    """The nearest point to t with ‖t‖₂ ≤ ε, image by image."""
    return t * (eps / lengths(t).clamp(min=1e-12)).clamp(max=1)


def from_cube(x: Tensor, eps: float, draws: Draws) -> Tensor:
    """For each image a point drawn evenly from ‖t‖∞ ≤ ε."""
    return eps * (2 * draws.uniform(*x.shape) - 1)


def from_ball(x: Tensor, eps: float, draws: Draws) -> Tensor:
    """For each image a point drawn evenly from ‖t‖₂ ≤ ε: all but two coordinates of a point on a sphere."""
    return eps * unit(draws.normal(len(x), x[0].numel() + 2))[:, :-2].view_as(x)


class Norm(NamedTuple):
    """The direction of a gradient, the projection on the ball, and a draw from it."""

    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, float], Tensor]
    draw: Callable[[Tensor, float, Draws], Tensor]


NORMS = {"linf": Norm(torch.sign, cut, from_cube), "l2": Norm(unit, shortened, from_ball)}


def in_reach(z: Tensor, x: Tensor, norm: str, eps: float) -> Tensor:
    """z, brought into the ball around x and then into [0, 1]."""
    return (x + NORMS[norm].project(z - x, eps)).clamp(0, 1)
