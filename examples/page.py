"""The demo's page: one HTML file with its figures inside."""

from __future__ import annotations

import base64
import math
import platform
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template

import torch
from curves import BLUE, GREEN, ORANGE, Curve, angular_curves, magnitude_curves, panel
from features import ATTACK, ATTACKED, Run
from figures import accuracy_plot, feature_plot, loss_plot, robustness_plot

import dcnets
from dcnets.experiments.data.catalogue import CATALOGUE

GOALS = (0.90, 0.95)
"""The test accuracies that the table counts the epochs to."""
PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def write_page(folder: Path, runs: list[Run]) -> Path:
    """Write index.html into the folder and return its path."""
    tested, recipe = len(runs[0].labels), runs[0].outcome.recipe
    error = max(math.sqrt(run.accuracy * (1 - run.accuracy) / tested) for run in runs)
    text = PAGE.substitute(
        heads="".join(f"<th>{escape(head)}</th>" for head in heads()),
        rows="\n".join(row(run) for run in runs),
        tested=f"{tested:,}",
        trained=f"{CATALOGUE[recipe.data].train:,}",
        point=f"{100 / tested:g}",
        error=f"{100 * error:.1f}",
        features="".join(figure(feature_plot(run), feature_words(run), caption(run)) for run in runs),
        convergence=figure(accuracy_plot(runs), curve_words(runs, "test_top1", "test accuracy", percent))
        + figure(loss_plot(runs), curve_words(runs, "loss", "training loss", "{:.3f}".format)),
        attack=figure(robustness_plot(runs), robustness_words(runs), robustness_caption(runs)),
        attacked=f"{ATTACKED:,}",
        steps=str(ATTACK.steps),
        bounded=key(BLUE),
        unbounded=key(ORANGE),
        learned=key(GREEN),
        magnitudes=panels(magnitude_curves(), "h over the norm"),
        angulars=panels(angular_curves(), "g over the angle"),
        command=escape(f"dcnets train {runs[1].outcome.recipe.name}"),
        footer=escape(circumstances(runs)),
    )
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


# -- table -------------------------------------------------------------------------------------------------------------


def heads() -> list[str]:
    """What the columns of the table say."""
    return ["network", "test accuracy", *(f"epochs to {percent(goal, 0)}" for goal in GOALS), "training seconds"]


def cells(run: Run) -> list[str]:
    """A network's line of the table; – where a goal was not reached."""
    reached = [run.epochs_to(goal) for goal in GOALS]
    return [
        run.name,
        percent(run.accuracy),
        *("–" if epochs is None else f"{epochs:.3g}" for epochs in reached),
        f"{run.outcome.seconds:.1f}",
    ]


def percent(share: float, decimals: int = 1) -> str:
    """A share of 1 as the house writes it."""
    return f"{100 * share:.{decimals}f}\N{NO-BREAK SPACE}%"


def row(run: Run) -> str:
    """The same as HTML, the operator below the network's name."""
    name, *numbers = (escape(cell) for cell in cells(run))
    operator = escape(run.outcome.recipe.operator or "nn.Conv2d")
    return f"<tr><td><b>{name}</b><small>{operator}</small></td>" + "".join(f"<td>{n}</td>" for n in numbers) + "</tr>"


# -- figures -----------------------------------------------------------------------------------------------------------


def caption(run: Run) -> str:
    """What can be counted in a picture of features."""
    count = len(run.labels) // 10
    short, long = run.mistakes_by_norm(count)
    low, high = run.norms().quantile(torch.tensor([0.05, 0.95])).tolist()
    return (
        f"<b>{escape(run.name)}</b> Nine in ten norms lie from {low:.3g} to {high:.3g}. The median angle to the own line "
        f"is {run.angles().median():.2g}°. Mistakes: {short} among the {count} shortest features, {long} among the {count} "
        "longest."
    )


def feature_words(run: Run) -> str:
    """A picture of features for those who do not see it."""
    return f"{run.name}: the {len(run.labels):,} test digits by their two features, each digit in a colour of its own"


def curve_words(runs: list[Run], column: str, label: str, told: Callable[[float], str]) -> str:
    """Convergence curves for those who do not see them."""
    ends = {run.name: (told(run.column(column)[0]), told(run.column(column)[-1])) for run in runs}
    return f"{label} by epoch: " + "; ".join(f"{name} from {first} to {last}" for name, (first, last) in ends.items())


def robustness_words(runs: list[Run]) -> str:
    """The curves over ε for those who do not see them."""
    told = (f"{run.name} {percent(run.withstood.accuracies[-1], 0)}" for run in runs)
    return f"digits still right under PGD by ε; at ε = {runs[0].withstood.eps[-1]:g}: " + "; ".join(told)


def robustness_caption(runs: list[Run]) -> str:
    """What PGD leaves at the ε that is given as an example."""
    at = runs[0].withstood.eps.index(ATTACK.eps)
    told = (f"{escape(run.name)} {percent(run.withstood.accuracies[at], 0)}" for run in runs)
    return f"<b>At ε = {ATTACK.eps:g}</b> " + ", ".join(told) + ". Bars: one standard error."


def figure(svg: str, alt: str, caption: str = "") -> str:
    """An SVG inside the page, and what stands below it."""
    data = base64.b64encode(svg.encode()).decode()
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">{below}</figure>\n'


def panels(curves: list[Curve], alt: str) -> str:
    """A plot of each curve before all others."""
    return "".join(figure(panel(curve, curves), f"{curve.name}: {alt}") for curve in curves)


def key(colour: str) -> str:
    """A small square of a colour."""
    return f'<span class="key" style="background:{colour}"></span>'


def circumstances(runs: list[Run]) -> str:
    """How the numbers came about."""
    recipe, updates = runs[0].outcome.recipe, runs[0].outcome.steps
    return (
        f"dcnets {dcnets.__version__}, torch {torch.__version__}, Python {platform.python_version()}, one thread; seed "
        f"{recipe.seed}, {updates:,} updates of {recipe.batch} images by {recipe.optimiser.capitalize()}, the images "
        f"shifted at random by up to {recipe.pad} px."
    )
