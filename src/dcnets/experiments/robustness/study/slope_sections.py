"""Local Lipschitz constants beside robustness, and whether the order is the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from dcnets.experiments.ranks import rank_correlation
from dcnets.experiments.robustness.lipschitz import RIGHT
from dcnets.experiments.robustness.setting import GREY, MAIN
from dcnets.experiments.robustness.study.collected import Collected, Line, spread
from dcnets.experiments.robustness.study.rows import images_of, seeds_of, spoken, table
from dcnets.experiments.robustness.trials import eps_told

UNDER = {f"BIM, ε = {eps_told(trial.eps)}": trial for trial in (MAIN.bim.at(2 * GREY), MAIN.bim)}
"""The attacks that slopes are compared with: at the smaller ε natural networks differ too."""
SLOPES = {"constant": ("constant", 1.0), "slope": ("slope", 1.0), "margin/slope · 255": ("reach", 1 / GREY)}
"""What lines call a column, and the unit that it is told in."""
KINDS = {
    RIGHT: ("", "of the images that are right as they are"),
    None: (", over all images", "of all images, those included that are wrong as they are and have a margin below 0"),
}
"""By what lines say of their medians: the end of the title, and which images slope and margin are of."""


def slopes(found: Collected) -> Iterator[str]:
    """Medians over the images that are right, and apart from them those over all images, which older lines have."""
    for kind, (ending, images) in KINDS.items():
        some = found.only(lambda line, kind=kind: line["part"] != "lipschitz" or line["lipschitz"].get("of") == kind)  # type: ignore[misc]
        if some.stems("lipschitz"):
            yield f"### Lipschitz constants beside robustness{ending}\n"
            yield (
                f"Medians over the first {images_of(some, 'lipschitz')} test images: the largest ‖Δz‖₁/‖Δx‖∞ found within "
                f"ε = 8/255 (a lower bound) of all images; the margin's slope, and margin/slope in grey levels, {images}. "
                f"Beside them the accuracy in % under BIM{of_first(images_of(some, 'curves'))}.\n"
            )
            yield from compared(some)


def of_first(images: str) -> str:
    """How many images accuracies are of, where there are any."""
    return f", on the first {images} test images" if images else ""


def compared(found: Collected) -> Iterator[str]:
    """A row for each network, and the rank correlations."""
    rows: list[list[str]] = []
    points: dict[bool, list[list[float]]] = {True: [], False: []}  # trained as usual or not
    for stem in found.stems("lipschitz"):
        own = {
            head: found.values("lipschitz", stem, lambda line, name=name, unit=unit: median(line, name, unit))  # type: ignore[misc]
            for head, (name, unit) in SLOPES.items()
        }
        under = {head: found.accuracies("curves", stem, trial) for head, trial in UNDER.items()}
        told = [spread(each.values(), 2 if "/" in head else 0) for head, each in own.items()]
        told += [spread(each.values()) for each in under.values()]
        rows.append([*spoken(found, "lipschitz", stem), seeds_of(own | under), *told])
        if all((own | under).values()):
            natural = rows[-1][1].startswith("natural")
            points[natural].append([statistics.fmean(each.values()) for each in (own | under).values()])
    yield table(["network", "training", "seeds", *SLOPES, *UNDER], rows, len(SLOPES) + len(UNDER))
    every = [*points[True], *points[False]]
    groups = {f"these {len(every)} networks": every, f"the {len(points[True])} natural ones among them": points[True]}
    for group, some in groups.items() if all(points.values()) else [*groups.items()][:1]:
        yield f"Rank correlation (Spearman) over {group}, means over seeds:\n"
        columns = list(zip(*some, strict=True)) or [()] * (len(SLOPES) + len(UNDER))
        ranked = [
            [head, *(correlated(own, other) for other in columns[len(SLOPES) :])]
            for head, own in zip(SLOPES, columns, strict=False)
        ]
        yield table(["", *UNDER], ranked, len(UNDER))


def median(line: Line, name: str, unit: float) -> float | None:
    """A median of a line in a unit; None where it is not finite, as of no images."""
    value = line["lipschitz"][name]["q50"]
    return None if isinstance(value, str) else unit * value


def correlated(one: Sequence[float], other: Sequence[float]) -> str:
    """A rank correlation, or a dash."""
    found = rank_correlation(one, other)
    return "–" if found is None else f"{found:z.2f}"
