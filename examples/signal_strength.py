"""How much of an image reaches each layer of Table 2's networks before the first update, as docs/reproduction.md has it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcnets.decoupled import Decoupled
from dcnets.experiments import data, recipes
from dcnets.experiments.paper import TABLES
from dcnets.experiments.paper.tables import BASELINE
from dcnets.experiments.run import build_model


def strengths(network: nn.Module, x: Tensor, y: Tensor) -> tuple[list[float], float]:
    """The root mean square of each convolution's responses, and the norm of the loss's gradient at the first one."""
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | Decoupled)]
    found: list[float] = []
    for layer in layers:
        layer.register_forward_hook(
            lambda _, inputs, response: found.append(response.detach().square().mean().sqrt().item())
        )
    F.cross_entropy(network(x), y).backward()
    slope = layers[0].weight.grad
    assert isinstance(slope, Tensor)
    return found, slope.norm().item()


def rows(dataset: data.Dataset, images: int) -> Iterator[str]:
    """Markdown, a row for each network of Table 2."""
    x = (dataset.train.images[:images].float() - torch.tensor(dataset.mean).view(-1, 1, 1)) / torch.tensor(dataset.std).view(
        -1, 1, 1
    )
    for cell in TABLES["table2"].cells:
        if cell.recipe is None:
            continue
        responses, slope = strengths(build_model(recipes.get(cell.recipe), dataset), x, dataset.train.labels[:images])
        name = "ordinary" if cell.row == BASELINE else f"{cell.row}, {cell.column.lower()}"
        yield f"| {name} | {' | '.join(f'{each:.0e}' for each in (*responses, slope))} | {cell.published} |"


def main(words: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the data (default: as for `dcnets train`)")
    parser.add_argument("--data-set", default="cifar100", help="data set in memory, by its name (default: %(default)s)")
    parser.add_argument("--images", type=int, default=128, help="training images: the first (default: %(default)s)")
    arguments = parser.parse_args(words)
    for row in rows(data.load(arguments.data_set, arguments.data), arguments.images):
        print(row)


if __name__ == "__main__":
    main()
