"""The time and memory of training updates: each recipe beside the ordinary network that it is a twin of."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from dcnets.experiments import recipes
from dcnets.experiments.data.augment import Augmentation
from dcnets.experiments.data.catalogue import CATALOGUE, Entry
from dcnets.experiments.data.resident import Resident
from dcnets.experiments.data.sets import Dataset, Split
from dcnets.experiments.distributed import Team
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.run import build_model, chosen_device, chosen_precision, placed, tune_gpu
from dcnets.experiments.update import Update, make_optimiser

ROUNDS = 5
"""Each network is timed so often, in turns with its twin; the median counts."""


def bench(
    names: Sequence[str], *, updates: int, device: str = "auto", compiled: bool = False, captured: bool = False
) -> list[dict[str, Any]]:
    """Milliseconds and peak memory of an update for each recipe, on random images of its data set's shape.

    `ratio` is that to the plain twin, in turns with it; `control` is the plain twin's second half of rounds against its
    first. Twins that several recipes share are timed anew with each of them.
    """
    place = torch.device(chosen_device(device))
    if place.type == "cuda":
        tune_gpu()
    rows = []
    for name in names:
        recipe = recipes.get(name)
        plain = dataclasses.replace(recipe, operator=None)
        pair = [Timed(each, place, compiled, captured) for each in (plain, recipe)]
        for _ in range(ROUNDS):
            for timed in pair:
                timed.round(updates)
        twin, own = pair
        early, late = twin.times[: ROUNDS // 2], twin.times[-(ROUNDS // 2) :]
        rows.append(
            {
                "recipe": name, "milliseconds": own.median, "images_per_second": 1000 * recipe.batch / own.median,
                "twin_milliseconds": twin.median, "ratio": own.median / twin.median,
                "control": statistics.median(late) / statistics.median(early), "peak_mib": own.peak_mib,
                "twin_peak_mib": twin.peak_mib, "updates": updates, "rounds": ROUNDS, "compiled": compiled,
                "captured": captured,
            }
        )  # fmt: skip
        del pair, twin, own, timed
        gc.collect()
    return rows


class Timed:
    """A network ready to be trained on random images, and the times of its updates in milliseconds."""

    def __init__(self, recipe: Recipe, device: torch.device, compiled: bool, captured: bool) -> None:
        self.device, self.times = device, list[float]()
        entry = CATALOGUE.get(recipe.data)
        if entry is None:
            raise ValueError(f"{recipe.name} streams images from disk, whose time would count too; choose another recipe")
        dataset = random_images(entry, recipe.batch)
        model = placed(build_model(recipe, dataset), device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        augmentation = Augmentation(recipe.pad, recipe.pad_mode, recipe.flip)
        self.source = Resident(
            dataset.train, recipe.batch, mean=dataset.mean, std=dataset.std, augmentation=augmentation, device=device,
            compiled=compiled,
        )  # fmt: skip
        self.update = Update(
            model.train(), self.source, make_optimiser(model, recipe, device), recipe, device=device, team=Team(),
            precision=chosen_precision(recipe, device), compiled=compiled,
        )  # fmt: skip
        if captured:
            self.update.capture()
        self.source.begin(0)
        self.update()
        self.peak_mib = (torch.cuda.max_memory_allocated(device) - self.before) / 2**20 if device.type == "cuda" else None

    @property
    def median(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.times)

    def round(self, updates: int) -> None:
        """Time some updates on a device that has nothing else to do."""
        self.source.begin(0)
        self.update()
        self.wait()
        begin = time.perf_counter()
        for done in range(updates):
            if done % (self.source.batches - 1) == 0:
                self.source.begin(0)
            self.update()
        self.wait()
        self.times.append(1000 * (time.perf_counter() - begin) / updates)

    def wait(self) -> None:
        """Until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_images(entry: Entry, batch: int) -> Dataset:
    """A data set of random pixels and labels with an entry's shape, large enough for some batches."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(256, (count, entry.channels, entry.size, entry.size), dtype=torch.uint8, generator=generator)
        return Split(images, torch.randint(len(entry.classes), (count,), generator=generator))

    return Dataset(entry.title, split(16 * batch), split(1), entry.classes)
