"""Transfer: examples made on a substitute, tried on a victim that shows its answers alone."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from dcnets.attacks.aim import fooled
from dcnets.attacks.batches import Attack, in_batches
from dcnets.checks import yes_or_no


class Transferred(NamedTuple):
    """The examples, and which of them (n) fool the victim."""

    examples: Tensor
    fooled: Tensor


def transfer(
    substitute: nn.Module, victim: nn.Module, x: Tensor, y: Tensor, *, attack: Attack, targeted: bool = False,
    batch: int | None = None, progress: bool = False, **settings: Any,
) -> Transferred:  # fmt: skip
    """Attack the substitute with attack(substitute, x, y, **settings), and try what comes out on the victim.

    Where `targeted`, the attack is told so, and what counts is that the victim answers y. All images at once, unless `batch`
    says how many at a time.
    """
    if isinstance(attack, partial) and "targeted" in attack.keywords:
        raise ValueError(
            f"attack sets targeted={attack.keywords['targeted']!r} where transfer cannot see it, which has to judge by it; "
            "leave it out there, and give it to transfer"
        )
    size = len(x) if batch is None else batch
    own = {**settings, "targeted": True} if yes_or_no("targeted", targeted) else settings
    examples = in_batches(attack, substitute, x, y, batch=size, progress=progress, **own)
    return Transferred(examples, in_batches(fooled, victim, examples, y, batch=size, targeted=targeted))
