"""What the orthonormal penalty adds to a training step of a ResNet-32, both eager, in one process.

    python benchmarks/penalties.py [--device cuda] [--rounds 15] [--steps 10]

ResNet-32 of 96/192/384 channels (31 decoupled 3 × 3 convolutions, tanh-cosine, batch norm, ReLU), 32 × 32 images, batch 128,
bf16 autocast, channels_last, Adam; on the CPU a tiny one in float32. In every round each job runs `--steps` times, the
jobs taking turns; the figures are medians over the rounds. Bar: the penalty, forward and backward, below 3 % of the step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcnets
from dcnets.penalties import orthonormal_penalty

BAR = 0.03
STRENGTH = 0.5e-5


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        dcnets.DecoupledConv2d(inputs, outputs, 3, stride, padding=1, magnitude="tanh", angular="cosine"),
        nn.BatchNorm2d(outputs),
    )


class Unit(nn.Module):
    """conv-BN-ReLU-conv-BN, add, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first, self.second = convolution(inputs, outputs, stride), convolution(outputs, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride == 2:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def resnet32(widths: tuple[int, int, int]) -> nn.Module:
    """A stem and three stages of five units: 31 decoupled convolutions."""
    channels = [widths[0], *(width for width in widths for _ in range(5))]
    units = [Unit(inputs, outputs) for inputs, outputs in pairwise(channels)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100)]
    return nn.Sequential(convolution(3, widths[0]), *units, *head)


def milliseconds(job: Callable[[], None], steps: int, device: str) -> float:
    """Time of one call of the job, over `steps` calls in a row."""
    if device == "cpu":
        begin = time.perf_counter()
        for _ in range(steps):
            job()
        return (time.perf_counter() - begin) * 1e3 / steps
    begin_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin_event.record()
    for _ in range(steps):
        job()
    end_event.record()
    torch.cuda.synchronize()
    return float(begin_event.elapsed_time(end_event)) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    torch.manual_seed(0)
    if not on_gpu:
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    model = resnet32((96, 192, 384) if on_gpu else (8, 16, 32)).to(options.device, memory_format=torch.channels_last)
    batch = 128 if on_gpu else 2
    x = torch.randn(batch, 3, 32, 32, device=options.device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(100, (batch,), device=options.device)
    optimizer = torch.optim.Adam(model.parameters(), fused=on_gpu)

    def step(strength: float = 0.0) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16, enabled=on_gpu):
            loss = F.cross_entropy(model(x), y)
            if strength:
                loss = loss + strength * orthonormal_penalty(model)
        loss.backward()
        optimizer.step()

    def penalty() -> None:
        orthonormal_penalty(model).backward()  # onto gradients that are there, as after a loss

    jobs: dict[str, Callable[[], None]] = {
        "training step": step, "step again": step, "with the penalty": lambda: step(STRENGTH), "penalty alone": penalty
    }  # fmt: skip
    for job in jobs.values():
        milliseconds(job, 3, options.device)
    rounds = [
        {name: milliseconds(job, options.steps, options.device) for name, job in jobs.items()} for _ in range(options.rounds)
    ]
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"ResNet-32, batch {batch}, {name}, torch {torch.__version__}\n")
    print("| job | ms | share of the step |\n| --- | --- | --- |")
    for job in jobs:
        share = statistics.median(turn[job] / turn["training step"] for turn in rounds)
        print(f"| {job} | {statistics.median(turn[job] for turn in rounds):.3f} | {share:.2%} |")
    share = statistics.median(turn["penalty alone"] / turn["training step"] for turn in rounds)
    print(f"\npenalty / training step: {share:.2%}; bar {BAR:.0%}: {'met' if share < BAR else 'not met'}")


if __name__ == "__main__":
    main()
