"""A study as Markdown: the paper's Tables 7 and 8 beside ours, today's attacks, variants, transfer, verdicts, slopes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from dcnets.experiments.paper import EXTRA, TABLES, Cell
from dcnets.experiments.paper.tables import BESIDE, SUBSTITUTE, TARGETS
from dcnets.experiments.robustness import evidence
from dcnets.experiments.robustness.curves import GRID
from dcnets.experiments.robustness.setting import GREY, LEVELS, MAIN, RULES, Setting
from dcnets.experiments.robustness.study.collected import Collected, Line, collect, rank_correlation, spread
from dcnets.experiments.robustness.study.tasks import TODAY
from dcnets.experiments.robustness.study.words import words_for
from dcnets.experiments.robustness.trials import eps_told

NEAR = 2 * GREY
"""The ε, besides the main one, at which slopes are compared with robustness: there natural networks differ too."""
TRIED = {
    "FGSM": evidence.FGSM, "BIM-50": evidence.BIM, "PGD-50": evidence.PGD, "PGD-50, 5 restarts": evidence.RESTARTED,
    "Square": evidence.SQUARE, "AutoAttack": evidence.AUTO,
}  # fmt: skip


def tables(lines: Iterable[Line], scale: float | None = None) -> str:
    """All tables that the lines are enough for."""
    found = collect(lines, scale)
    if not found.lines:
        raise ValueError("there are no lines of a study; dcnets study FOLDER makes them")
    parts = [told for section in SECTIONS for told in section(found)]
    head = [f"Schedules × {found.scale:g}: not the paper's length of training.\n"] if found.scale != 1 else []
    return "\n".join([*head, *parts])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Rows of Markdown; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows)) + "\n"


def images_of(found: Collected, part: str) -> str:
    """How many images a part's numbers are of."""
    return " or ".join(f"{count:,}" for count in sorted({
        line["images"] for (own, _, _), some in found.lines.items() if own == part for line in some
    }))  # fmt: skip


# -- the paper's tables ------------------------------------------------------------------------------------------------


def settings(found: Collected) -> Iterator[tuple[str, str, Setting]]:
    """The part of the lines, what is told of it, and the setting: ours, and the one that was sought."""
    yield "tables", f"ours: {MAIN}", MAIN
    if found.setting:
        frozen = Setting(found.setting["levels"], found.setting["rule"])
        yield "frozen", f"nearest to the paper's baseline: {frozen}", frozen


def sought(found: Collected) -> Iterator[str]:
    """How the setting was found."""
    line = found.setting
    if line is None:
        return
    yield "### The setting\n"
    tried = {(each["levels"], each["rule"]): each for each in line["tried"]}
    levels = [each for each in LEVELS if (each, next(iter(RULES))) in tried]
    fgsm, bim = line["published"]
    yield (
        f"The natural baseline (seeds {', '.join(map(str, line['seeds']))}) on test images {line['first']:,} to "
        f"{line['first'] + line['images'] - 1:,}, which no number below in this setting is of. The paper has {fgsm:.2f} % "
        f"under FGSM and {bim:.2f} % under BIM; nearest is ε = {line['levels']:g}/255 with {line['rule']}.\n"
    )
    rows = [["FGSM", *(f"{tried[each, next(iter(RULES))]['fgsm']:.1f}" for each in levels)]]
    rows += [[f"BIM, {rule}", *(f"{tried[each, rule]['bim']:.1f}" for each in levels)] for rule in RULES]
    yield table(["accuracy in %", *(f"ε = {each:g}/255" for each in levels)], rows, len(levels))


def white_box(found: Collected) -> Iterator[str]:
    """Table 7."""
    for part, told, setting in settings(found):
        if found.stems(part):
            yield f"### Table 7, white-box, {told}\n"
            yield f"Accuracy in % on {images_of(found, part)} test images, mean ± std over seeds (paper).\n"
            yield beside_paper(found, part, setting, "table7", lambda cell: None)


def black_box(found: Collected) -> Iterator[str]:
    """Table 8, from both substitutes."""
    for part, told, setting in settings(found):
        for maker, words in ((SUBSTITUTE, "a natural"), (BESIDE, "an FGSM-trained")):
            if any(found.accuracies(part, stem, setting.bim, maker) for stem in found.stems(part)):
                yield f"### Table 8, black-box, from {words} baseline of another seed, {told}\n"
                yield beside_paper(found, part, setting, "table8", lambda cell, maker=maker: maker)  # type: ignore[misc]


def beside_paper(found: Collected, part: str, setting: Setting, name: str, maker: Callable[[Cell], str | None]) -> str:
    """One of the paper's tables, each cell ours with the paper's in brackets."""
    paper = TABLES[name]
    rows = []
    for row in paper.rows:
        cells = [paper.cell(row, column) for column in paper.columns]
        came = [spread(cell_values(found, part, setting, cell, maker(cell))) for cell in cells]
        rows.append([row, *(f"{here} ({cell.published:.2f})" for here, cell in zip(came, cells, strict=True))])
    return table(["", *paper.columns], rows, len(paper.columns))


def cell_values(found: Collected, part: str, setting: Setting, cell: Cell, maker: str | None = None) -> list[float]:
    """A cell's accuracies in a setting, one a seed."""
    trial = {"none": None, "fgsm": setting.fgsm, "bim": setting.bim}[str(cell.attack)]
    return found.accuracies(part, str(cell.recipe), trial, maker if trial else None)


# -- beside the paper's ------------------------------------------------------------------------------------------------


def extra(found: Collected) -> Iterator[str]:
    """PGD-trained networks side by side, and the variants that could explain the paper's numbers."""
    for name, title in (("pgd", "PGD-trained networks"), ("variants", "Variants")):
        for part, told, setting in settings(found):
            rows: dict[str, dict[str, str]] = {}
            for cell in EXTRA[name]:
                if values := cell_values(found, part, setting, cell):
                    rows.setdefault(cell.row, {})[cell.column] = spread(values)
            if rows:
                yield f"### {title}, white-box, {told}\n"
                shown = [[row, *(cells.get(column, "–") for column in TARGETS)] for row, cells in rows.items()]
                yield table(["", *TARGETS], shown, len(TARGETS))


def today(found: Collected) -> Iterator[str]:
    """Today's attacks, those of the masking report."""
    stems = found.stems("masking")
    if not stems:
        return
    yield f"### Today's attacks: {TODAY}; Square; AutoAttack\n"
    yield f"Accuracy in % on the first {images_of(found, 'masking')} test images; *all* is what withstood everything.\n"

    def shares(stem: str, name: str) -> list[float]:
        return [100 * each for each in found.values("masking", stem, lambda line: line["masking"]["attacks"].get(name))]

    rows = []
    for stem in stems:
        clean, robust = (
            [100 * each for each in found.values("masking", stem, lambda line, key=key: line["masking"][key])]  # type: ignore[misc]
            for key in ("clean", "robust")
        )
        tried = (spread(shares(stem, name)) for name in TRIED.values())
        rows.append([*spoken(found, "masking", stem), spread(clean), *tried, spread(robust)])
    yield table(["network", "training", "as they are", *TRIED, "all"], rows, len(TRIED) + 2)


def spoken(found: Collected, part: str, stem: str) -> tuple[str, str]:
    """A network in two columns."""
    line = found.lines[part, stem, found.seeds(part, stem)[0]][-1]
    operator, training, variant = words_for(line["recipe"])
    return operator, f"{training}, {variant}" if variant else training


def verdicts(found: Collected) -> Iterator[str]:
    """What the masking reports say."""
    stems = found.stems("masking")
    if stems:
        yield "### Verdicts of the masking report\n"
        rows = []
        for stem in stems:
            said = Counter(found.values("masking", stem, lambda line: line["masking"]["verdict"]))
            rows.append([*spoken(found, "masking", stem), "; ".join(f"{count} × {each}" for each, count in said.items())])
        yield table(["network", "training", "verdict, by seeds"], rows)


def matrices(found: Collected) -> Iterator[str]:
    """Operator to operator, for each kind of training."""
    kinds: dict[str, dict[str, str]] = {}
    for stem in found.stems("matrix"):
        operator, training = spoken(found, "matrix", stem)
        kinds.setdefault(training, {})[operator] = stem
    for training, stems in kinds.items():
        yield f"### Transfer between {training} networks: {MAIN.bim}\n"
        yield "Accuracy in %; each network attacks those of another seed, itself too.\n"
        rows = [
            [made, *(spread(found.accuracies("matrix", tried, MAIN.bim, maker)) for tried in stems.values())]
            for made, maker in stems.items()
        ]
        yield table(["made on ↓, tried on →", *stems], rows, len(stems))


def curves(found: Collected) -> Iterator[str]:
    """Accuracy over ε."""
    stems, grid = found.stems("curves"), [eps for eps in GRID if eps]
    for trial in MAIN.trials if stems else ():
        told = ", ".join([trial.attack.upper(), *trial.words("ε/4")])
        yield f"### Accuracy over ε: {told}\n"
        rows = [
            [*spoken(found, "curves", stem), spread(found.accuracies("curves", stem, None)),
             *(spread(found.accuracies("curves", stem, trial.at(eps))) for eps in grid)]
            for stem in stems
        ]  # fmt: skip
        yield table(["network", "training", "ε = 0", *map(eps_told, grid)], rows, len(grid) + 1)


def slopes(found: Collected) -> Iterator[str]:
    """Local Lipschitz constants beside robustness, and whether the order is the same."""
    stems = found.stems("lipschitz")
    if not stems:
        return
    yield "### Lipschitz constants beside robustness\n"
    yield (
        "Medians over images: the largest ‖Δz‖₁/‖Δx‖∞ found within ε = 8/255 (a lower bound), the margin's slope, and "
        "margin/slope in grey levels; beside them the accuracy in % under BIM.\n"
    )
    rows, points = [], []
    near, far = MAIN.bim.at(NEAR), MAIN.bim
    for stem in stems:
        own = {
            name: found.values("lipschitz", stem, lambda line, name=name: line["lipschitz"][name]["q50"])  # type: ignore[misc]
            for name in ("constant", "slope", "reach")
        }
        under = [found.accuracies("curves", stem, trial) for trial in (near, far)]
        own["reach"] = [each / GREY for each in own["reach"]]
        rows.append([*spoken(found, "lipschitz", stem), *(spread(own[name], 2 if name == "reach" else 0) for name in own),
                     *map(spread, under)])  # fmt: skip
        if all(under):
            points.append([statistics.fmean(values) for values in (*own.values(), *under)])
    heads = ["constant", "slope", "margin/slope · 255", *(f"BIM, ε = {eps_told(trial.eps)}" for trial in (near, far))]
    yield table(["network", "training", *heads], rows, len(heads))
    yield f"Rank correlation (Spearman) over these {len(points)} networks, means over seeds:\n"
    columns = list(zip(*points, strict=True)) or [()] * len(heads)
    yield table(
        ["", *heads[3:]],
        [[head, *(correlated(columns[at], columns[under]) for under in (3, 4))] for at, head in enumerate(heads[:3])], 2,
    )  # fmt: skip


def correlated(one: Sequence[float], other: Sequence[float]) -> str:
    """A rank correlation, or a dash."""
    found = rank_correlation(one, other)
    return "–" if found is None else f"{found:.2f}"


SECTIONS: tuple[Callable[[Collected], Iterator[str]], ...] = (
    sought, white_box, black_box, extra, today, verdicts, matrices, curves, slopes,
)  # fmt: skip
"""In the order of the page."""
