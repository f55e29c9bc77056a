"""What the paper does not have: today's attacks, verdicts on masking, transfer, accuracy over ε."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dcnets.experiments.robustness import evidence
from dcnets.experiments.robustness.curves import GRID
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.study.collected import Collected, Line, spread
from dcnets.experiments.robustness.study.rows import images_of, seeds_of, spoken, table
from dcnets.experiments.robustness.study.tasks import TODAY
from dcnets.experiments.robustness.trials import eps_told

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

    heads: dict[str, Callable[[Line], Any]] = {"as they are": lambda line: line["masking"]["clean"]}
    heads |= {head: lambda line, name=name: line["masking"]["attacks"].get(name) for head, name in TRIED.items()}  # type: ignore[misc]
    heads |= {"all": lambda line: line["masking"]["robust"]}
    rows = []
    for stem in stems:
        came = {head: found.percents("masking", stem, get) for head, get in heads.items()}
        rows.append([*spoken(found, "masking", stem), seeds_of(came), *(spread(each.values()) for each in came.values())])
    yield table(["network", "training", "seeds", *heads], rows, len(heads))


def verdicts(found: Collected) -> Iterator[str]:
    """What the masking reports say."""
    stems = found.stems("masking")
    if stems:
        yield "### Verdicts of the masking report\n"
        yield f"On the first {images_of(found, 'masking')} test images; before each verdict the seeds that it is of.\n"
        rows = []
        for stem in stems:
            said: dict[str, list[str]] = {}
            for seed, each in found.values("masking", stem, lambda line: line["masking"]["verdict"]).items():
                said.setdefault(each, []).append(str(seed))
            told = "; ".join(f"{', '.join(seeds)}: {each}" for each, seeds in said.items())
            rows.append([*spoken(found, "masking", stem), told])
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
        yield f"### Transfer between networks, {training}: {MAIN.bim}\n"
        yield f"Accuracy in % on the first {images_of(found, 'matrix')} test images; seeds are those tried on; {told}.\n"
        rows = []
        for made, maker in stems.items():
            came = {head: found.accuracies("matrix", tried, MAIN.bim, maker) for head, tried in stems.items()}
            rows.append([made, seeds_of(came), *(spread(each.values()) for each in came.values())])
        yield table(["made on ↓, tried on →", "seeds", *stems], rows, len(stems))


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
        yield f"In % on the first {images_of(found, 'curves')} test images.\n"
        heads = {"ε = 0": None} | {eps_told(eps): trial.at(eps) for eps in grid}
        rows = []
        for stem in stems:
            came = {head: found.accuracies("curves", stem, each) for head, each in heads.items()}
            rows.append([*spoken(found, "curves", stem), seeds_of(came), *(spread(each.values()) for each in came.values())])
        yield table(["network", "training", "seeds", *heads], rows, len(heads))
