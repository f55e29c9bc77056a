"""The networks and the images of an evaluation: trained runs that take pixels in [0, 1], and a part of their test set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dcnets.attacks.pixels import LARGEST, Normalised
from dcnets.experiments.data import Dataset, Stream
from dcnets.experiments.rebuild import CROP, Rebuilt, rebuild
from dcnets.experiments.run import STREAMED_TEST_BATCH, placed
from dcnets.experiments.update import arithmetic


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network by a name; `model` takes pixels in [0, 1]."""

    name: str
    model: nn.Module
    rebuilt: Rebuilt


class InPrecision(nn.Module):
    """A network whose layers compute in another precision, as they do in training; the images stay float32."""

    def __init__(self, model: nn.Module, precision: torch.dtype) -> None:
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, x: Tensor) -> Tensor:
        with arithmetic(x.device, self.precision):
            logits: Tensor = self.model(x)
        return logits


def rebuild_all(paths: Sequence[Path], crop: int = CROP) -> dict[str, Rebuilt]:
    """The networks of some runs by the names of their folders, or by their paths where names are the same."""
    short = [path.name if path.is_dir() else path.parent.name for path in (each.resolve() for each in paths)]
    alike = len(set(short)) < len(paths)
    found = {str(path) if alike else name: rebuild(path, crop) for path, name in zip(paths, short, strict=True)}
    first_name, first = next(iter(found.items()))
    for name, each in found.items():
        if (each.recipe.data, each.num_classes) != (first.recipe.data, first.num_classes):
            raise ValueError(
                f"{name} was trained on {each.recipe.data} with {each.num_classes} classes, {first_name} on "
                f"{first.recipe.data} with {first.num_classes}; networks of one evaluation share their data"
            )
    return found


def subject(name: str, rebuilt: Rebuilt, data: Dataset | Stream, device: torch.device, precision: torch.dtype) -> Subject:
    """A network for pixels in [0, 1], in evaluation mode on a device."""
    model: nn.Module = Normalised(placed(rebuilt.model, device), data.mean, data.std, scale=LARGEST).to(device)
    if precision is not torch.float32:
        model = InPrecision(model, precision)
    return Subject(name, model.eval(), rebuilt)


def pixels_of(data: Dataset | Stream, count: int) -> tuple[Tensor, Tensor]:
    """The first images of the test set in [0, 1] and their classes, on the CPU; all where there are fewer.

    A stream is sorted by class, so of it they are taken at equal distances.
    """
    if isinstance(data, Dataset):
        return data.test.images[:count].float() / LARGEST, data.test.labels[:count]
    total = len(data.testing.listing.labels)
    wanted = set(torch.linspace(0, total - 1, min(count, total)).long().tolist())
    images, labels, first = [], [], 0
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    for x, y in data.test(STREAMED_TEST_BATCH):
        some = [at for at in range(len(y)) if first + at in wanted]
        images.append((x.cpu()[some] * std + mean).round().clamp(0, LARGEST) / LARGEST)
        labels.append(y.cpu()[some])
        first += len(y)
    return torch.cat(images), torch.cat(labels)


@contextmanager
def true_float32() -> Iterator[None]:
    """Float32 in float32: on a GPU cuDNN, and products where training allowed it, take TF32.

    Its ten bits of mantissa blur small gradients.
    """
    before, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
        torch.set_float32_matmul_precision(products)
