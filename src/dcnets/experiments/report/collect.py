"""From the lines of `results/` to the cells of the paper's tables: what counts, and what stands apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcnets.experiments import jsonlines, recipes
from dcnets.experiments.paper import OWN_ROWS, TABLES, Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.report.attacked import as_told, is_attack, is_curve, measured
from dcnets.experiments.report.cells import Aside, Collected, Result, Sample, Standard, Told
from dcnets.experiments.reproduce.lines import Differences, Line, is_run, origin, unlike, value
from dcnets.experiments.robustness.study.legible import left_out, sorted_out
from dcnets.experiments.scaling import scale_of
from dcnets.experiments.versions import ordered

MAKER = "makes images for others"
"""Why the network that black-box images are made on is none of those that they are tried on."""
OF_ALL = "{} test images, not all"


@dataclass(frozen=True)
class Found:
    """Lines of training runs, lines of attacks, what is told of torn ones, and lines of attacks at several ε."""

    runs: tuple[Line, ...]
    attacks: tuple[Line, ...] = ()
    torn: tuple[str, ...] = ()
    curves: tuple[Line, ...] = ()

    def at(self, scale: float) -> Found:
        """The lines of one scale of schedules alone."""
        runs, attacks, curves = (
            tuple(line for line in lines if scale_of(str(line["recipe"]["name"])) == scale)
            for lines in (self.runs, self.attacks, self.curves)
        )
        return Found(runs, attacks, self.torn, curves)


def read(paths: Iterable[Path]) -> Found:
    """The runs and attacks in files, or in all .jsonl files of folders, none twice; and what is told of unreadable lines."""
    runs: list[Line] = []
    attacks: list[Line] = []
    curves: list[Line] = []
    told: dict[str, None] = {}
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if path.is_dir() and not files:
            raise FileNotFoundError(f"{path} holds no .jsonl file; give the folder of results, or files")
        for file in files:
            if not file.exists():
                raise FileNotFoundError(f"{file} does not exist; `dcnets reproduce` writes results/runs.jsonl")
            lines, torn = jsonlines.read_and_tell(file)
            legible, why = sorted_out([line for line in lines if is_attack(line)])
            runs += [line for line in lines if is_run(line) and line not in runs]
            attacks += [line for line in legible if line not in attacks]
            curves += [line for line in lines if is_curve(line) and line not in curves]
            told |= dict.fromkeys([*torn, *([f"{file}, lines of tables: {left_out(why)}"] if why else [])])
    return Found(tuple(runs), tuple(attacks), tuple(told), tuple(curves))


def collect(found: Found) -> Collected:
    """Every cell with the runs that count and those that stand apart.

    A run counts if it has every field of the cell's whole recipe, was done in one process and is of the standard: the
    version and arithmetic that most such runs have, of the newest version where several have as many. An accuracy under
    attack counts if it is of such a run's network, and of all test images.
    """
    cells = [cell for name, table in TABLES.items() for cell in (*table.cells, *OWN_ROWS.get(name, ()))]
    known = recipes.recipes()
    stems: dict[str | None, list[Line]] = {}
    attacks: dict[str | None, list[Line]] = {}
    for lines, by in ((found.runs, stems), (found.attacks, attacks)):
        for line in lines:
            by.setdefault(origin(str(line["recipe"]["name"]), known), []).append(line)
    standard = commonest(cells, stems)
    results = {}
    for cell in cells:
        near = [*stems.get(cell.recipe, ()), *(attacks.get(cell.recipe, ()) if cell.under_attack else ())]
        results[cell] = result(cell, near if cell.recipe else [], standard, found.runs)
    wanted = {cell.recipe for cell in cells}
    elsewhere = tuple(line for stem, some in stems.items() if stem not in wanted for line in some)
    return Collected(results, standard, elsewhere, found.torn, found.curves)


def commonest(cells: Iterable[Cell], stems: Mapping[str | None, Sequence[Line]]) -> Standard | None:
    """The version and arithmetic of most lines that are whole runs of a cell's recipe."""
    whole = {id(line): line for cell in cells if cell.recipe for line in stems.get(cell.recipe, ())
             if scale_of(line["recipe"]["name"]) == 1 and not unlike_cell(cell, line)}  # fmt: skip
    counts = Counter(Standard.of(line) for line in whole.values())
    return max(counts, key=lambda each: (counts[each], ordered(each.version), each.arithmetic), default=None)


def unlike_cell(cell: Cell, line: Line) -> Differences:
    """In what a line is not a run of a cell's recipe at the scale that its name tells, whatever version and arithmetic."""
    wanted = as_told(line, str(cell.recipe), cell.start)
    return {each: pair for each, pair in unlike(line, wanted, line.get("precision", "")).items() if each != "dcnets"}


def result(cell: Cell, lines: Iterable[Line], standard: Standard | None, runs: Sequence[Line]) -> Result:
    """A cell's runs, sorted into those that count, one a seed, and the others."""
    samples: dict[int, Sample] = {}
    asides = []
    seen: set[tuple[int, float, int | None]] = set()
    for line in lines:
        seed, scale = int(line["recipe"].get("seed", 0)), scale_of(line["recipe"]["name"])
        for told in numbers(cell, line, standard, runs):
            short, part = f"schedule × {scale:g}" if scale != 1 else "", OF_ALL.format(told.images) if told.images else ""
            other, key = [*reasons(cell, line, standard), *told.why], (seed, scale, told.images)
            if not other and key in seen:
                other.append(f"seed {seed} again")
            elif not other:
                seen.add(key)
            if why := "; ".join(filter(None, (short, part, *other))):
                asides.append(Aside(told.value, why, line, scale, told.images, not other))
            elif told.value is not None:
                samples[seed] = Sample(seed, told.value, line)
    return Result(cell, tuple(samples[seed] for seed in sorted(samples)), tuple(asides))


def numbers(cell: Cell, line: Line, standard: Standard | None, runs: Sequence[Line]) -> Iterator[Told]:
    """What a line says of a cell; a run that did not converge has no accuracy under attack, which is N/C then."""
    if not is_run(line):
        yield from measured(cell, line, standard, runs)
    elif not cell.under_attack or line["top1_error"] == "N/C":
        why = tuple(f"{name} {old!r}, not {new!r}" for name, (old, new) in unlike_cell(cell, line).items())
        arithmetic = Standard.of(line).arithmetic
        other = (arithmetic,) if standard is not None and arithmetic != standard.arithmetic else ()
        yield Told("N/C" if cell.under_attack else value(cell, line), (*why, *other))


def reasons(cell: Cell, line: Line, standard: Standard | None) -> list[str]:
    """Why a line, whatever its number, does not count for a cell: it is the maker's, or of another version."""
    why = [MAKER] if cell.attack is not None and line["recipe"].get("seed") == SUBSTITUTE_SEED else []
    version = Standard.of(line).version
    return [*why, *([f"dcnets {version}"] if standard is not None and version != standard.version else [])]
