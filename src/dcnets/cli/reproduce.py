"""`dcnets reproduce`: the paper's tables on this device, run after run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcnets.cli.command import Command
from dcnets.cli.failures import Failure, Misuse
from dcnets.cli.options import compile_options, data_option, device_option, how, place
from dcnets.cli.tables import TableName, chosen
from dcnets.cli.train import RESULTS
from dcnets.cli.words import FILE, FOLDER, Word, count, one_of

if TYPE_CHECKING:
    from dcnets.experiments.reproduce.carry_out import Engine
    from dcnets.experiments.reproduce.plan import Plan

RUNS = Path("runs")

EXAMPLES = (
    "dcnets reproduce table3 --dry-run",
    "dcnets reproduce table3 --cells 'segconv/*' --seeds 3 --data ~/data",
    "dcnets reproduce table2 table4 --scale 0.25",
    "dcnets reproduce table7 table8 --seeds 3",
    "dcnets reproduce fig4 fig6 fig7",
    "dcnets reproduce all --engine ray --jobs 2",
)


def read_scale(text: str) -> float:
    """A number above 0, 1 at most."""
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 1:
        raise ValueError(f"--scale is a number above 0 and at most 1, got {text!r}")
    return float(f"{scale:g}")  # as runs' names tell it


@click.command(cls=Command, short_help="Run the cells of the paper's tables.", examples=EXAMPLES)
@click.argument("tables", type=TableName(), nargs=-1, required=True, metavar="TABLE...")
@click.option("--cells", "patterns", multiple=True, metavar="CELL",
              help="Only cells whose name or recipe contains this, * and ? allowed; may be given again.")  # fmt: skip
@click.option("--seeds", type=count("--seeds"), default=1, metavar="N", show_default=True, help="Runs of each cell.")
@click.option("--scale", type=Word("scale", read_scale, lambda: ()), default=1.0, metavar="NUMBER", show_default=True,
              help="Shorten the schedules in proportion; such numbers are not the paper's.")  # fmt: skip
@click.option("--jobs", type=count("--jobs"), default=1, metavar="N", show_default=True,
              help="Runs at once on a device, where a warm-up says that it pays.")  # fmt: skip
@click.option("--warm-up/--no-warm-up", default=True,
              help="Time a few updates first; without it no time is told, and --jobs holds as it is.")  # fmt: skip
@click.option("--engine", "engine_name", type=one_of("engine", "local", "ray"), default="local", metavar="local|ray",
              show_default=True, help="ray: many GPUs or machines; RAY_ADDRESS is the cluster.")  # fmt: skip
@data_option
@click.option("--folder", type=FOLDER, default=RUNS, metavar="DIR", show_default=True, help="Where the runs are kept.")
@click.option("--results", "results_file", type=FILE, default=RESULTS, metavar="FILE", show_default=True,
              help="File whose runs are not done again, and to which new ones are appended.")  # fmt: skip
@click.option("--images", type=count("--images"), metavar="N",
              help="Test images under attack in Tables 7 and 8: the first; by default all.")  # fmt: skip
@device_option
@compile_options
@click.option("--precision", type=one_of("precision", "auto", "fp32", "bf16"), default="auto", metavar="auto|fp32|bf16",
              show_default=True, help="Arithmetic of the runs; auto: bf16 on a GPU that has it, else fp32.")  # fmt: skip
@click.option("--threads", type=count("--threads"), metavar="N", help="Threads of a run on the CPU.")
@click.option("--save-seconds", type=click.FLOAT, default=60.0, metavar="NUMBER", show_default=True,
              help="Time from one checkpoint of a run to the next.")  # fmt: skip
@click.option("--networks", is_flag=True,
              help="Train again what has a line but no network in --folder: for dcnets study, and pictures.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what there is to do and how long it takes, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of tables, and no bar.")
@click.option("--quiet", is_flag=True, help="No bar.")
def reproduce(
    tables: tuple[str, ...], patterns: tuple[str, ...], seeds: int, scale: float, jobs: int, warm_up: bool, engine_name: str,
    data_folder: Path | None, folder: Path, results_file: Path, images: int | None, device: str, compiled: bool | None,
    captured: bool | None, precision: str, threads: int | None, save_seconds: float, networks: bool, dry_run: bool,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run the cells of TABLE, which is table1 … table8 or all, that have no line in the results yet.

    Besides, fig4, fig6 and fig7 are the networks of these figures; pgd and variants are networks that are not in the paper,
    trained otherwise than those of Tables 7 and 8.
    What is an accuracy under attack is measured afterwards.

    First it says what is there, what is missing and how long that will take. A command that was stopped or killed goes on
    where it was, also within a run: give it again. A run that diverges is recorded as N/C, one that fails is told, and the
    rest go on.
    """
    cells = chosen(tables, patterns)
    if not any(cell.recipe for cell in cells):
        raise Misuse("none of these cells can be run: the paper has a dash there, or took the number from elsewhere")
    from dcnets.cli import reproduced, reproducing
    from dcnets.experiments.durable import check_writable
    from dcnets.experiments.report.rule import counted
    from dcnets.experiments.reproduce import plan as plans
    from dcnets.experiments.reproduce import warmup
    from dcnets.experiments.reproduce.attacked import beside_file
    from dcnets.experiments.reproduce.carry_out import carry_out, longest_first
    from dcnets.experiments.reproduce.lines import runs_in
    from dcnets.experiments.reproduce.local import Local
    from dcnets.experiments.reproduce.perform import Order
    from dcnets.experiments.robustness.study import lines as study
    from dcnets.experiments.settings import Settings

    speak = reproducing.nothing if as_json else click.echo
    engine = started(engine_name, jobs)
    try:
        where = engine.place(place(device) if engine_name == "local" else device)
        compiled, captured = how(where.device, compiled, captured)
        settings = Settings(compiled, captured, save_seconds=save_seconds, quiet=True)
        order = Order(where.device, absolute(data_folder), settings, threads)
        folder = folder.absolute()

        def planned(tell: Callable[[str], None] = reproducing.nothing) -> plans.Plan:
            (lines, torn), (attacks, also_torn) = runs_in(results_file), study.read(beside_file(results_file))
            for told in (*torn, *also_torn):
                tell(told)
            return plans.make(
                cells, lines, attacks, seeds=seeds, folder=folder, arithmetic=where.arithmetic, scale=scale,
                precision=precision, images=images, networks=networks,
            )  # fmt: skip

        plan = planned(err)
        missing = plan.missing
        if not as_json:
            reproducing.plan(plan, cells)
        if (missing or plan.unmeasured) and (warm_up or not dry_run):
            for file in (folder / warmup.FILE, results_file, beside_file(results_file)):
                check_writable(file)
        if isinstance(engine, Local) and where.device == "cuda" and jobs > 1 and missing:
            engine.share(err)
        expected = reproducing.expected(missing, order, folder, err) if warm_up else dict.fromkeys(missing)
        if warm_up and isinstance(engine, Local) and jobs > 1 and missing:
            engine.lanes = reproducing.lanes(expected, order, folder, jobs, err)
        outlook = reproducing.outlook(plan, expected, engine.width, where, seeds, scale)
        speak(outlook.told)
        if dry_run:
            if as_json:
                click.echo(json.dumps(reproduced.described(plan, outlook)))
            return
        absent = reproducing.supplied(missing, data_folder, quiet=as_json or quiet)
        todo = {job: seconds for job, seconds in expected.items() if job not in absent}
        outcome = carry_out(
            longest_first(todo) if engine.width > 1 else todo, engine, order, results_file,
            title=" ".join(dict.fromkeys(tables)), told=reproduced.teller(plan), quiet=quiet or as_json,
        )  # fmt: skip
    finally:
        engine.close()
    failed = {**absent, **outcome.failed}
    lanes = engine.lanes if engine_name == "local" else 1
    weak = attack(
        planned(), beside_file(results_file), data_folder, where.device, images, quiet=quiet or as_json, jobs=lanes,
        threads=threads,
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(reproduced.described(planned(), outlook, failed)))
    else:
        reproduced.numbers(planned())
    if weak:
        told = "; ".join(dict.fromkeys(weak.values()))
        raise Failure(f"{counted(len(weak), 'attack')} failed: {told}; the same command tries again")
    if failed:
        raise Failure(
            f"{len(failed)} of {len(missing)} runs failed: {reproduced.reasons(failed)}; the same command tries again"
        )
    speak(f"the runs are in {folder}, their lines in {results_file}")


def attack(
    plan: Plan, file: Path, data_folder: Path | None, device: str, images: int | None, *, quiet: bool, jobs: int,
    threads: int | None,
) -> dict[str, str]:  # fmt: skip
    """Measure the accuracies under attack that have no line yet; what is told of those that fail."""
    from dcnets.experiments.reproduce import attacked

    if not plan.unmeasured:
        return {}
    import torch

    from dcnets.cli import studying

    if device == "cuda" and not torch.cuda.is_available():
        count = len(plan.unmeasured)
        err(f"{count} accuracies under attack are not measured: this machine has no GPU; dcnets study does it on one")
        return {}
    if threads is not None:
        torch.set_num_threads(jobs * threads)
    tasks, told = attacked.tasks(plan, images)
    for each in told:
        err(each)
    where = torch.device(device)
    jobs = studying.fitting(jobs, where)
    return studying.carry_out(tasks, file, data_folder, where, title="attacks", quiet=quiet, jobs=jobs)


def started(name: str, lanes: int) -> Engine:
    """The engine of a name."""
    if name == "ray":
        from dcnets.experiments.reproduce.ray_engine import Ray

        return Ray(lanes)
    from dcnets.experiments.reproduce.local import Local

    return Local(lanes)


def absolute(path: Path | None) -> Path | None:
    """A path that means the same in every process."""
    return path.absolute() if path else None


def err(told: Any) -> None:
    """A line on stderr."""
    click.echo(told, err=True)
