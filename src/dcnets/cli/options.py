"""Options that several commands have: data, device, streams of images, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dcnets.cli.command import SectionOption
from dcnets.cli.failures import Misuse
from dcnets.cli.words import FOLDER, count, one_of
from dcnets.experiments.data.catalogue import STREAMS
from dcnets.experiments.recipe import Recipe

Function = TypeVar("Function", bound=Callable[..., Any])
STREAMED = f"Images that are read as they are needed (data sets {' and '.join(STREAMS)})"
PREFIX = "stream_"

data_option = click.option(
    "--data", "data_folder", type=FOLDER, metavar="DIR",
    help="Folder of the data; else that of DCNETS_DATA, else ~/.cache/dcnets. What is missing is downloaded to it.",
)  # fmt: skip
device_option = click.option(
    "--device", type=one_of("device", "auto", "cpu", "cuda"), default="auto", metavar="auto|cpu|cuda", show_default=True,
    help="Where it is computed; auto: on the GPU where there is one.",
)  # fmt: skip


def compile_options(function: Function) -> Function:
    """--compile and --capture."""
    for name, help in (
        ("capture", "Whole updates as CUDA graphs; by default on one GPU, without torchrun."),
        ("compile", "Use torch.compile; by default on a GPU."),
    ):
        function = click.option(f"--{name}/--no-{name}", f"{name}d", default=None, help=help)(function)
    return function


def stream_options(*, training: bool) -> Callable[[Function], Function]:
    """What `data.stream` takes; crops of a kind are for training."""
    options: list[tuple[str, dict[str, Any]]] = [
        ("--workers", {"type": count("--workers", least=0), "metavar": "N", "help": "Processes that decode (one a CPU)."}),
        ("--resize", {"type": count("--resize"), "metavar": "N", "help": "Pixels to resize each side to (256)."}),
        ("--crop", {"type": count("--crop"), "metavar": "N", "help": "Pixels of the square that is used (224)."}),
        ("--crops", {"type": one_of("crops", "fixed", "resized"), "metavar": "fixed|resized",
                     "help": "Training: a random place, or a random part resized (fixed)."}),
        ("--skip-bad", {"is_flag": True, "default": None, "help": "Pass over unreadable images and count them."}),
    ]  # fmt: skip

    def add(function: Function) -> Function:
        for name, settings in reversed(options):
            if training or name != "--crops":
                dest = PREFIX + name[2:].replace("-", "_")
                function = click.option(name, dest, cls=SectionOption, section=STREAMED, **settings)(function)
        return function

    return add


def stream_values(values: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The options of streams that were given, which leave the values; refused where the data is no stream."""
    streamed = {key.removeprefix(PREFIX): values.pop(key) for key in list(values) if key.startswith(PREFIX)}
    given = {name: value for name, value in streamed.items() if value is not None}
    if given and recipe.data not in STREAMS:
        name = next(iter(given)).replace("_", "-")
        raise Misuse(f"--{name} is for data sets {' and '.join(STREAMS)}, and {recipe.data} lies in memory; leave it out")
    return given


def place(device: str) -> str:
    """cpu or cuda, as it is here."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU here; use --device cpu, or install a torch with CUDA and a driver")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def how(place: str, compiled: bool | None, captured: bool | None, *, simple: bool = True) -> tuple[bool, bool]:
    """Whether updates are compiled and whether they are captured, by default on a GPU; only `simple` ones can be."""
    can_capture = place == "cuda" and simple
    if captured and not can_capture:
        raise ValueError(
            "--capture makes CUDA graphs of one process whose batch comes in one piece; "
            "leave it out on a CPU, under torchrun and where a stream is accumulated"
        )
    return place == "cuda" if compiled is None else compiled, can_capture if captured is None else captured
