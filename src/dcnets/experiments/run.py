"""From a recipe to a trained network and a line of results: what `dcnets train` does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dcnets.experiments import data, jsonlines, results
from dcnets.experiments.data import Dataset, Source, Split, Stream
from dcnets.experiments.data.augment import Augmentation
from dcnets.experiments.data.catalogue import STREAMS
from dcnets.experiments.data.resident import Resident, in_order
from dcnets.experiments.distributed import Team, join
from dcnets.experiments.durable import check_writable
from dcnets.experiments.lock import held
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.settings import Outcome, Settings
from dcnets.experiments.train import Batches, fit
from dcnets.experiments.weights import start_from
from dcnets.fusing import fuse
from dcnets.models.catalogue import NETWORKS, create, keywords

TEST_BATCH = 1000
STREAMED_TEST_BATCH = 100


def run(
    recipe: Recipe, *, data_folder: Path | None = None, folder: Path | None = None, results_file: Path | None = None,
    start: Path | None = None, device: str = "auto", settings: Settings | None = None, **stream_options: Any,
) -> Outcome:  # fmt: skip
    """Train as the recipe says, on one device or, under torchrun, on many; append a line to the results file.

    The weights are those of the run or checkpoint `start`, where it is given, unless the folder holds a run to go on with.
    `stream_options` go to `data.stream` where the recipe's data is a stream.
    """
    settings = settings or Settings()
    results.own_commit()  # now: at the run's end the clone may hold other code
    with join(chosen_device(device)) as (team, place), held(folder) if folder and team.leads else nullcontext():
        if results_file is not None and team.leads:
            check_writable(results_file)
        team.wait()
        if place.type == "cuda":
            tune_gpu()
        dataset, source, test = open_data(recipe, data_folder, place, team, settings, stream_options)
        model = placed(build_model(recipe, dataset, sync=settings.sync_radius), place)
        if start is not None:
            start_from(model, start)
        torch.manual_seed(recipe.seed + 1 + team.rank)  # dropout differs between processes, and from the weights
        precision = chosen_precision(recipe, place)
        outcome = fit(
            model, source, recipe, test, folder=folder, device=place, precision=precision, team=team, settings=settings
        )
        if results_file is not None and team.leads:
            written = line(outcome, team, place, precision, settings)
            if outcome.updates or not has_line(results_file, written):
                results.append(results_file, written)
        return outcome


def has_line(results_file: Path, written: dict[str, Any]) -> bool:
    """Whether the file has the line of a run that had ended before: unless its process was killed in between, it has."""
    own = jsonlines.plain({name: written[name] for name in ("recipe", "steps", "seconds", "history")})
    return any(own.items() <= each.items() for each in jsonlines.read_and_tell(results_file)[0])


def build_model(recipe: Recipe, dataset: Dataset | Stream, sync: bool = False) -> nn.Module:
    """The recipe's network for a data set, its weights drawn from the recipe's seed."""
    own = {"width": recipe.width, "fc_relu": recipe.fc_relu}
    options: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    if recipe.network in NETWORKS and "image_size" in keywords(NETWORKS[recipe.network].build):
        options["image_size"] = dataset.size
    if sync:
        options["sync"] = True
    torch.manual_seed(recipe.seed)
    return create(
        recipe.network, num_classes=dataset.num_classes, in_channels=dataset.channels, operator=recipe.operator,
        decouple=recipe.decouple, batch_norm=recipe.batch_norm, relu=recipe.relu, bn_momentum=recipe.bn_momentum,
        normalised_classifier=recipe.normalised_classifier, **options,
    )  # fmt: skip


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on a device; on a GPU with channels last, and fused."""
    model = model.to(device)
    if device.type == "cuda":
        model = fuse(model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    return model


def open_data(
    recipe: Recipe, folder: Path | None, device: torch.device, team: Team, settings: Settings,
    stream_options: dict[str, Any],
) -> tuple[Dataset | Stream, Source, Callable[[], Batches]]:  # fmt: skip
    """The data set, its training batches and its test set; the first process downloads what is missing."""
    place: dict[str, Any] = {
        "seed": recipe.seed, "device": device, "rank": team.rank, "world": team.world, "pieces": settings.pieces,
    }  # fmt: skip
    if recipe.data in STREAMS:
        if settings.captured and settings.pieces > 1:
            raise ValueError("a captured update takes one batch from a stream; leave out capture, or accumulate nothing")
        stream = data.stream(recipe.data, folder, batch=recipe.batch, **place, **stream_options)
        return stream, stream, lambda: stream.test(STREAMED_TEST_BATCH)
    if team.leads:
        data.load(recipe.data, folder)
    team.wait()
    dataset = data.load(recipe.data, folder, download=False)
    source = Resident(
        dataset.train, recipe.batch, mean=dataset.mean, std=dataset.std, compiled=settings.compiled,
        augmentation=Augmentation(recipe.pad, recipe.pad_mode, recipe.flip), **place,
    )  # fmt: skip
    tested = Split(dataset.test.images.to(device), dataset.test.labels.to(device))
    return dataset, source, lambda: in_order(tested, TEST_BATCH, mean=dataset.mean, std=dataset.std, device=device)


def chosen_device(name: str) -> str:
    """`auto` is the GPU where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def chosen_precision(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The recipe's arithmetic; `auto` is bf16 on a GPU that has it."""
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if recipe.arithmetic(fast) == "bfloat16" else torch.float32


def tune_gpu() -> None:
    """Let cuDNN look for its fastest algorithms, and float32 products (of penalties) use TF32."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")


def line(outcome: Outcome, team: Team, device: torch.device, precision: torch.dtype, settings: Settings) -> dict[str, Any]:
    """A run for `results/`: what it was, where it ran and what came of it; errors in percent, N/C where it diverged."""
    scores, failed = outcome.scores, outcome.divergence is not None
    settled = statistics.fmean(1 - row["test_top1"] for row in outcome.history[-5:]) if scores else math.nan
    return {
        **results.environment(device.type), "processes": team.world, "recipe": asdict(outcome.recipe),
        "precision": str(precision).removeprefix("torch."), "compiled": settings.compiled, "captured": settings.captured,
        "steps": outcome.steps, "top1_error": "N/C" if failed or not scores else round(100 * (1 - scores.top1), 3),
        "top5_error": "N/C" if failed or not scores else round(100 * (1 - scores.top5), 3),
        "top1_error_of_last_five_tests": "N/C" if failed or not scores else round(100 * settled, 3),
        "divergence": outcome.divergence, "seconds": round(outcome.seconds, 2), "preparation": round(outcome.preparation, 2),
        "history": [brief(row) for row in outcome.history],
    }  # fmt: skip


def brief(row: dict[str, Any]) -> dict[str, Any]:
    """A test of the history with few digits."""
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
