"""What networks have learned: the filters of their first layers, and the radii of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from dcnets.decoupled import Decoupled
from dcnets.experiments.paper import FIGURES, TABLES
from dcnets.experiments.rebuild import Rebuilt
from dcnets.experiments.report.charts import Axis, Chart, Image, Picture, Pixel, Series
from dcnets.experiments.report.figures.folders import Folder, folders, furthest, named, progress

MOST = 8
"""Networks that are shown, at most: reading one takes a second and more."""
FIRST = [*FIGURES[4].recipes, *(str(cell.recipe) for cell in TABLES["table3"].cells if cell.column == "Cosine with ReLU")]
"""The recipes that are shown before all others."""
NOTHING: Pixel = (0, 0, 0, 0)


def chosen(runs: Path | None, missing: list[str], *, with_radius: bool) -> Iterator[tuple[Folder, Rebuilt]]:
    """One run of each recipe, the first that came to its end where one did, as many as are shown."""
    found: dict[str, list[Folder]] = {}
    for folder in folders(runs):
        if not with_radius or any(f"-{name}" in folder.stem for name in ("ball", "tanh", "segmented")):
            found.setdefault(folder.stem, []).append(folder)
    stems = sorted(found, key=lambda stem: FIRST.index(stem) if stem in FIRST else len(FIRST))
    if not stems:
        kind = " of an operator with a radius" if with_radius else ""
        where = f"{runs} holds no run{kind}" if runs is not None else "There is no folder of runs"
        missing.append(f"{where}; `dcnets reproduce` and `dcnets train` keep theirs in runs/.")
    if len(stems) > MOST:
        left = ", ".join(stems[MOST:])
        missing.append(f"Of {len(stems)} networks the first {MOST} are shown; left out: {left}.")
    for stem in stems[:MOST]:
        best = furthest(found[stem], missing)
        if best:
            yield best


def filters(runs: Path | None) -> Picture:
    """The filters of the first layer, as small images."""
    missing: list[str] = []
    images = []
    for folder, built in chosen(runs, missing, with_radius=False):
        first = next((each for each in built.model.modules() if isinstance(each, nn.Conv2d | Decoupled)), None)
        weight = getattr(first, "weight", None)
        if weight is None or weight.dim() != 4 or weight.shape[1] not in (1, 3):
            missing.append(f"{folder.name}: its first layer has no filters that could be shown as images.")
            continue
        count, channels, height, width = weight.shape
        title, kind = folder.name, "RGB" if channels == 3 else "grey"
        alt = f"{title}: the {count} first filters, {height}×{width}, {kind}"
        note = f"{count} filters of {height}×{width}, seed {folder.seed}, {progress(built)}"
        images.append(Image(mosaic(weight.detach()), title, alt, note))
    told = "Each filter by itself: grey is 0, and its largest weight is black or white (or a full colour)."
    return Picture("filters", "Filters of the first layer", told, images=tuple(images), missing=tuple(missing))


def mosaic(weight: Tensor) -> list[list[Pixel]]:
    """Filters (count, 1 or 3, height, width) side by side as pixels, with nothing between them."""
    count, channels, height, width = weight.shape
    columns = min(count, math.ceil(math.sqrt(2 * count)))
    rows = math.ceil(count / columns)
    canvas = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1, 3), float("nan"))
    scaled = weight.float() / weight.float().abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12)
    for at, each in enumerate(scaled.expand(count, 3, height, width) if channels == 1 else scaled):
        top, left = at // columns * (height + 1), at % columns * (width + 1)
        canvas[top : top + height, left : left + width] = each.permute(1, 2, 0)
    pixels = (127.5 + 127.5 * canvas).nan_to_num(-1).round().long().tolist()
    return [[NOTHING if min(pixel) < 0 else (pixel[0], pixel[1], pixel[2], 255) for pixel in row] for row in pixels]


def radii(runs: Path | None) -> Picture:
    """The learned radii of each layer: the median over filters, from the lowest to the highest."""
    missing: list[str] = []
    kinds: dict[str, list[Series]] = {"relative": [], "absolute": []}
    for folder, built in chosen(runs, missing, with_radius=True):
        every = [each for each in built.model.modules() if isinstance(each, Decoupled)]
        layers = [each.rho.detach() for each in every if each.rho is not None]
        if not layers:
            missing.append(f"{folder.name} has no radius.")
            continue
        points = tuple((float(at), float(rho.median())) for at, rho in enumerate(layers, 1))
        band = tuple((float(rho.min()), float(rho.max())) for rho in layers)
        own = kinds[every[0].operator.radius]
        own.append(Series(named(folder, built), points, band=band, colour=len(own)))
    told = (
        "The median over a layer’s filters, shaded from the lowest to the highest. A relative radius is in mean patch norms "
        "of its layer, and 1 is where all start; an absolute one is a norm itself, and has a chart of its own."
    )
    charts = tuple(by_layer(kind, series) for kind, series in kinds.items() if series)
    return Picture("radii", "Radii learned per layer", told, charts, missing=tuple(missing))


def by_layer(kind: str, series: list[Series]) -> Chart:
    """The radii of one kind."""
    ends = "; ".join(
        f"{each.name} from {min(y for _, y in each.points):.2f} to {max(y for _, y in each.points):.2f}" for each in series
    )
    alt = f"Median {kind} radius of each layer: {ends}"
    return Chart(f"{kind} radius ρ by layer", Axis("layer"), Axis("ρ"), tuple(series), alt)
