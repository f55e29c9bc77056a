"""Lines of results and collected cells that are made up, for the tests of the report."""

from dataclasses import asdict
from pathlib import Path

from dcnets.experiments import recipes
from dcnets.experiments.paper import OWN_ROWS, TABLES
from dcnets.experiments.paper.tables import SUBSTITUTE, SUBSTITUTE_SEED
from dcnets.experiments.report.cells import Collected, Result, Sample, Standard
from dcnets.experiments.report.collect import Found, collect
from dcnets.experiments.reproduce.job import updates
from dcnets.experiments.reproduce.plan import folder_of, named
from dcnets.experiments.robustness.setting import MAIN

CELLS = [cell for table in TABLES.values() for cell in table.cells]
HISTORY = [
    {"step": 10_000, "test_top1": 0.3, "loss": 2.0},
    {"step": 20_000, "test_top1": 0.74, "loss": 1.0},
    {"step": 42_500, "test_top1": 0.75, "loss": 0.2},
]


def run_line(name, error=25.0, *, seed=0, scale=1.0, start=None, recipe=None, **more):
    """The line of a run: recipe, seed and error."""
    first = folder_of(named(recipes.get(start), scale, seed), Path()) if start else None
    made = asdict(named(recipes.get(name), scale, seed, first)) | (recipe or {})
    return {
        "date": "2026-01-02T03:04:05+00:00", "dcnets": "0.1.0", "commit": "0123456789abcdef", "torch": "2.11.0",
        "device": "a GPU", "processes": 1, "recipe": made, "precision": "bfloat16", "steps": made["iterations"],
        "top1_error": error, "top5_error": error if error == "N/C" else round(error / 4, 3), "seconds": 36.0,
        "history": HISTORY,
    } | more  # fmt: skip


def attack_line(name, fgsm, bim, *, seed=0, scale=1.0, substitute=None, images=10_000, **more):
    """The line of a network under both attacks, on its own images or on those of a substitute; accuracies in percent."""
    whole = named(recipes.get(name), scale, seed)
    makers = {}
    if substitute:
        other = named(recipes.get(substitute), scale, SUBSTITUTE_SEED)
        makers["substitute"] = {"recipe": asdict(other), "step": updates(other)}
    attacks = [
        {
            "attack": trial.attack,
            **trial.settings(),
            "made_on": "substitute" if substitute else None,
            "accuracy": share / 100,
        }
        for trial, share in zip(MAIN.trials, (fgsm, bim), strict=True)
    ]
    return {
        "dcnets": "0.1.0", "part": "tables", "recipe": asdict(whole), "step": updates(whole), "first": 0, "images": images,
        "precision": "float32", "clean": 0.9, "attacks": attacks, "makers": makers,
    } | more  # fmt: skip


def curve_line(name, shares, *, seed=0, scale=1.0, attack=None, **more):
    """The line of a network attacked at 1 and 8/255; accuracies in percent, the first as the images are.

    A step that `attack` has is the same at each ε.
    """
    clean, *others = shares
    settings = attack or {"attack": "bim", "steps": 10}
    attacks = [
        ({"step": levels / 255 / 4} if "steps" in settings else {})
        | {**settings, "eps": levels / 255, "norm": "linf", "made_on": None, "accuracy": share / 100}
        for levels, share in zip((1, 8, 32), others, strict=False)
    ]
    line = attack_line(name, 0, 0, seed=seed, scale=scale, images=1000)
    return line | {"part": "curves", "attacks": attacks, "clean": clean / 100} | more


def paper_lines():
    """Lines that have the paper's own numbers."""
    runs, attacks = {}, []
    for cell in CELLS:
        if cell.recipe is None or cell.attack in ("fgsm", "bim"):
            continue
        error = 100 - cell.published if cell.attack else cell.published
        made = run_line(cell.recipe, error, start=cell.start)
        runs[made["recipe"]["name"]] = made | ({"top5_error": cell.published} if cell.table == 6 else {})
    runs["maker"] = run_line(SUBSTITUTE, 15.0, seed=SUBSTITUTE_SEED)
    for number in (7, 8):
        table = TABLES[f"table{number}"]
        for training in ("Natural", "FGSM-trained"):
            for column in table.columns:
                cell, other = table.cell(f"{training}, FGSM", column), table.cell(f"{training}, BIM", column)
                attacks.append(attack_line(cell.recipe, cell.published, other.published, substitute=cell.substitute))
    return list(runs.values()), attacks


def of(*runs, attacks=()):
    """What is collected of some lines."""
    return collect(Found(tuple(runs), tuple(attacks)))


def made(changes=None, *, everything=True):
    """Collected cells that have the paper's numbers, but for changes: a number, N/C, or None for a cell that is not run.

    A change is given by (table, row, column), * being any row or column.
    """
    results = {}
    for cell in (*CELLS, *(each for some in OWN_ROWS.values() for each in some)):
        value = cell.published if everything and cell.recipe else None
        for (table, row, column), new in (changes or {}).items():
            if (
                table == cell.table
                and row in (cell.row, "*")
                and column in (cell.column, "*")
                and cell.published is not None
            ):
                value = new
        results[cell] = Result(cell, (Sample(0, value, {"history": HISTORY}),) if value is not None else ())
    return Collected(results, Standard("0.1.0", "bfloat16"))


__all__ = ["CELLS", "HISTORY", "attack_line", "curve_line", "made", "of", "paper_lines", "run_line"]
