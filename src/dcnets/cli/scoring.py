"""A test set and how a network does on it, with a bar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcnets.cli.output import counted, percent, show
from dcnets.cli.supply import listing, supply
from dcnets.experiments import data
from dcnets.experiments.data import Dataset, Stream
from dcnets.experiments.data.catalogue import STREAMS
from dcnets.experiments.data.resident import in_order
from dcnets.experiments.evaluate import Scores, evaluate
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.run import STREAMED_TEST_BATCH, TEST_BATCH, chosen_precision

Set = Dataset | Stream


def open_set(recipe: Recipe, folder: Path | None, device: str, batch: int, quiet: bool, streamed: dict[str, Any]) -> Set:
    """A recipe's data, downloaded where it is not there; `batch` is that of a stream's training."""
    if recipe.data in STREAMS:
        told = listing(recipe, quiet=quiet)
        return data.stream(recipe.data, folder, batch=batch, device=device, seed=recipe.seed, **told, **streamed)
    supply(recipe, folder, quiet=quiet)
    return data.load(recipe.data, folder, download=False)


def score(
    model: nn.Module, opened: Set, recipe: Recipe, device: str, batch: int | None = None, *, title: str, quiet: bool = False
) -> Scores:
    """Test a network in the recipe's precision."""
    place, form = torch.device(device), torch.channels_last if device == "cuda" else torch.preserve_format
    model = model.to(place, memory_format=form)  # type: ignore[call-overload]
    if isinstance(opened, Stream):
        size = batch or STREAMED_TEST_BATCH
        count, batches = len(opened.testing.listing.labels), opened.test(size)
    else:
        size = batch or TEST_BATCH
        count, batches = len(opened.test), in_order(opened.test, size, mean=opened.mean, std=opened.std, device=place)
    with_bar: Iterator[tuple[Tensor, Tensor]] = counted(batches, count, size, title, quiet=quiet)
    return evaluate(model, with_bar, chosen_precision(recipe, place))


def scores_table(rows: dict[str, Scores]) -> None:
    """The scores of some networks, each under its name."""
    columns = ("top-1 error", "top-5 error", "loss", "images")
    cells = [
        (name, percent(1 - each.top1), percent(1 - each.top5), f"{each.loss:.4f}", f"{each.count:,}")
        for name, each in rows.items()
    ]
    show(("network", *columns), cells, columns)
