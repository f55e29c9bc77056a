"""Decoupled networks against plain ones on one GPU: the ratios of time and memory beside their bars, and the bandwidth.

    python benchmarks/gpu.py [--rows resnet32,memory,…] [--jobs N] [--results FILE]

bf16 autocast, channels_last, random images; both networks in the same process, taking turns, medians of CUDA events.
First all networks are compiled, each pair in a process of its own and several at once; then the pairs are measured one after
another. A row is printed and appended to the results as soon as it is measured, the table follows at the end.
`dcnets bench --table` does the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from dcnets.experiments import gpu_table

RESULTS = Path(__file__).parent.parent / "results" / "bench-gpu.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(gpu_table.names()), help="comma-separated; all by default: %(default)s")
    parser.add_argument("--jobs", type=int, help="pairs that are compiled at once; by default half of the cores, 8 at most")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where a line for each row is appended")
    options = parser.parse_args()
    try:
        names = gpu_table.read_names(options.rows)
    except ValueError as error:
        parser.error(str(error))
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs is a number of 1 or more, got {options.jobs}")
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    rows = []
    for row in gpu_table.table(names, options.results, torch.device("cuda"), options.jobs):
        rows.append(gpu_table.cells(row))
        print("  ".join(rows[-1]), flush=True)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    for cells in (gpu_table.COLUMNS, ("---",) * len(gpu_table.COLUMNS), *rows):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
