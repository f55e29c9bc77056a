"""Figs. 1, 6 and 7: the two features that networks have learned for MNIST digits, naturally and adversarially trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcnets.experiments import data, recipes
from dcnets.experiments.data import DataError
from dcnets.experiments.data.resident import in_order
from dcnets.experiments.paper import FIGURES
from dcnets.experiments.rebuild import Rebuilt
from dcnets.experiments.report.charts import Axis, Chart, Picture, Series
from dcnets.experiments.report.figures.folders import Folder, changes, folders, lost, named, opened, progress, told_changes
from dcnets.experiments.reproduce.job import updates

SHOWN = 1000
"""Digits of the test set that are drawn, its first ones."""
DATA = ("mnist", "mnist-subset")
OPERATORS = {
    None: "Ordinary convolution", "sphere-cosine": "SphereConv", "ball-cosine": "BallConv", "tanh-cosine": "TanhConv",
}  # fmt: skip
ADVERSARY = ("adversary", "adversary_eps", "adversary_step", "adversary_steps", "clean_share", "trades_weight")
Candidate = tuple[Folder, Rebuilt]


def ordinary(runs: Path | None, data_folder: Path | None) -> Picture:
    """Fig. 1: the ordinary network's features."""
    return drawn(
        "1", "Fig. 1: features of an ordinary network are decoupled by themselves",
        "The features themselves, as the network has two: classes differ in angle, images of a class in norm.",
        {None: OPERATORS[None]}, runs, data_folder, adversarial=False,
    )  # fmt: skip


def natural(runs: Path | None, data_folder: Path | None) -> Picture:
    """Fig. 6: the same after natural training, for each operator."""
    return drawn(
        "6", "Fig. 6: two features of MNIST digits after natural training",
        "The paper’s panels are not named in its text: ours are the networks of its Tables 7 and 8.",
        OPERATORS, runs, data_folder, adversarial=False,
    )  # fmt: skip


def adversarial(runs: Path | None, data_folder: Path | None) -> Picture:
    """Fig. 7: the same after adversarial training."""
    return drawn(
        "7", "Fig. 7: two features of MNIST digits after adversarial training",
        "The same networks, trained on images that were attacked as they learned.", OPERATORS, runs, data_folder,
        adversarial=True,
    )  # fmt: skip


def drawn(
    key: str, title: str, shows: str, wanted: dict[str | None, str], runs: Path | None, data_folder: Path | None, *,
    adversarial: bool,
) -> Picture:  # fmt: skip
    """A panel for each operator that has a run; the others, and what cannot be drawn, in words."""
    missing: list[str] = []
    charts = []
    absent = []
    for operator, name in wanted.items():
        found = candidates(operator, runs, missing, adversarial=adversarial)
        told = [lost(*each) for each in found]
        missing += filter(None, told)
        best = min((each for each, why in zip(found, told, strict=True) if not why), key=distance, default=None)
        chart = panel(name, *best, data_folder, missing) if best else None
        charts += [chart] if chart else []
        absent += [] if found else [name]
    if absent:
        named = {OPERATORS[recipes.get(recipe).operator]: recipe for recipe in FIGURES[int(key)].recipes}
        where = f"No run in {runs}" if runs is not None else "There is no folder of runs, and so no network"
        makes = f": dcnets train {named[absent[0]]} makes one" if absent[0] in named else ""
        missing.append(f"{where} for {', '.join(absent)}{makes}.")
    shows += f" A point is one of the first {SHOWN:,} test digits, its colour and sign the digit."
    return Picture(key, title, shows, tuple(charts), missing=tuple(missing))


def candidates(operator: str | None, runs: Path | None, missing: list[str], *, adversarial: bool) -> list[Candidate]:
    """The runs of an operator, naturally or adversarially trained."""
    suffix = f"-{operator}" if operator else ""
    stems = [f"{name}-features2d{suffix}{end}" for name in DATA for end in ("", "-fgsm")]
    near = [each for each in folders(runs) if each.stem in stems]
    return [
        (folder, built) for folder, built in opened(near, missing)
        if built.recipe.network == "features2d" and built.recipe.operator == operator
        and (built.recipe.adversary is not None) == adversarial
    ]  # fmt: skip


def distance(candidate: Candidate) -> tuple[bool, bool, int, int]:
    """How far a run is from the figure's, which is at its end, of all of MNIST, and its recipe's."""
    built = candidate[1]
    unfinished, other = built.checkpoint.step < updates(built.recipe), built.recipe.data != DATA[0]
    return unfinished, other, len(own_changes(*candidate)), candidate[0].seed


def own_changes(folder: Folder, built: Rebuilt) -> dict[str, tuple[Any, Any]]:
    """In what a run is not its recipe; an adversary that the recipe lacks is told apart."""
    wanted = recipes.get(folder.stem)
    return changes(built.recipe, wanted, ("name", "seed", *(ADVERSARY if wanted.adversary is None else ())))


def panel(name: str, folder: Folder, built: Rebuilt, data_folder: Path | None, missing: list[str]) -> Chart | None:
    """One network's features of the first test digits."""
    try:
        digits = data.load(built.recipe.data, data_folder, download=False)
    except (DataError, OSError) as error:
        missing.append(f"{name}: its digits are not there ({' '.join(str(error).split())}).")
        return None
    model: Any = built.model
    batches = in_order(digits.test, SHOWN, mean=digits.mean, std=digits.std, device=torch.device("cpu"))
    images, labels = next(iter(batches))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small to share among cores
    try:
        with torch.no_grad():
            features: Tensor = model.features(images)
            right = model.classifier(features).argmax(1) == labels
    finally:
        torch.set_num_threads(threads)
    if not features.isfinite().all():
        missing.append(f"{name}: {folder.path.name} has features that are not finite, which cannot be drawn.")
        return None
    series = tuple(
        Series(str(digit), tuple(map(tuple, features[labels == digit].tolist())), "dots", colour=digit, sign=str(digit))
        for digit in range(10)
    )
    reach = 1.08 * float(features.abs().max())
    axes = [Axis(f"feature {at}", reach=(-reach, reach)) for at in (1, 2)]
    spread = angle_spread(features, labels)
    alt = f"{name}: {len(labels):,} digits by their two features, {100 * float(right.float().mean()):.1f} % of them right"
    note = f"{alt.partition(', ')[2]}; median angle to the own class’s mean {spread:.1f}°. {circumstances(built, folder)}"
    mark = named(folder, built) if any(distance((folder, built))[:-1]) else ""
    return Chart(name, axes[0], axes[1], series, alt, equal=True, note=note, mark=mark)


def angle_spread(features: Tensor, labels: Tensor) -> float:
    """The median angle between a feature and the mean of its digit's, in degrees."""
    centres = torch.stack([features[labels == digit].mean(0) for digit in range(10)])
    cosine = torch.cosine_similarity(features, centres[labels]).clamp(-1, 1)
    return float(torch.rad2deg(cosine.acos()).median())


def circumstances(built: Rebuilt, folder: Folder) -> str:
    """What a run was, and in what it is not the recipe."""
    recipe = built.recipe
    shortened = told_changes(own_changes(folder, built))
    against = f", against {recipe.adversary}" if recipe.adversary else ""
    small = "; a subset of MNIST" if recipe.data != DATA[0] else ""
    return f"{progress(built)}, seed {folder.seed}{against}{small}" + (f"; {shortened}." if shortened else ".")
