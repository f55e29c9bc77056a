"""The folders of runs: which there are, what each was, and its network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcnets.experiments import recipes
from dcnets.experiments.checkpoint import CheckpointError, found
from dcnets.experiments.rebuild import Rebuilt, rebuild
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.reproduce.job import updates
from dcnets.experiments.reproduce.lines import origin
from dcnets.experiments.same_recipe import differences

NAME = re.compile(r"(.+)-seed(\d+)")


@dataclass(frozen=True)
class Folder:
    """A run's folder with a checkpoint in it: the recipe that its name begins with, and its seed."""

    path: Path
    name: str
    stem: str
    seed: int

    @property
    def changed(self) -> bool:
        """Whether the name tells of changes to the recipe: a scale, fewer epochs."""
        return self.name != self.stem


def folders(runs: Path | None) -> list[Folder]:
    """All runs in a folder of runs, in the order of the recipes, unchanged ones first, then by seed."""
    if runs is None or not runs.is_dir():
        return []
    order = {name: at for at, name in enumerate(recipes.recipes())}
    listed = [folder for path in runs.iterdir() if (folder := folder_at(path))]
    return sorted(listed, key=lambda each: (order[each.stem], each.changed, each.name, each.seed))


def folder_at(path: Path) -> Folder | None:
    """A run's folder, or None where it is none, or holds no checkpoint."""
    match = NAME.fullmatch(path.name)
    stem = origin(match[1], recipes.recipes()) if match else None
    if not match or stem is None or not path.is_dir() or not found(path):
        return None
    return Folder(path, match[1], stem, int(match[2]))


def opened(some: Iterator[Folder] | list[Folder], failed: list[str]) -> Iterator[tuple[Folder, Rebuilt]]:
    """The networks of some folders; what cannot be read is told in `failed`."""
    for folder in some:
        try:
            yield folder, rebuild(folder.path)
        except (CheckpointError, ValueError, OSError) as error:
            failed.append(f"{folder.path.name} cannot be read: {' '.join(str(error).split())}")


def lost(folder: Folder, built: Rebuilt) -> str | None:
    """What is told of a network that did not converge, which no figure shows; None of one that did."""
    finite = all(bool(each.isfinite().all()) for each in built.model.parameters())
    if finite and not built.checkpoint.state.get("divergence"):
        return None
    return f"{folder.path.name} did not converge (N/C) and is not shown."


def changes(recipe: Recipe, wanted: Recipe, but: tuple[str, ...] = ("name", "seed")) -> dict[str, tuple[Any, Any]]:
    """In what a run's recipe is not the wanted one."""
    found = differences(dataclasses.asdict(recipe), dataclasses.asdict(wanted))
    return {name: pair for name, pair in found.items() if name not in but}


def told_changes(found: dict[str, tuple[Any, Any]]) -> str:
    """Changes in words, as `iterations 40, where the recipe has epochs 10`; what a side has none of is left out there."""
    own, its = (
        ", ".join(spoken(name, pair[side]) for name, pair in found.items() if pair[side] is not None) for side in (0, 1)
    )
    return f"{own or 'nothing'}, where the recipe has {its or 'nothing'}" if found else ""


def spoken(name: str, value: Any) -> str:
    """A field with its value."""
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def furthest(some: list[Folder], failed: list[str]) -> tuple[Folder, Rebuilt] | None:
    """The first network of some folders that came to its end, or else the nearest to it; what did not converge is told."""
    best, share = None, -1.0
    for folder, built in opened(some, failed):
        if told := lost(folder, built):
            failed.append(told)
            continue
        done = min(1.0, built.checkpoint.step / updates(built.recipe))
        if done > share:
            best, share = (folder, built), done
        if done == 1:
            break
    return best


def progress(built: Rebuilt) -> str:
    """How far a network has come, in words."""
    step, end = built.checkpoint.step, updates(built.recipe)
    return f"{step:,} updates" if step >= end else f"unfinished: after {step:,} of {end:,} updates"


def named(folder: Folder, built: Rebuilt) -> str:
    """A run's name, and how far it has come where that is not its end."""
    finished = built.checkpoint.step >= updates(built.recipe)
    return folder.name if finished else f"{folder.name} ({progress(built)})"
