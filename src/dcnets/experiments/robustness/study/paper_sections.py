"""The paper's Tables 7 and 8 beside ours, in our setting and in the one that comes nearest to the paper's baseline."""

from __future__ import annotations

from collections.abc import Iterator

from dcnets.experiments.paper import EXTRA, TABLES, Cell
from dcnets.experiments.paper.tables import BESIDE, SUBSTITUTE, TARGETS
from dcnets.experiments.robustness.setting import LEVELS, MAIN, RULES, Setting
from dcnets.experiments.robustness.study.collected import Collected, spread
from dcnets.experiments.robustness.study.rows import images_of, seeds_of, table


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
    rows += [
        [f"BIM, {rule}", *(f"{tried[each, rule]['bim']:.1f}" if (each, rule) in tried else "–" for each in levels)]
        for rule in RULES
    ]
    yield table(["accuracy in %", *(f"ε = {each:g}/255" for each in levels)], rows, len(levels))


def white_box(found: Collected) -> Iterator[str]:
    """Table 7."""
    for part, told, setting in settings(found):
        if found.stems(part):
            yield f"### Table 7, white-box, {told}\n"
            yield f"{of_what(found, part)} (paper).\n"
            yield beside_paper(found, part, setting, "table7", None)


def black_box(found: Collected) -> Iterator[str]:
    """Table 8, from both substitutes."""
    for part, told, setting in settings(found):
        for maker, words in ((SUBSTITUTE, "a natural"), (BESIDE, "an FGSM-trained")):
            if any(found.accuracies(part, stem, setting.bim, maker) for stem in found.stems(part)):
                yield f"### Table 8, black-box, from {words} baseline of another seed, {told}\n"
                yield f"{of_what(found, part)} (paper).\n"
                yield beside_paper(found, part, setting, "table8", maker)


def of_what(found: Collected, part: str) -> str:
    """What the numbers of a part are."""
    return f"Accuracy in % on the first {images_of(found, part)} test images, mean ± std over seeds"


def beside_paper(found: Collected, part: str, setting: Setting, name: str, maker: str | None) -> str:
    """One of the paper's tables, each cell ours with the paper's in brackets."""
    paper = TABLES[name]
    rows = []
    for row in paper.rows:
        cells = [paper.cell(row, column) for column in paper.columns]
        came = {column: cell_values(found, part, setting, paper.cell(row, column), maker) for column in paper.columns}
        shown = (f"{spread(came[cell.column].values())} ({cell.published:.2f})" for cell in cells)
        rows.append([row, seeds_of(came), *shown])
    return table(["", "seeds", *paper.columns], rows, len(paper.columns))


def cell_values(found: Collected, part: str, setting: Setting, cell: Cell, maker: str | None = None) -> dict[int, float]:
    """A cell's accuracies in a setting, by seed."""
    trial = {"none": None, "fgsm": setting.fgsm, "bim": setting.bim}[str(cell.attack)]
    return found.accuracies(part, str(cell.recipe), trial, maker if trial else None)


def extra(found: Collected) -> Iterator[str]:
    """PGD-trained networks side by side, and the variants that could explain the paper's numbers."""
    for name, title in (("pgd", "PGD-trained networks"), ("variants", "Variants")):
        for part, told, setting in settings(found):
            rows: dict[str, dict[str, dict[int, float]]] = {}
            for cell in EXTRA[name]:
                if values := cell_values(found, part, setting, cell):
                    rows.setdefault(cell.row, {})[cell.column] = values
            if rows:
                yield f"### {title}, white-box, {told}\n"
                yield f"{of_what(found, part)}.\n"
                shown = [
                    [row, seeds_of(cells), *(spread(cells.get(column, {}).values()) for column in TARGETS)]
                    for row, cells in rows.items()
                ]
                yield table(["", "seeds", *TARGETS], shown, len(TARGETS))
