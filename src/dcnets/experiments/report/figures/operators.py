"""Figs. 2 and 3: what every operator does to a vector and the curves of h and g, computed by the layers themselves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dcnets import DecoupledLinear, Operator
from dcnets.experiments.paper.tables import MAGNITUDES
from dcnets.experiments.report.charts import Axis, Chart, Picture, Point, Series

ANGULARS = ("linear", "cosine", "sigmoid", "square_cosine")
"""The angular functions of the paper."""
REACH = 3.0
"""The largest ‖x‖ of Fig. 3, in radii."""
LENGTHS = (0.4, 0.75, 1.2, 1.7, 2.3)
DIRECTIONS = 10
WITHIN = Axis("", reach=(-2.7, 2.7))
SAYS = {
    "SphereConv": "every vector goes to the sphere",
    "BallConv": "what is outside goes to the sphere, what is inside stays (ρ = 1)",
    "TanhConv": "a soft ball: nothing gets out, short vectors hardly move",
    "LinearConv": "nothing is moved",
    "SegConv": "outside the ball a length grows half as fast (β = 0.5)",
    "LogConv": "long vectors are shortened more and more",
    "MixConv": "LinearConv and LogConv added: lengths grow",
}


def respond(operator: Operator, x: Tensor) -> Tensor:
    """f(w, x) of the filter w = (1, 0) at the points x (points, 2), with ρ = ‖w‖ = 1."""
    radius: dict[str, Any] = {"radius": "absolute"} if operator.has_radius else {}
    layer = DecoupledLinear(
        2, 1, dtype=torch.float64, magnitude=operator.magnitude, angular=operator.angular, eps=1e-12, **radius
    )
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0]]))
        response: Tensor = layer(x)
    return response.squeeze(1)


def magnitude(name: str, n: Tensor) -> Tensor:
    """h(‖x‖): the response to a patch along the filter, where g = 1."""
    return respond(Operator(name, "cosine"), torch.stack([n, 0 * n], 1))


def points(x: Tensor, y: Tensor) -> tuple[Point, ...]:
    """Two rows of numbers as points."""
    return tuple(zip(x.tolist(), y.tolist(), strict=True))


def geometry() -> Picture:
    """Fig. 2: where h(‖x‖)·x/‖x‖ lies beside x, for vectors of some lengths in all directions."""
    return Picture(
        "2", "Fig. 2: the geometry of each operator",
        "A vector x, a ring, and h(‖x‖)·x/‖x‖, a dot, with the way between them: what the operator compares with the "
        "filter. The circle is the unit sphere, on which all filters lie; α = ρ = 1. Computed by the operators.",
        tuple(moved(title, name) for title, name in MAGNITUDES.items()),
    )  # fmt: skip


def moved(title: str, name: str) -> Chart:
    """One operator's panel."""
    n = torch.tensor(LENGTHS, dtype=torch.float64)
    h = magnitude(name, n)
    before, after = [], []
    for at in range(DIRECTIONS):
        turn = 2 * math.pi * at / DIRECTIONS + math.pi / DIRECTIONS
        for old, new in zip(n.tolist(), h.tolist(), strict=True):
            before.append((old * math.cos(turn), old * math.sin(turn)))
            after.append((new * math.cos(turn), new * math.sin(turn)))
    circle = tuple((math.cos(t * math.pi / 60), math.sin(t * math.pi / 60)) for t in range(121))
    paths = tuple(end for pair in zip(before, after, strict=True) for end in pair)
    series = (
        Series("unit sphere", circle, "circle", colour=7),
        Series("way", paths, "arrows", colour=7),
        Series("x", tuple(before), "rings", colour=3),
        Series("h(‖x‖)·x/‖x‖", tuple(after), "dots", colour=2),
    )
    return Chart(title, WITHIN, WITHIN, series, f"{title}: {SAYS[title]}", equal=True, note=SAYS[title])


def functions() -> Picture:
    """Fig. 3: every h at ρ = 1 and every g."""
    n = torch.linspace(1e-3, REACH, 121, dtype=torch.float64)
    theta = torch.linspace(0, math.pi, 121, dtype=torch.float64)
    x = torch.stack([theta.cos(), theta.sin()], 1)
    h = tuple(Series(title, points(n, magnitude(name, n)), colour=at) for at, (title, name) in enumerate(MAGNITUDES.items()))
    g = tuple(
        Series(name.replace("_", " "), points(theta, respond(Operator("sphere", name), x)), colour=at)
        for at, name in enumerate(ANGULARS)
    )
    turns = ((0.0, "0"), (math.pi / 2, "π/2"), (math.pi, "π"))
    return Picture(
        "3", "Fig. 3: magnitude and angular functions",
        "The response to a patch along the filter by the patch’s length, and that of a layer that ignores lengths by the "
        "angle; α = ρ = 1, SegConv’s β = 0.5, MixConv’s β = 1, sigmoid’s k = 0.3. Computed by the operators.",
        (
            Chart("magnitude h, ρ = 1", Axis("‖x‖", reach=(0, REACH)), Axis("h(‖x‖)", reach=(0, REACH)), h,
                  "Seven magnitude functions over the norm; SphereConv is 1, BallConv and TanhConv go to 1, others grow"),
            Chart("angular function g", Axis("θ", ticks=turns, reach=(0, math.pi)), Axis("g(θ)", reach=(-1.05, 1.05)), g,
                  "Four angular functions over the angle, all from 1 at 0 through 0 at π/2 to −1 at π"),
        ),
    )  # fmt: skip
