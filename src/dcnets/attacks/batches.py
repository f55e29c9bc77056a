"""A whole data set under attack, some images at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import classes_of
from dcnets.attacks.checks import check_images, checked_labels, device_of
from dcnets.checks import whole_number, yes_or_no

Attack = Callable[..., Tensor]
"""A function of model, x and y, and keywords of its own."""
Batch = tuple[Tensor, Tensor]


def in_batches(
    attack: Attack, model: nn.Module, x: Tensor, y: Tensor, *, batch: int, progress: bool = False, **settings: Any
) -> Tensor:
    """attack(model, x, y, **settings), `batch` images at a time, with a bar on stderr where `progress` asks for it.

    All images and classes are looked at before the first is attacked. They may lie elsewhere than the model; what the
    attack returns lies where they do. `fooled` can be an attack here. A generator among the settings goes on from batch to
    batch; without one each batch starts alike.
    """
    some, device, found = batches(x, y, batch), device_of(model, x), []
    classes_of(model, x, y)
    with steps_shown(getattr(attack, "__name__", "attack"), len(some), batch, yes_or_no("progress", progress)) as done:
        for number, (images, labels) in enumerate(some, 1):
            found.append(attack(model, images.to(device), labels.to(device), **settings).to(x.device))
            done(number)
    return torch.cat(found)


def batches(x: Tensor, y: Tensor, batch: int) -> list[Batch]:
    """Images and their classes, `batch` at a time, after a look at all of them."""
    check_images(x)
    checked_labels(y, x)
    batch = whole_number("batch", batch)
    return list(zip(torch.split(x, batch), torch.split(y, batch), strict=True))


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
