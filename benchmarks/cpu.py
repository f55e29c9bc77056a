"""Time and memory of every operator on the CPU, as ratios to `nn.Conv2d` measured in the same process.

    python benchmarks/cpu.py [--operators tanh-cosine,…] [--processes 7] [--record]

Batch 32, 64 → 64 channels, 32 × 32, 3 × 3, float32, one thread, process time. In each fresh process the layer and
`nn.Conv2d` take turns; the table shows the median over the processes and the spread. The run is valid when `nn.Conv2d`
against itself stays within 3 %.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dcnets

BATCH, CHANNELS, SIZE, KERNEL = 32, 64, 32, 3
ROUNDS = 5
MAGNITUDES = ("sphere", "ball", "linear", "segmented", "tanh", "log", "mixed")
ANGULARS = ("cosine", "square_cosine", "relu_cosine", "linear", "sigmoid")
CONTROL = "nn.Conv2d"
RESULTS = Path(__file__).parent.parent / "results" / "bench-cpu.jsonl"


def bars(operator: str) -> tuple[float, float, float]:
    """What training step, inference and saved bytes may cost at most, as ratios."""
    magnitude, angular = operator.split("-")[:2]
    if angular in ("linear", "sigmoid"):
        return 1.40, 1.35, 2.05
    return (1.35, 1.30, 2.05) if magnitude in ("tanh", "log", "mixed") else (1.25, 1.15, 2.05)


def layer(operator: str) -> nn.Module:
    if operator == CONTROL:
        return nn.Conv2d(CHANNELS, CHANNELS, KERNEL, padding=1, bias=False)
    magnitude, angular = operator.split("-")
    module = dcnets.DecoupledConv2d(CHANNELS, CHANNELS, KERNEL, padding=1, magnitude=magnitude, angular=angular)
    if module.rho is not None:
        nn.init.uniform_(module.raw_radius, 0.8, 1.2)  # type: ignore[arg-type]
    return module


def training_step(module: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> None:
    x.grad = None
    with torch.autocast("cpu", dy.dtype, enabled=dy.dtype != x.dtype):
        y = module(x)
    y.backward(dy)


def inference(module: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> None:
    with torch.no_grad(), torch.autocast("cpu", dy.dtype, enabled=dy.dtype != x.dtype):
        module(x)


def milliseconds(job: Callable[..., None], *arguments: Any) -> float:
    begin = time.process_time_ns()
    job(*arguments)
    return (time.process_time_ns() - begin) / 1e6


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Bytes that the backward pass keeps, each storage counted once."""
    storages: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = module(x)
    del y
    return sum(storages.values())


def ratios(module: Any, rival: Any, x: Tensor, dy: Tensor) -> tuple[float, float]:
    """Time of a training step and of inference, over the rival's, taking turns."""
    found = []
    for job in (training_step, inference):
        pairs = []
        for turn in range(ROUNDS + 1):
            own, other = milliseconds(job, module, x, dy), milliseconds(job, rival, x, dy)
            if turn:
                pairs.append(own / other)
        found.append(statistics.median(pairs))
    return found[0], found[1]


def in_other_ways(operator: str, x: Tensor, dy: Tensor) -> dict[str, float]:
    """Ratios where both sides are in channels_last memory, in bf16 too (autocast), or compiled."""
    last = {"memory_format": torch.channels_last}
    x_last, dy_last = x.detach().to(**last).requires_grad_(), dy.to(**last)
    ways: dict[str, tuple[Tensor, Tensor, Callable[[nn.Module], Any]]] = {
        "channels_last": (x_last, dy_last, lambda module: module.to(**last)),
        "bf16": (x_last, dy_last.bfloat16(), lambda module: module.to(**last)),
        "compiled": (x, dy, torch.compile),
        "bf16 compiled": (x_last, dy_last.bfloat16(), lambda module: torch.compile(module.to(**last))),
    }
    found = {}
    for name, (images, gradient, made) in ways.items():
        torch.compiler.reset()  # or the compiler gives up after eight versions of the layer's forward
        train, infer = ratios(made(layer(operator)), made(layer(CONTROL)), images, gradient)
        found |= {f"train {name}": train, f"infer {name}": infer}
    return found


def measure(operators: list[str], extras: bool) -> dict[str, dict[str, float]]:
    """Everything that one process measures."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, CHANNELS, SIZE, SIZE, requires_grad=True)
    dy = torch.randn(BATCH, CHANNELS, SIZE, SIZE)
    rival = layer(CONTROL)
    rival_bytes = saved_bytes(rival, x)
    rows = {}
    for operator in (CONTROL, *operators):
        module = layer(operator)
        train, infer = ratios(module, rival, x, dy)
        rows[operator] = {"train": train, "infer": infer, "bytes": saved_bytes(module, x) / rival_bytes}
        if extras:
            rows[operator] |= in_other_ways(operator, x, dy)
    return rows


def worker(operators: str, extras: bool) -> None:
    torch.set_num_threads(1)
    print(json.dumps(measure([name for name in operators.split(",") if name], extras)))


def in_fresh_process(operators: list[str], extras: bool) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--worker", "--operators", ",".join(operators), *["--extras"] * extras]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows: dict[str, dict[str, float]] = json.loads(output.splitlines()[-1])
    return rows


def summarise(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Median, least and greatest of each figure over the processes."""
    return {
        name: {key: [f(run[name][key] for run in runs) for f in (statistics.median, min, max)] for key in runs[0][name]}
        for name in runs[0]
    }


def show(summary: dict[str, dict[str, list[float]]], keys: tuple[str, ...], barred: bool) -> bool:
    """Print one table; return whether every bar is met."""
    print("| operator | " + " | ".join(keys) + " |\n|" + " --- |" * (len(keys) + 1))
    met = True
    for name, row in summary.items():
        cells = []
        limits = (1.03, 1.03, 1.0) if name == CONTROL else bars(name)
        for key, bar in zip(keys, limits if barred else (math.inf,) * len(keys), strict=True):
            if key not in row:
                cells.append("–")
                continue
            middle, least, most = row[key]
            over = middle > bar
            met &= not over
            cells.append(
                f"{middle:.3f}" + ("" if key == "bytes" else f" ({least:.2f}–{most:.2f})") + (f" over {bar}" if over else "")
            )
        print(f"| {name} | " + " | ".join(cells) + " |")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ",".join(f"{h}-{g}" for g in ANGULARS for h in MAGNITUDES)
    parser.add_argument("--operators", default=everything, help="comma-separated; all by default")
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--no-extras", action="store_true", help="leave out channels_last, bf16 and torch.compile")
    parser.add_argument("--record", action="store_true", help=f"append the figures to {RESULTS.name}")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--extras", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.operators, options.extras)
        return
    names = options.operators.split(",")
    runs = []
    for turn in range(options.processes):
        print(f"process {turn + 1} of {options.processes}", file=sys.stderr)
        runs.append(in_fresh_process(names, extras=False))
    summary = summarise(runs)
    print(f"Ratios to nn.Conv2d, median (least–most) of {options.processes} processes\n")
    met = show(summary, ("train", "infer", "bytes"), barred=True)
    control = summary[CONTROL]
    valid = all(abs(control[key][0] - 1) <= 0.03 for key in ("train", "infer"))
    control_is = "within" if valid else "NOT within"
    print(f"\nnn.Conv2d against itself: {control_is} 3 %. Bars: {'all met' if met else 'not all met'}.")
    extra: dict[str, dict[str, list[float]]] = {}
    if not options.no_extras:
        few = [name for name in names if name in ("sphere-cosine", "tanh-cosine", "segmented-square_cosine", "tanh-linear")]
        extra = summarise([in_fresh_process(few, extras=True)])
        print("\nOne process: channels_last, in bf16 too, and torch.compile, on both sides\n")
        show(extra, tuple(next(iter(extra.values())))[3:], barred=False)
    if options.record:
        record(summary, extra, valid)


def record(summary: dict[str, Any], extra: dict[str, Any], valid: bool) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    line = {
        "benchmark": "cpu", "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit,
        "device": processor(), "torch": torch.__version__, "valid": valid, "ratios": summary, "extra": extra,
    }  # fmt: skip
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def processor() -> str:
    """The processor's name, as the system tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
