"""What `dcnets attack` does before and while it measures: the trials that were asked for, the networks, a bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from dcnets.attacks.batches import Batch
from dcnets.attacks.ensemble import pyautoattack
from dcnets.cli.attack_words import Steps
from dcnets.cli.failures import Failure, Misuse
from dcnets.cli.options import stream_values
from dcnets.cli.scoring import open_set
from dcnets.experiments import checkpoint
from dcnets.experiments.plotting import FORMATS, drawing
from dcnets.experiments.progress import Progress
from dcnets.experiments.rebuild import CROP
from dcnets.experiments.robustness.evaluation import Wanted
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.subjects import Subject, pixels_of, rebuild_all, subject
from dcnets.experiments.robustness.trials import TAKES, Trial, Watch

BY_GRADIENT = ("pgd", "bim", "fgsm")
"""Of the attacks that are given the first of these makes the examples that are transferred."""
RESTARTS = 5
"""Those of a masking report, unless --restarts asks for two or more."""


@dataclass(frozen=True)
class Request:
    """The options that say what is tried."""

    eps: list[float]
    attacks: list[str]
    step: Steps | None
    steps: int | None
    restarts: int
    queries: int
    norm: str
    at: float | None
    seed: int

    def check_used(self, given: set[str], *, masking: bool, lipschitz: bool) -> None:
        """Refuse a given option that nothing of what was asked for takes."""
        used = {name for attack in self.attacks for name in TAKES[attack]}
        used |= {"step", "steps", "restarts", "queries", "seed"} if masking else set()
        used |= {"step", "steps", "seed"} if lipschitz else set()
        for name in ("step", "steps", "restarts", "queries", "seed"):
            if name in given - used:
                takers = [attack for attack, takes in TAKES.items() if name in takes]
                raise Misuse(
                    f"--{name} means nothing to {' and '.join(self.attacks)}; leave it out, or add one of "
                    f"{', '.join(takers)} to --attack"
                )

    def wanted(self, *, transfer: bool, masking: bool, lipschitz: bool) -> Wanted:
        """The trials, or what has to be given first."""
        attacks = tuple(tuple(self.trial(name, eps) for eps in self.eps) for name in self.attacks)
        if not (transfer or masking or lipschitz):
            if self.at is not None:
                raise Misuse("--at is the ε of --substitute, --matrix, --masking and --lipschitz; none of them is given")
            return Wanted(attacks)
        eps = self.at if self.at is not None else self.eps[-1]
        if not eps or (self.at is None and sum(map(bool, self.eps)) > 1):
            raise Misuse(
                "--substitute, --matrix, --masking and --lipschitz are done at one ε above 0, and --eps has "
                f"{len(self.eps)}; say which with --at"
            )
        plan = Plan(self.trial("pgd", eps, restarts=1), self.restarts if self.restarts > 1 else RESTARTS, self.queries,
                    "autoattack" in self.attacks) if masking else None  # fmt: skip
        return Wanted(
            attacks, self.transferred(eps) if transfer else None, plan,
            self.trial("pgd", eps, restarts=1) if lipschitz else None,
        )  # fmt: skip

    def transferred(self, eps: float) -> Trial:
        """The attack whose examples are tried on other networks."""
        name = next((name for name in BY_GRADIENT if name in self.attacks), None)
        if name is None:
            raise Misuse(f"examples to transfer are made by one of {', '.join(BY_GRADIENT)}; add it to --attack")
        return self.trial(name, eps)

    def trial(self, attack: str, eps: float, restarts: int | None = None) -> Trial:
        """An attack at an ε, with those of the options that it takes."""
        if "steps" in TAKES[attack] and (self.step is None or self.steps is None):
            raise Misuse(f"{attack} needs --step and --steps, as --step eps/4 --steps 10; there is no honest default")
        own: dict[str, Any] = {
            "step": self.step and self.step.at(eps), "steps": self.steps, "queries": self.queries, "seed": self.seed,
            "restarts": self.restarts if restarts is None else restarts,
        }  # fmt: skip
        try:
            return Trial(attack, eps, self.norm, **{name: own[name] for name in TAKES[attack]})
        except ValueError as error:
            raise Misuse(str(error)) from None

    def check(self, out: Path | None, networks: int, substitutes: int, matrix: bool) -> None:
        """Refuse, before anything is computed, what would fail at the end."""
        if out is not None and out.suffix not in FORMATS:
            raise Misuse(f"--out is a picture, one of {', '.join(FORMATS)}, got {out.name!r}")
        if out is not None and len(self.eps) < 2:
            raise Misuse("--out draws a curve, which needs two ε or more; give --eps 0,8/255, or grid")
        if out is not None:
            drawing()
        if "autoattack" in self.attacks:
            pyautoattack()
        if matrix and networks + substitutes < 2:
            raise Misuse("--matrix compares networks; give two or more")


def opened_subjects(
    paths: Sequence[Path], substitutes: Sequence[Path], images: int, folder: Path | None, device: torch.device,
    precision: torch.dtype, quiet: bool, rest: dict[str, Any],
) -> tuple[list[Subject], list[Subject], Tensor, Tensor]:  # fmt: skip
    """The networks, the substitutes, and the images in [0, 1] with their classes; `rest` has the options of streams."""
    check_apart(paths, substitutes)
    rebuilt = rebuild_all([*paths, *substitutes], rest.get("stream_crop") or CROP)
    first = next(iter(rebuilt.values()))
    opened = open_set(first.recipe, folder, device.type, 1, quiet, stream_values(rest, first.recipe))
    if opened.num_classes != first.num_classes:
        raise ValueError(
            f"the networks know {first.num_classes} classes, the data has {opened.num_classes}; "
            "give the data that they were trained on"
        )
    for each in rebuilt.values():
        if each.checkpoint.note:
            click.echo(each.checkpoint.note, err=True)
    found = [subject(name, each, opened, device, precision) for name, each in rebuilt.items()]
    x, y = pixels_of(opened, images)
    return found[: len(paths)], found[len(paths) :], x, y


def check_apart(paths: Sequence[Path], substitutes: Sequence[Path]) -> None:
    """Refuse a network that is given twice, whether by another path to it or by the newest checkpoint in its folder."""
    own, others = ([newest(path.resolve()) for path in some] for some in (paths, substitutes))
    for path, file in zip(paths, own, strict=True):
        if file in others:
            raise Misuse(f"{path} is a network and its own substitute; a substitute is another run")
    for path, file in zip((*paths, *substitutes), (*own, *others), strict=True):
        if (times := (own + others).count(file)) > 1:
            raise Misuse(f"{path} is given {times} times")


def newest(path: Path) -> Path:
    """The newest checkpoint in a folder; a path without one as it is."""
    return next(reversed(checkpoint.found(path) if path.is_dir() else []), path)


@contextmanager
def watched(jobs: int, *, quiet: bool) -> Iterator[Watch]:
    """A bar of all attacks on stderr, and below it one of the batches of the present attack."""
    with Progress("attack", jobs, unit="attack", quiet=quiet) as progress:
        progress.update(0)
        done = 0

        def watch(title: str, batches: Sequence[Batch]) -> Iterable[Batch]:
            nonlocal done
            yield from progress.track(batches, title, len(batches))
            done = min(done + 1, jobs - 1)
            progress.update(done)

        try:
            yield watch
        except torch.OutOfMemoryError:
            raise Failure("the GPU's memory is full; a smaller --batch needs less of it") from None
        progress.update(jobs)
