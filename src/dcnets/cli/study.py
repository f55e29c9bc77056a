"""`dcnets study`: everything that is measured of the robustness of all networks in a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import Failure, Misuse
from dcnets.cli.options import data_option, device_option, place
from dcnets.cli.reproduce import RUNS, read_scale
from dcnets.cli.words import FILE, THERE, Word, count
from dcnets.experiments.study_parts import FROZEN, PARTS
from dcnets.naming import choose

if TYPE_CHECKING:
    from dcnets.experiments.robustness.setting import Frozen
    from dcnets.experiments.robustness.study.arena import Arena
    from dcnets.experiments.robustness.study.networks import Network
    from dcnets.experiments.robustness.study.tasks import Task

RESULTS = Path("results/attacks.jsonl")
EXAMPLES = (
    "dcnets study --data ~/data",
    "dcnets study runs --parts tables,frozen --images 2000 --few 200",
    "dcnets study --tables > robustness-results.md",
)


def parts() -> Word:
    """Parts of a study, each once."""

    def read(text: str) -> list[str]:
        return list(dict.fromkeys(choose("part", part.strip(), PARTS) for part in text.split(",")))

    return Word("parts", read, lambda: PARTS)


@click.command(cls=Command, short_help="Study the robustness of a folder of runs.", examples=EXAMPLES)
@click.argument("paths", type=THERE, nargs=-1, metavar="[FOLDER]...")
@click.option("--parts", "wanted", type=parts(), default=",".join(PARTS), metavar="PART,…",
              help=f"What is measured, of {', '.join(PARTS)}; by default all.")  # fmt: skip
@click.option("--images", type=count("--images"), metavar="N", help="Test images: the first; by default all.")
@click.option("--few", type=count("--few"), default=1000, metavar="N", show_default=True,
              help="Images of what takes long: curves, lipschitz and masking.")  # fmt: skip
@click.option("--batch", type=count("--batch"), metavar="N", help="Images at a time (2000 on a GPU, 250 on a CPU).")
@click.option("--jobs", type=count("--jobs"), default=1, metavar="N", show_default=True,
              help="Networks attacked at once, each in a process of its own.")  # fmt: skip
@click.option("--autoattack/--no-autoattack", default=True, help="AutoAttack in the masking report.")
@click.option("--results", "results_file", type=FILE, default=RESULTS, metavar="FILE", show_default=True,
              help="File whose measurements are not made again, and to which new ones are appended.")  # fmt: skip
@click.option("--tables", is_flag=True, help="Print the file's numbers as Markdown, and measure nothing.")
@click.option("--scale", type=Word("scale", read_scale, lambda: ()), metavar="NUMBER",
              help="With --tables: the scale of the schedules; by default the largest.")  # fmt: skip
@data_option
@device_option
@click.option("--dry-run", is_flag=True, help="Say what there is to do and how long it takes, and do nothing.")
@click.option("--quiet", is_flag=True, help="No bar.")
def study(
    paths: tuple[Path, ...], wanted: list[str], images: int | None, few: int, batch: int | None, jobs: int, autoattack: bool,
    results_file: Path, tables: bool, scale: float | None, data_folder: Path | None, device: str, dry_run: bool, quiet: bool,
) -> None:  # fmt: skip
    """Attack all networks in FOLDER, a run or a folder of runs (runs), in every way of docs/robustness.md.

    What has its line in the results is not measured again, so that a study that was stopped or killed goes on: give the
    command again.
    """
    from dcnets.experiments.robustness.study import lines

    if tables:
        from dcnets.experiments.robustness.study import markdown

        click.echo(markdown.tables(told(*lines.read(results_file)), scale), nl=False)
        return
    if scale is not None:
        raise Misuse("--scale chooses the lines of --tables; a study measures all networks that it finds")
    import torch

    from dcnets.attacks.ensemble import pyautoattack
    from dcnets.cli import studying
    from dcnets.experiments.durable import check_writable
    from dcnets.experiments.robustness.study.networks import trained

    if not dry_run:
        check_writable(results_file)
    if autoattack and "masking" in wanted:
        pyautoattack()
    networks = told(*trained(list(paths) or [RUNS]))
    if all(each.substitute for each in networks):
        raise Failure("no trained network is in these folders; dcnets reproduce table7 table8 trains those of the paper")
    where, failed, count = torch.device(place(device)), dict[str, str](), 0
    for data in dict.fromkeys(each.recipe.data for each in networks):
        ours = [each for each in networks if each.recipe.data == data]
        arena = studying.arena(ours[0], data_folder, where, batch, images, quiet)
        known, searches = settled(ours, arena, results_file, dry_run=dry_run) if FROZEN in wanted else ({}, [])
        tasks = studying.planned(ours, wanted, arena, few, known, autoattack, results_file)
        count += len(searches) + len(tasks)
        if dry_run:
            studying.outlook([*searches, *tasks], arena, "study", jobs)
        else:
            failed |= studying.shown(tasks, arena, results_file, data_folder, title="study", quiet=quiet, jobs=jobs)
    if failed:
        raise Failure(f"{len(failed)} of {count} measurements failed: {'; '.join(dict.fromkeys(failed.values()))}")
    click.echo(f"{len(networks)} networks, {count} measurements to do" if dry_run
               else f"{len(networks)} networks, {count} new measurements; the lines are in {results_file}")  # fmt: skip


def settled(
    networks: list[Network], arena: Arena, file: Path, *, dry_run: bool
) -> tuple[dict[tuple[str, str, float], Frozen], list[Task]]:
    """The frozen setting of each family that has one, that of its line or one that is sought now, and the searches.

    A dry run seeks none, and takes ours in its place.
    """
    from dcnets.experiments.robustness.setting import MAIN, Frozen
    from dcnets.experiments.robustness.study import lines, work

    found, searches, there = {}, [], lines.read(file)[0]
    for family in dict.fromkeys(each.family for each in networks):
        known = lines.frozen_in(there, family)
        baselines = [each for each in networks if each.baseline and each.family == family]
        if known is None and baselines:
            searches.append(work.search(baselines, arena))
            if dry_run:
                known = Frozen(MAIN, arena.halves[1][0])
            else:
                click.echo("looking for the setting under which the baseline is nearest to the paper's", err=True)
                known = work.seek(baselines, arena, file, lambda text: click.echo(text, err=True))
        if known:
            found[family] = known
    return found, searches


def told(found: list, notes: list[str]) -> list:  # type: ignore[type-arg]
    """What was found, once its notes are told."""
    for note in notes:
        click.echo(note, err=True)
    return found
