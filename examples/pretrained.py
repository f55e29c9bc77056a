"""Section 4.3 on real data: decoupled networks on MNIST, started from a trained plain network and from scratch."""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcnets
from dcnets.experiments.data import load as load_set

ROOT = Path(__file__).resolve().parents[1]
BATCH, RATE, CALIBRATION = 64, 1e-3, 8
"""Images in a batch, Adam's rate for every network alike, and the batches that `calibrate` sees."""
OPERATORS: dict[str, dict[str, Any]] = {
    "tanh-cosine": {"magnitude": "tanh"},
    "segmented-cosine": {"magnitude": "segmented"},
    "linear-cosine": {"magnitude": "linear"},
    "tanh(radius=absolute)-cosine": {"magnitude": "tanh", "radius": "absolute"},
}
"""The paper's absolute radius comes last: there calibration sets a parameter, and not only statistics."""
VARIANTS = ("scratch", "converted", "calibrated")

Data = dict[str, Tensor]
Record = dict[str, Any]


# -- data --------------------------------------------------------------------------------------------------------------


def load(folder: Path | None, images: int) -> Data:
    """The first training images and all test images, (samples, 1, 28, 28) of mean 0 and deviation 1, and their digits."""
    mnist = load_set("mnist", folder, download=False)
    if images > len(mnist.train):
        raise ValueError(f"MNIST has {len(mnist.train)} training images, and --images asks for {images}")
    pixels = mnist.train.images[:images].float()
    average, deviation = pixels.mean(), pixels.std()
    return {
        "x": (pixels - average) / deviation,
        "y": mnist.train.labels[:images],
        "x_test": (mnist.test.images.float() - average) / deviation,
        "y_test": mnist.test.labels,
    }


def batches(data: Data, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The training images in full batches, in an order that depends on seed and epoch alone."""
    order = torch.randperm(len(data["x"]), generator=torch.Generator().manual_seed(1000 * seed + epoch))
    for some in order[: len(order) // BATCH * BATCH].split(BATCH):
        yield data["x"][some], data["y"][some]


# -- networks ----------------------------------------------------------------------------------------------------------


def network(seed: int) -> nn.Sequential:
    """Four times convolution, batch norm and ReLU, then a linear classifier; the weights depend on the seed alone."""

    def block(before: int, after: int, *last: nn.Module) -> nn.Sequential:
        # This momentum forgets batch norm's initial variance of 1, far above that of a bounded operator, within an epoch.
        norm = nn.BatchNorm2d(after, momentum=0.2)
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), norm, nn.ReLU(), *last)

    torch.manual_seed(seed)
    return nn.Sequential(
        block(1, 16, nn.MaxPool2d(2)), block(16, 32, nn.MaxPool2d(2)), block(32, 32),
        block(32, 64, nn.AdaptiveAvgPool2d(1)), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def train(model: nn.Module, data: Data, seed: int, epochs: range) -> float:
    """Train with Adam at a constant rate; returns the seconds."""
    optimizer, begin = torch.optim.Adam(model.parameters(), lr=RATE), time.perf_counter()
    model.train()
    for epoch in epochs:
        for x, y in batches(data, seed, epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return time.perf_counter() - begin


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """The share of test digits that are recognised."""
    model.eval()
    found = torch.cat([model(x).argmax(1) for x in data["x_test"].split(100)])
    return (found == data["y_test"]).float().mean().item()


@torch.no_grad()
def renewed(model: nn.Module, data: Data, seed: int) -> nn.Module:
    """A copy whose statistics no longer lag behind the weights; unlike `calibrate` it keeps a trained absolute radius."""
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a cumulative average
        elif isinstance(module, dcnets.DecoupledConv2d):
            module.reset_statistics()
    for x, _ in islice(batches(data, seed, epoch=0), CALIBRATION):
        model(x)
    return model


def start(variant: str, trained: nn.Module, options: dict[str, Any], data: Data, seed: int) -> nn.Module:
    """The decoupled network before its epoch; the classifier stays an ordinary layer."""
    plain = network(seed) if variant == "scratch" else copy.deepcopy(trained)
    model, _ = dcnets.convert(plain, **options)
    if variant == "calibrated":
        dcnets.calibrate(model, islice(batches(data, seed, epoch=0), CALIBRATION))
    return model


# -- runs --------------------------------------------------------------------------------------------------------------


def runs(data: Data, seed: int, epochs: int) -> Iterator[Record]:
    """Train the plain network, then each decoupled one for one epoch; epoch 0 is in the same order for all of these."""
    trained = network(seed)
    yield run("nn.Conv2d", "plain", trained, data, seed, range(1, epochs + 1))
    for operator, options in OPERATORS.items():
        for variant in VARIANTS:
            model = start(variant, trained, options, data, seed)
            yield run(operator, variant, model, data, seed, range(1))


def run(operator: str, variant: str, model: nn.Module, data: Data, seed: int, epochs: range) -> Record:
    """Train; test before, after, and after with statistics estimated anew."""
    before = accuracy(model, data)
    seconds = train(model, data, seed, epochs)
    after, anew = accuracy(model, data), accuracy(renewed(model, data, seed), data)
    return {
        "operator": operator, "variant": variant, "seed": seed, "before": round(before, 4), "after": round(after, 4),
        "after_anew": round(anew, 4), "seconds": round(seconds, 2),
    }  # fmt: skip


def circumstances(arguments: argparse.Namespace) -> Record:
    """What each line says of the recipe and of where it ran."""
    recipe = {
        "data": "mnist", "images": arguments.images, "plain_epochs": arguments.epochs, "epochs": 1, "optimizer": "adam",
        "rate": RATE, "batch": BATCH, "calibration_batches": CALIBRATION,
    }  # fmt: skip
    return {"recipe": recipe, "torch": torch.__version__, "device": "cpu", "threads": 1, "commit": commit()}


def commit() -> str:
    """The commit of this checkout, marked where the library has changed since."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-changed" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def keep(path: Path, record: Record) -> None:
    """Append one line to the results."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


# -- report ------------------------------------------------------------------------------------------------------------


def percent(values: list[float]) -> str:
    """Mean ± standard deviation over the seeds."""
    return f"{100 * mean(values):.2f} ± {100 * (stdev(values) if len(values) > 1 else 0.0):.2f}"


def values(records: list[Record], operator: str, variant: str, when: str) -> list[float]:
    """One accuracy for each seed."""
    return [r[when] for r in records if (r["operator"], r["variant"]) == (operator, variant)]


def table(records: list[Record]) -> str:
    """Test accuracies in Markdown; the last column is with statistics estimated anew, for every network alike."""
    moments = {"before": "no training", "after": "trained", "after_anew": "trained, statistics anew"}
    rows = [["operator", "network", *moments.values()], ["---", "---", *("---:" for _ in moments)]]
    for operator, variants in {"nn.Conv2d": ("plain",), **dict.fromkeys(OPERATORS, VARIANTS)}.items():
        for variant in variants:
            cells = [percent(values(records, operator, variant, moment)) for moment in moments]
            rows.append([f"`{operator}`", variant, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def verdict(records: list[Record], operator: str, when: str) -> str:
    """For how many seeds the converted and calibrated network ends above the one from scratch, in words."""
    ours, theirs = (values(records, operator, variant, when) for variant in ("calibrated", "scratch"))
    gaps = [100 * (a - b) for a, b in zip(ours, theirs, strict=True)]
    wins = sum(gap > 0 for gap in gaps)
    which = f"all {wins}" if wins == len(gaps) else f"{wins} of {len(gaps)}"
    return f"for {which} seeds ({min(gaps):+.2f} to {max(gaps):+.2f} points)"


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with MNIST (default: DCNETS_DATA, else ~/.cache/dcnets)")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the plain network (default: %(default)s)")
    parser.add_argument("--images", type=int, default=6000, help="training images (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "pretrained.jsonl", help="file to append to")
    arguments = parser.parse_args()
    for name, least in (("epochs", 1), ("images", BATCH)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    if not arguments.results.parent.is_dir():
        parser.error(f"--results {arguments.results}: there is no folder {arguments.results.parent}")
    return arguments


def main() -> None:
    """Run every network and seed, keep a line for each, and say what came of it."""
    arguments = read_arguments()
    torch.set_num_threads(1)  # the networks are small, and one thread computes the same everywhere
    try:
        data = load(arguments.data, arguments.images)
    except ValueError as problem:
        raise SystemExit(f"error: {problem}") from None
    records, common = [], circumstances(arguments)
    for seed in dict.fromkeys(arguments.seeds):
        for result in runs(data, seed, arguments.epochs):
            records.append({**result, **common, "date": datetime.now(UTC).isoformat(timespec="seconds")})
            keep(arguments.results, records[-1])
            line = "{operator:<29} {variant:<11} seed {seed} {before:7.2%} → {after:.2%} ({after_anew:.2%}), {seconds} s"
            print(line.format(**result))
    print(f"\nThe plain network was trained for {arguments.epochs} epochs, the others for one.\n\n{table(records)}\n")
    for operator in OPERATORS:
        ends = f"{verdict(records, operator, 'after')}; with statistics anew {verdict(records, operator, 'after_anew')}"
        print(f"{operator}: converted and calibrated beats scratch after one epoch {ends}")


if __name__ == "__main__":
    main()
