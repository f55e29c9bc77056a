"""What `dcnets study` and `dcnets reproduce` do with tasks of a study: what is there, how long the rest takes, a bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import torch

from dcnets.attacks.batches import Batch
from dcnets.cli.failures import Failure
from dcnets.cli.scoring import open_set
from dcnets.cli.train import spoken_time
from dcnets.experiments.data import Dataset
from dcnets.experiments.progress import Progress
from dcnets.experiments.reproduce.sharing import shared_gpu
from dcnets.experiments.results import environment
from dcnets.experiments.robustness.setting import Frozen
from dcnets.experiments.robustness.study import lanes, lines, work
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.robustness.study.networks import Network
from dcnets.experiments.robustness.study.tasks import Sizes, Task, wanted

BATCH = {"cuda": 2000, "cpu": 250}
"""Images at a time, by the kind of device."""
ROOM = 12 * 2**30
"""Bytes of a GPU that a process with so many images at a time is given; the network of Tables 7 and 8 takes 10.5 GiB."""


def fitting(jobs: int, device: torch.device) -> int:
    """How many networks are attacked at once where up to `jobs` may be: on a GPU no more than there is memory for."""
    return max(1, min(jobs, torch.cuda.mem_get_info(device)[0] // ROOM)) if device.type == "cuda" else jobs


def arena(
    network: Network, data_folder: Path | None, device: torch.device, batch: int | None, images: int | None, quiet: bool
) -> Arena:
    """A network's test images on a device."""
    opened = open_set(network.recipe, data_folder, device.type, 1, quiet, {})
    if not isinstance(opened, Dataset):
        raise ValueError(f"{network.recipe.data} is a stream; a study has its images in memory")
    return Arena(opened, device, batch=batch or BATCH[device.type], images=images)


def carry_out(
    tasks: Iterable[Task], file: Path, data_folder: Path | None, device: torch.device, *, title: str, quiet: bool, jobs: int
) -> dict[str, str]:
    """Do those of some tasks that have no line in the file, data set by data set; what is told of those that fail."""
    rest = work.missing(tasks, lines.read(file)[0])
    failed: dict[str, str] = {}
    for data in dict.fromkeys(task.victim.recipe.data for task in rest):
        ours = [task for task in rest if task.victim.recipe.data == data]
        place = arena(ours[0].victim, data_folder, device, None, None, quiet)
        failed |= shown(ours, place, file, data_folder, title=title, quiet=quiet, jobs=jobs)
    return failed


def planned(
    networks: Sequence[Network], parts: Sequence[str], place: Arena, few: int,
    known: Mapping[tuple[str, str, float], Frozen], autoattack: bool, file: Path,
) -> list[Task]:  # fmt: skip
    """The tasks of a study of some networks that have no line in the file."""
    sizes = Sizes(place.whole, place.halves[0], place.first(few))
    return work.missing(wanted(networks, parts, sizes, known, autoattack), lines.read(file)[0])


def outlook(tasks: Sequence[Task], place: Arena, title: str, jobs: int) -> None:
    """Say how much there is to do, and how long it takes."""
    name = f"{environment(place.device.type)['device']}{', one at a time' if jobs > 1 else ''}"
    time = f", in about {spoken_time(work.expected(tasks, place))} on {name}" if tasks else ""
    click.echo(f"{title}: {len(tasks)} measurements to do{time}", err=True)


def shown(
    tasks: Sequence[Task], place: Arena, file: Path, data_folder: Path | None, *, title: str, quiet: bool, jobs: int
) -> dict[str, str]:
    """Do tasks under a bar, so many at once, after a word on how long they take."""
    if not tasks:
        return {}
    if not quiet:
        outlook(tasks, place, title, jobs)
    with bar(title, tasks, place, quiet) as (progress, done):
        tell = (lambda told: None) if quiet else progress.note
        if jobs == 1:
            return work.carry_out(tasks, place, file, tell, done)
        threads = max(1, torch.get_num_threads() // jobs)
        apart = lanes.Place(tasks[0].victim.recipe.data, data_folder, place.device.type, place.batch, len(place.y), threads)
        with shared_gpu(tell) if place.device.type == "cuda" else nullcontext():
            return lanes.carry_out(tasks, apart, file, jobs, tell, done)


@contextmanager
def bar(title: str, tasks: Sequence[Task], place: Arena, quiet: bool) -> Iterator[tuple[Progress, work.Done]]:
    """A bar of all gradients that are expected, and below it one of the batches of the present attack."""
    total, gone = max(1, round(sum(task.cost for task in tasks))), 0.0
    with Progress(title, total, unit="gradient", quiet=quiet) as progress:
        progress.update(0)

        def done(cost: float) -> None:
            nonlocal gone
            gone += cost
            progress.update(min(total, round(gone)))

        def watch(name: str, batches: Sequence[Batch]) -> Iterable[Batch]:
            return progress.track(batches, name, len(batches))

        place.watch = watch
        try:
            yield progress, done
        except torch.OutOfMemoryError:
            raise Failure("the GPU's memory is full; a smaller --batch needs less of it") from None
        progress.update(total)
