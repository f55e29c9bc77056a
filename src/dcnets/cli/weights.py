"""`dcnets weights`: trained networks without what only training needs."""

from __future__ import annotations

from pathlib import Path

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import Misuse
from dcnets.cli.output import show
from dcnets.cli.words import FOLDER, THERE

EXAMPLES = (
    "dcnets weights runs --out networks",
    "dcnets weights runs/cifar100-cnn9-seed0 --out networks",
    "dcnets attack networks/cifar100-cnn9-seed0 --eps 8/255 --step 2/255 --steps 10",
)


@click.command(cls=Command, short_help="Take trained networks out of their runs.", examples=EXAMPLES)
@click.argument("paths", type=THERE, nargs=-1, metavar="FOLDER_OR_CHECKPOINT...")
@click.option(
    "--out", type=FOLDER, required=True, metavar="DIR", help="Folder in which each network gets a folder of its own."
)
def weights(paths: tuple[Path, ...], out: Path) -> None:
    """Copy trained networks without what only training needs, such as Adam's moments: a third of the size.

    A path is a run, a folder of runs or one checkpoint. Every command takes the copy as it takes the run, but that
    training cannot go on from it; `dcnets train --start` begins with its weights. Given again, the command adds the
    networks that are new and renews those whose run has gone on.
    """
    from dcnets.experiments import checkpoint
    from dcnets.experiments.checkpoint import CheckpointError
    from dcnets.experiments.weights import alone, is_copy_of, open_checkpoint, runs_in

    if not paths:
        raise Misuse("missing FOLDER_OR_CHECKPOINT, such as runs; see dcnets weights --help")
    given = [run for path in paths for run in (runs_in(path) if path.is_dir() else [path])]
    if not given:
        raise CheckpointError(f"{', '.join(map(str, paths))} holds no checkpoint; give runs, or a folder of runs")
    places: dict[Path, Path] = {}
    there: dict[Path, int] = {}
    for run in given:
        place = out / (run if run.is_dir() else run.parent).resolve().name
        if (other := places.setdefault(place, run)) != run:
            raise Misuse(f"{other} and {run} would both be {place}; give one of them")
        if kept := checkpoint.latest(place):
            if not is_copy_of(kept, open_checkpoint(run)):
                raise CheckpointError(f"{place} already holds checkpoints, which would be lost; choose another --out")
            there[place] = kept.step
    rows = []
    for place, run in places.items():
        found, told = open_checkpoint(run), "there already"
        if found.note:
            click.echo(found.note, err=True)
        if there.get(place, -1) < found.step:
            checkpoint.save(place, found.step, *alone(found))
            told = "renewed" if place in there else "new"
        *older, copy = checkpoint.found(place)
        for file in older:
            file.unlink()
        rows.append((place.name, f"{checkpoint.step_of(copy):,}", megabytes(copy), megabytes(found.path), told))
    show(("network", "update", "MB", "MB of the run", "copy"), rows, ("update", "MB", "MB of the run"))
    click.echo(f"{len(rows)} {'network is' if len(rows) == 1 else 'networks are'} in {out}")


def megabytes(path: Path) -> str:
    """The size of a file."""
    return f"{path.stat().st_size / 1e6:.1f}"
