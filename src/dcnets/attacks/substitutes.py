"""Transfer: examples made on a substitute, tried on a victim that shows its answers alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from dcnets.attacks.aim import fooled
from dcnets.attacks.batches import Attack, in_batches


class Transferred(NamedTuple):
    """The examples, and which of them (n) fool the victim."""

    examples: Tensor
    fooled: Tensor


def transfer(
    substitute: nn.Module, victim: nn.Module, x: Tensor, y: Tensor, *, attack: Attack, batch: int | None = None,
    progress: bool = False, **settings: Any,
) -> Transferred:  # fmt: skip
    """Attack the substitute with attack(substitute, x, y, **settings), and try what comes out on the victim.

    All images at once, unless `batch` says how many at a time.
    """
    size = len(x) if batch is None else batch
    examples = in_batches(attack, substitute, x, y, batch=size, progress=progress, **settings)
    targeted = settings.get("targeted", False)
    return Transferred(examples, in_batches(fooled, victim, examples, y, batch=size, targeted=targeted))
