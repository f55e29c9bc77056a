"""A whole data set under attack, some images at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.attacks.checks import check_kind, check_model, checked_labels
from dcnets.models.checks import whole_number

Attack = Callable[..., Tensor]
"""A function of model, x and y, and keywords of its own."""


def in_batches(
    attack: Attack, model: nn.Module, x: Tensor, y: Tensor, *, batch: int, progress: bool = False, **settings: Any
) -> Tensor:
    """attack(model, x, y, **settings), `batch` images at a time, with a bar on stderr where `progress` asks for it.

    The images may lie elsewhere than the model; what the attack returns lies where they do. `fooled` can be an attack
    here. A generator among the settings goes on from batch to batch; without one each batch starts alike.
    """
    check_model(model)
    check_kind(x)
    checked_labels(y, x)
    whole_number("batch", batch)
    device = next(model.parameters(), x).device
    found = []
    with steps_shown(getattr(attack, "__name__", "attack"), -(-len(x) // batch), batch, progress) as done:
        for number, (images, labels) in enumerate(zip(torch.split(x, batch), torch.split(y, batch), strict=True), 1):
            found.append(attack(model, images.to(device), labels.to(device), **settings).to(x.device))
            done(number)
    return torch.cat(found)


@contextmanager
def steps_shown(title: str, total: int, batch: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """What to tell the number of batches that are done."""
    if not shown:
        yield lambda number: None
        return
    try:
        from dcnets.experiments.progress import Progress
    except ImportError as error:
        raise ImportError(f"a progress bar needs rich ({error}); pip install 'dcnets[attacks]'") from error
    with Progress(title, total, unit="batch", images_per_step=batch) as bar:
        bar.update(0)
        yield bar.update
