"""The demo: three networks with two features trained on real digits, and one page that shows what they learn."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

try:
    import rich.box
    import torch
    from features import RECIPES, Run, recipe_for, train
    from page import cells, heads, write_page
    from rich.console import Console
    from rich.table import Table

    from dcnets.experiments.signals import StoppedError
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"the demo needs {str(missing.name).partition('.')[0]}, which is not installed; run: pip install dcnets[demo]"
    ) from None

FOLDER = Path(__file__).resolve().parents[1] / "demo"


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, help="epochs for each network (default: those of its recipe)")
    length.add_argument("--quick", action="store_true", help="a few updates for each network, to see that everything works")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the page (default: demo/ beside examples/)")
    arguments = parser.parse_args(words)
    for name, least in (("epochs", 1), ("seed", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            parser.error(f"--{name} must be at least {least}, got {value}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=arguments.out).close()  # better now than after minutes of training
    except OSError as problem:
        parser.error(f"cannot write to --out {arguments.out}: {problem.strerror}; choose another folder")
    return arguments


def train_all(console: Console, seed: int, epochs: int | None, quick: bool) -> list[Run]:
    """Train every network with a bar, or with a few lines where there is no terminal."""
    runs = []
    for number, name in enumerate(RECIPES, 1):
        console.print(f"[bold]{name}[/bold], network {number} of {len(RECIPES)}")
        runs.append(train(name, recipe_for(name, seed, epochs, quick)))
    return runs


def table_of(runs: list[Run]) -> Table:
    """The comparison as a table."""
    table = Table(box=rich.box.SIMPLE_HEAD)
    for column, head in enumerate(heads()):
        table.add_column(head, justify="right" if column else "left", no_wrap=column == 0)
    for run in runs:
        table.add_row(*cells(run))
    return table


def main(words: list[str] | None = None) -> None:
    """Train, compare, draw, write."""
    arguments = read_arguments(words)
    begin = time.perf_counter()
    torch.set_num_threads(1)  # the networks are too small to share among cores
    console = Console(highlight=False)
    try:
        runs = train_all(console, arguments.seed, arguments.epochs, arguments.quick)
    except ArithmeticError as divergence:
        raise SystemExit(f"no page was written: {divergence}") from None
    except StoppedError as stop:
        print(f"no page was written: {stop}", file=sys.stderr)
        raise SystemExit(128 + stop.signal) from None
    console.print(table_of(runs))
    page = write_page(arguments.out, runs)
    console.print(f"done in {time.perf_counter() - begin:.0f} s; the page with all pictures is", soft_wrap=True)
    console.print(f"  {page}", soft_wrap=True)


if __name__ == "__main__":
    main()
