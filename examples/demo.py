"""The demo: every h and g plotted, small decoupled networks beside their plain twins, and one page that shows it all."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

try:
    import rich.box
    import torch
    from curves import angular_curves, magnitude_curves
    from digits import CONTESTANTS, GOAL, Contestant, Data, Run, compare_steps, load, train
    from page import write_page
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"the demo needs {str(missing.name).partition('.')[0]}, which is not installed; run: pip install dcnets[demo]"
    ) from None

FOLDER = Path(__file__).resolve().parents[1] / "demo"


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10, help="epochs for each network (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the page (default: demo/ beside examples/)")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        parser.error(f"cannot write to --out {arguments.out}: {problem.strerror}; choose another folder")
    return arguments


def train_all(console: Console, data: Data, epochs: int) -> list[Run]:
    """Train every network; a bar for each on a terminal, a line for each elsewhere."""
    console.print(f"training {len(CONTESTANTS)} networks on {len(data.x)} digits, testing on {len(data.x_test)} others")
    if console.is_terminal:
        runs = with_bars(console, epochs, lambda contestant, report: train(contestant, data, epochs, report))
    else:
        runs = [with_line(console, train(contestant, data, epochs, lambda run: None)) for contestant in CONTESTANTS]
    console.print("timing their steps, in turns")
    compare_steps(runs, data)
    return runs


def with_bars(console: Console, epochs: int, fit: Callable[[Contestant, Callable[[Run], None]], Run]) -> list[Run]:
    """Train with a progress bar for each network."""
    columns = (
        TextColumn("{task.description:<32}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        tasks = {c: progress.add_task(c.name, total=epochs, start=False, state="waiting") for c in CONTESTANTS}

        def report(run: Run) -> None:
            progress.update(tasks[run.contestant], advance=1, state=f"{run.accuracies[-1]:.1%}")

        runs = []
        for contestant, task in tasks.items():
            progress.start_task(task)
            runs.append(fit(contestant, report))
    return runs


def with_line(console: Console, run: Run) -> Run:
    """Say in one line how a training went."""
    console.print(f"  {run.contestant.name:<33} {run.accuracies[-1]:6.1%} after {run.seconds:.1f} s")
    return run


def table_of(runs: list[Run]) -> Table:
    """The comparison as a table."""
    table = Table(box=rich.box.SIMPLE_HEAD)
    table.add_column("network", no_wrap=True)
    for head in ("test accuracy", f"epochs to {GOAL:.0%}", "seconds", "step / twin's"):
        table.add_column(head, justify="right")
    for run in runs:
        epochs = f"{run.epochs_to_goal or '–'} of {len(run.accuracies)}"
        table.add_row(
            run.contestant.name, f"{run.accuracies[-1]:.1%}", epochs, f"{run.seconds:.1f}", f"{run.step_ratio:.2f}"
        )
    return table


def main() -> None:
    """Train, compare, draw, write."""
    arguments = read_arguments()
    begin = time.perf_counter()
    torch.set_num_threads(1)  # the networks are too small to share among cores
    console = Console(highlight=False)
    data = load()
    runs = train_all(console, data, arguments.epochs)
    console.print(table_of(runs))
    page = write_page(arguments.out, runs, len(data.x_test), magnitude_curves(), angular_curves())
    console.print(f"done in {time.perf_counter() - begin:.0f} s; the page with all curves is", soft_wrap=True)
    console.print(f"  {page}", soft_wrap=True)


if __name__ == "__main__":
    main()
