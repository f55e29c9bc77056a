"""The Square attack: random search with squares of changed pixels, from the model's answers alone."""

from __future__ import annotations

import math
from bisect import bisect_left

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import under_attack
from dcnets.attacks.checks import checked_eps
from dcnets.attacks.norms import NORMS, Draws, in_reach, lengths
from dcnets.checks import share, whole_number
from dcnets.naming import choose

HALVINGS, SCHEDULED = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000), 10_000
"""The queries, of 10,000, after which the share of changed pixels is halved."""
TILES = 5
"""The tiles on a side with which the L2 attack starts."""
LEAST = {"linf": 1, "l2": 3}
"""The side of the smallest square."""
Window = tuple[Tensor, Tensor, Tensor, Tensor]


def square(
    model: nn.Module, x: Tensor, y: Tensor, *, eps: float, queries: int, norm: str = "linf", targeted: bool = False,
    p: float = 0.8, generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """The Square attack (Andriushchenko et al., 2020) on images x (n, channels, height, width); it needs no gradient.

    Each query changes a square in every image that does not fool the model yet, and keeps what brought it nearer. `p` is
    the share of pixels in the first squares (0.8 in AutoAttack); it falls as published, stretched to the number of queries.
    An image that fools the model as it is comes back unchanged; that look is not counted as a query.
    """
    eps = checked_eps(eps, choose("norm", norm, NORMS))
    queries, p = whole_number("queries", queries), share("p", p)
    if p == 0:
        raise ValueError("p must be above 0, got 0: no pixel would change")
    with under_attack(model, x, y, targeted) as (aim, x):
        check_sides(x, norm)
        draws, step = Draws(generator, x), STEPS[norm]
        wins, reached = aim.judged(x)
        best, far = x.clone(), torch.full_like(reached, -torch.inf)
        left = (~wins).nonzero().squeeze(1)
        for query in range(queries):
            if len(left) == 0:
                break
            if query == 0:
                tried = STARTS[norm](x[left], eps, draws)
            else:
                tried = step(best[left], x[left], eps, side_of(query / queries, p, x, norm), draws)
            tried = in_reach(tried, x[left], norm, eps)
            wins, reached = aim.part(left).judged(tried)
            better = wins | (reached > far[left])
            best[left[better]], far[left[better]] = tried[better], reached[better]
            left = left[~wins]
        return best


def check_sides(x: Tensor, norm: str) -> None:
    """Refuse what has no squares."""
    least = TILES if norm == "l2" else LEAST[norm]
    if x.dim() != 4 or min(x.shape[2:]) < least:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, expected images (n, channels, height, width) of {least}×{least} or more; "
            "the Square attack changes squares of pixels"
        )


def side_of(progress: float, p: float, x: Tensor, norm: str) -> int:
    """The side of the square after a share `progress` of the queries: p of the pixels, halved at each of `HALVINGS`."""
    height, width = x.shape[2:]
    side = round(math.sqrt(p / 2 ** bisect_left(HALVINGS, progress * SCHEDULED) * height * width))
    side = max(side, LEAST[norm])
    return min(side + (norm == "l2" and side % 2 == 0), height, width)


def window(x: Tensor, side: int, draws: Draws) -> Window:
    """A square at a place of its own in each image, in all channels, as an index of x."""
    count, channels, height, width = x.shape
    inside = torch.arange(side, device=x.device)
    rows, columns = (draws.below(free - side + 1, count, 1, 1) for free in (height, width))
    images, planes = (torch.arange(size, device=x.device) for size in (count, channels))
    return (
        images.view(-1, 1, 1, 1), planes.view(1, -1, 1, 1),
        (rows + inside.view(-1, 1)).unsqueeze(1), (columns + inside).unsqueeze(1),
    )  # fmt: skip


# -- L∞ ---------------------------------------------------------------------------------------------------------------


def stripes(x: Tensor, eps: float, draws: Draws) -> Tensor:
    """x ± ε in columns one pixel wide."""
    count, channels, _, width = x.shape
    return x + eps * draws.signs(count, channels, 1, width)


def repainted(best: Tensor, x: Tensor, eps: float, side: int, draws: Draws) -> Tensor:
    """`best` with x ± ε in a square, one sign a channel: what a change by ±2ε comes to in the cube."""
    place, tried = window(x, side, draws), best.clone()
    tried[place] = x[place] + eps * draws.signs(*x.shape[:2], 1, 1)
    return tried


# -- L2 ---------------------------------------------------------------------------------------------------------------


def tiles(x: Tensor, eps: float, draws: Draws) -> Tensor:
    """x with a change of length ε: 5×5 tiles of two peaks, each channel and tile with a sign of its own."""
    count, channels, height, width = x.shape
    side = min(height, width) // TILES
    each = peaks(count * TILES**2, side, draws).view(count, 1, TILES, TILES, side, side)
    change = each * draws.signs(count, channels, TILES, TILES, 1, 1)
    change = change.transpose(3, 4).reshape(count, channels, TILES * side, TILES * side)
    top, left = (height - TILES * side) // 2, (width - TILES * side) // 2
    tried = x.clone()
    tried[:, :, top : top + TILES * side, left : left + TILES * side] += change * (eps / lengths(change))
    return tried


def moved(best: Tensor, x: Tensor, eps: float, side: int, draws: Draws) -> Tensor:
    """`best` with the change of one square moved to another, which gets two new peaks and all length that is free.

    Of the change ν, in channel i: ν ← u/‖u‖·√(‖ν in both squares‖² + (ε² − ‖ν‖²)/channels) in the one, 0 in the other,
    with u = ±η + ν/‖ν‖ in the one.
    """
    change, channels = best - x, x.shape[1]
    one, other = window(x, side, draws), window(x, side, draws)
    both = torch.zeros_like(x)
    both[one] = both[other] = 1
    free = (eps**2 - lengths(change).square()).clamp(min=0)
    room = ((change * both).square().sum((2, 3), keepdim=True) + free / channels).sqrt()
    u = peaks(len(x), side, draws).unsqueeze(1) * draws.signs(*x.shape[:2], 1, 1) + plane_unit(change[one])
    change[other] = 0
    change[one] = plane_unit(u) * room
    return x + change


def plane_unit(t: Tensor) -> Tensor:
    """t/‖t‖₂ of each channel of each image; 0 where it is 0."""
    return t / t.square().sum((2, 3), keepdim=True).sqrt().clamp(min=1e-12)


def peaks(count: int, side: int, draws: Draws) -> Tensor:
    """η (count, side, side) of length 1: two peaks of opposite sign, side by side or one above the other at random."""
    half = side // 2
    eta = torch.cat([peak(half, side), -peak(side - half, side)])
    eta = draws.here((eta / eta.square().sum().sqrt()).to(draws.dtype))
    return torch.where(draws.below(2, count, 1, 1) == 1, eta, eta.T)


def peak(height: int, width: int) -> Tensor:
    """Nested squares of length 1 together: Σ 1/(j + 1)² over j ≥ d, d being the distance from the middle (Eq. 2)."""
    rows, columns = ((torch.arange(size) - size // 2).abs() for size in (height, width))
    terms = 1 / torch.arange(1.0, max(height, width) // 2 + 2, dtype=torch.float64).square()
    value = terms.flip(0).cumsum(0).flip(0)[torch.maximum(rows[:, None], columns)]
    return value / value.square().sum().sqrt()


STARTS, STEPS = {"linf": stripes, "l2": tiles}, {"linf": repainted, "l2": moved}
