"""What the paper does not have: today's attacks, verdicts on masking, transfer, accuracy over ε, slopes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from dcnets.experiments.robustness import evidence
from dcnets.experiments.robustness.curves import GRID
from dcnets.experiments.robustness.setting import GREY, MAIN
from dcnets.experiments.robustness.study.collected import Collected, Line, rank_correlation, spread
from dcnets.experiments.robustness.study.rows import images_of, table
from dcnets.experiments.robustness.study.tasks import TODAY
from dcnets.experiments.robustness.study.words import words_for
from dcnets.experiments.robustness.trials import eps_told

NEAR = 2 * GREY
"""The ε, besides the main one, at which slopes are compared with robustness: there natural networks differ too."""
ALIKE = (
    "the networks have the same seed, so that they were trained on the same images in the same order: they may well be more "
    "alike than networks of another seed"
)
TRIED = {
    "FGSM": evidence.FGSM, "BIM-50": evidence.BIM, "PGD-50": evidence.PGD, "PGD-50, 5 restarts": evidence.RESTARTED,
    "Square": evidence.SQUARE, "AutoAttack": evidence.AUTO,
}  # fmt: skip


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
    """Operator to operator, for each kind of training; where there are images of other seeds' networks, by those alone."""
    crossed = between_seeds(found)
    found, told = (crossed, "each network attacks those of another seed, itself too") if crossed.lines else (found, ALIKE)
    kinds: dict[str, dict[str, str]] = {}
    for stem in found.stems("matrix"):
        operator, training = spoken(found, "matrix", stem)
        kinds.setdefault(training, {})[operator] = stem
    for training, stems in kinds.items():
        yield f"### Transfer between {training} networks: {MAIN.bim}\n"
        yield f"Accuracy in %; {told}.\n"
        rows = [
            [made, *(spread(found.accuracies("matrix", tried, MAIN.bim, maker)) for tried in stems.values())]
            for made, maker in stems.items()
        ]
        yield table(["made on ↓, tried on →", *stems], rows, len(stems))


def between_seeds(found: Collected) -> Collected:
    """The matrix without images that were made on a network of the same seed as the one that they are tried on."""

    def others(line: Line) -> Line:
        seeds = {name: maker["recipe"]["seed"] for name, maker in line["makers"].items()}
        return {**line, "attacks": [each for each in line["attacks"] if seeds[each["made_on"]] != line["recipe"]["seed"]]}

    matrix = {key: [others(line) for line in some] for key, some in found.lines.items() if key[0] == "matrix"}
    return Collected(found.scale, lines={key: some for key, some in matrix.items() if any(line["attacks"] for line in some)})


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
    rows: list[list[str]] = []
    points: dict[bool, list[list[float]]] = {True: [], False: []}  # trained as usual or not
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
            natural = rows[-1][1].startswith("natural")
            points[natural].append([statistics.fmean(values) for values in (*own.values(), *under)])
    heads = ["constant", "slope", "margin/slope · 255", *(f"BIM, ε = {eps_told(trial.eps)}" for trial in (near, far))]
    yield table(["network", "training", *heads], rows, len(heads))
    every = [*points[True], *points[False]]
    groups = {f"these {len(every)} networks": every, f"the {len(points[True])} natural ones among them": points[True]}
    for told, some in groups.items() if all(points.values()) else [*groups.items()][:1]:
        yield f"Rank correlation (Spearman) over {told}, means over seeds:\n"
        columns = list(zip(*some, strict=True)) or [()] * len(heads)
        yield table(
            ["", *heads[3:]],
            [[head, *(correlated(columns[at], columns[under]) for under in (3, 4))] for at, head in enumerate(heads[:3])], 2,
        )  # fmt: skip


def correlated(one: Sequence[float], other: Sequence[float]) -> str:
    """A rank correlation, or a dash."""
    found = rank_correlation(one, other)
    return "–" if found is None else f"{found:z.2f}"
