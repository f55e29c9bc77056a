"""The curves of every h and g, drawn as small SVG panels from what the layers themselves put out."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from dcnets import DecoupledLinear, Operator
from dcnets.angular import ANGULARS
from dcnets.magnitude import MAGNITUDES

# Okabe and Ito's colours, which colour-blind eyes tell apart.
BLUE, ORANGE, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#222222"
PALE, LINE = "#d5dae1", "#8a93a0"
REACH = 3.0
"""The largest ‖x‖ of a plot, in radii."""
SETTINGS = {
    "svg.hashsalt": "dcnets",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.edgecolor": LINE,
    "axes.labelcolor": BLACK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
}


@dataclass(frozen=True)
class Curve:
    """One h over ‖x‖ or one g over θ, ready to be drawn."""

    symbol: str
    name: str
    x: Tensor
    y: Tensor
    colour: str
    has_radius: bool = False


def respond(operator: Operator, x: Tensor) -> Tensor:
    """f(w, x) of the filter w = (1, 0) at the points x (points, 2), with ρ = 1 and ‖w‖ = 1."""
    radius = {"radius": "absolute"} if operator.has_radius else {}
    layer = DecoupledLinear(
        2, 1, dtype=torch.float64, magnitude=operator.magnitude, angular=operator.angular, eps=1e-12, **radius
    )
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0]]))
        return layer(x).squeeze(1)


def magnitude_curve(name: str) -> Curve:
    """h(‖x‖) for ρ = ‖w‖ = 1: the response to patches that lie along the filter, where g = 1."""
    operator = Operator(name, "cosine")
    n = torch.linspace(1e-3, REACH, 301, dtype=torch.float64)
    colour = GREEN if operator.bound is None else BLUE if operator.bounded else ORANGE
    return Curve("h", name, n, respond(operator, torch.stack([n, 0 * n], 1)), colour, operator.has_radius)


def angular_curve(name: str) -> Curve:
    """g(θ): the response of SphereConv to patches at every angle."""
    operator = Operator("sphere", name)
    theta = torch.linspace(0, math.pi, 361, dtype=torch.float64)
    colour = GREEN if operator.bound is None else BLUE
    return Curve("g", name, theta, respond(operator, torch.stack([theta.cos(), theta.sin()], 1)), colour)


def magnitude_curves() -> list[Curve]:
    """Every registered h, and one sum of two."""
    return [magnitude_curve(name) for name in [*MAGNITUDES, "tanh+0.5*linear"]]


def angular_curves() -> list[Curve]:
    """Every registered g."""
    return [angular_curve(name) for name in ANGULARS]


def panel(curve: Curve, others: list[Curve]) -> str:
    """A small plot of one curve, with the others of its kind in grey behind it, as SVG."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(2.5, 2.1), layout="constrained")
        axes = figure.add_subplot()
        for other in others:
            axes.plot(other.x, other.y, color=PALE, linewidth=1)
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=2.4)
        axes.set_title(curve.name, fontweight="bold")
        if curve.symbol == "g":
            axes.axhline(0, color=LINE, linewidth=0.8)
            axes.set(xlabel="angle θ", ylabel="g(θ)", ylim=(-1.08, 1.08), xlim=(0, math.pi))
            axes.set_xticks([0, math.pi / 2, math.pi], ["0", "π/2", "π"])
            axes.set_yticks([-1, 0, 1], ["−1", "0", "1"])
        else:
            axes.set(xlabel="norm ‖x‖", ylabel="h(‖x‖)", ylim=(0, REACH), xlim=(0, REACH))
            axes.set_xticks([0, 1, 2, 3])
            axes.set_yticks([0, 1, 2, 3])
        if curve.has_radius:
            axes.axvline(1, color=LINE, linewidth=1, linestyle=(0, (3, 2)))
            axes.text(1.07, 2.92, "ρ", color=BLACK, va="top")
        return as_svg(figure)


def as_svg(figure: Figure) -> str:
    """The figure as text that is the same each time."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    return re.sub(r"[ \t]+\n", "\n", buffer.getvalue())
