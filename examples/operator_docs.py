"""Regenerates docs/operators.md: its plots, the tables between its markers, and a run of all its snippets."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from curves import Curve, angular_curves, magnitude_curves, panel

from dcnets import DecoupledConv2d, Operator
from dcnets.angular import ANGULARS, arc_sine
from dcnets.magnitude import MAGNITUDES

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "operators.md"
SUM = "tanh+0.5*linear"
CHANNELS, SIDE, BATCH, SEED = 64, 34, 8, 0


# -- measurements ------------------------------------------------------------------------------------------------------


def output_variance(magnitude: str, angular: str) -> float:
    """The variance of a new layer's output for x ~ N(0, 1): 64 channels, 3×3 patches, ρ = 1 relative to the mean norm."""
    torch.manual_seed(SEED)
    x = torch.randn(BATCH, CHANNELS, SIDE, SIDE)
    layer = DecoupledConv2d(CHANNELS, CHANNELS, 3, magnitude=magnitude, angular=angular)
    with torch.no_grad():
        return layer(x).double().var().item()


def magnitude_rows() -> list[list[str]]:
    """Properties of every h, with g = cosine and g = square_cosine."""
    rows = []
    for name in [*MAGNITUDES, SUM]:
        plain, square = Operator(name, "cosine"), Operator(name, "square_cosine")
        rows.append([
            f"`{name}`", bound(plain), yes(plain.smooth), yes(plain.has_radius), number(plain.lipschitz()),
            number(square.lipschitz()), number(output_variance(name, "cosine"), 2),
            number(output_variance(name, "square_cosine"), 2),
        ])  # fmt: skip
    return rows


def angular_rows() -> list[list[str]]:
    """Properties of every g, with h = linear and h = tanh."""
    rows = []
    for name, g in ANGULARS.items():
        operator = Operator("linear", name)
        values = ", ".join(f"{key} = {value:g}" for key, value in g.defaults.items()) or "–"
        rows.append([
            f"`{name}`", bound(Operator("sphere", name)), yes(operator.smooth), values, number(operator.lipschitz()),
            number(Operator("sphere", name).lipschitz()), number(output_variance("linear", name), 2),
            number(output_variance("tanh", name), 2),
        ])  # fmt: skip
    return rows


def weighting_rows() -> list[list[str]]:
    """What each weighting makes of TanhConv with the cosine."""
    rows = []
    for weighting in ("none", "linear", "product", "separate"):
        operator = Operator("tanh", "cosine", weighting)
        steepest = [number(operator.lipschitz(weight_norm=norm)) for norm in (0.5, 1.0, 2.0)]
        rows.append([f"`{weighting}`", bound(operator), *steepest])
    return rows


def slope_rows() -> list[list[str]]:
    """The slope of the arc sine at cos θ = 1 and at the numbers just below it."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        unit = torch.finfo(dtype).eps
        c = (1 - torch.arange(64, dtype=dtype) * (unit / 2)).requires_grad_()
        (slope,) = torch.autograd.grad(arc_sine(c).sum(), c)
        rows.append(
            [str(dtype).removeprefix("torch."), number(unit, 2), number(slope.max().item(), 4), number(slope[0].item())]
        )
    return rows


# -- from numbers to text ----------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """A few significant digits."""
    if value is None:
        return "learned"
    if math.isinf(value):
        return "∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def bound(operator: Operator) -> str:
    """The bound of |f|, in words where it is no number."""
    return "none" if operator.bound == math.inf else number(operator.bound)


def yes(answer: bool) -> str:
    """A word for a truth."""
    return "yes" if answer else "no"


def table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table, its numbers to the right."""
    heads = list(heads)
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


HEADS = {
    "magnitudes": (
        "h", "bound", "smooth", "radius", "Lipschitz, cosine", "Lipschitz, square_cosine", "variance, cosine",
        "variance, square_cosine",
    ),
    "angulars": (
        "g", "bound", "smooth", "default", "Lipschitz, linear h", "Lipschitz, sphere h", "variance, linear h",
        "variance, tanh h",
    ),
    "weightings": ("weighting", "bound", "Lipschitz at ‖w‖ = 0.5", "at ‖w‖ = 1", "at ‖w‖ = 2"),
    "slopes": ("computed in", "rounding unit", "largest slope", "slope at cos θ = 1"),
}  # fmt: skip
ROWS: dict[str, Callable[[], list[list[str]]]] = {
    "magnitudes": magnitude_rows,
    "angulars": angular_rows,
    "weightings": weighting_rows,
    "slopes": slope_rows,
}


def tables() -> dict[str, str]:
    """Every generated table under the name in its markers."""
    return {name: table(HEADS[name], rows()) for name, rows in ROWS.items()}


def render(text: str) -> str:
    """The page with every table made anew."""
    for name, made in tables().items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"expected one pair of markers <!-- begin {name} --> and <!-- end {name} -->")
        text = pattern.sub(lambda match, made=made: f"{match[1]}{made}\n{match[2]}", text)
    return text


# -- plots and snippets ------------------------------------------------------------------------------------------------


def image_name(curve: Curve) -> str:
    """`h-ball.svg`; a sum's signs become hyphens."""
    return f"{curve.symbol}-{re.sub(r'[^a-z_0-9]+', '-', curve.name)}.svg"


def draw(folder: Path) -> list[Path]:
    """Write a plot of each h and each g."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for curves in (magnitude_curves(), angular_curves()):
        for curve in curves:
            paths.append(folder / image_name(curve))
            paths[-1].write_text(panel(curve, curves), encoding="utf-8")
    return paths


def run_snippets(text: str) -> int:
    """Run the page's Python blocks in order and return their count; what they register is forgotten afterwards."""
    snippets = re.findall(r"```python\n(.*?)```", text, re.S)
    before = dict(MAGNITUDES), dict(ANGULARS)
    names: dict[str, object] = {"__name__": "snippets"}
    try:
        for index, snippet in enumerate(snippets, 1):
            exec(compile(snippet, f"operators.md, snippet {index}", "exec"), names)
    finally:
        for registry, entries in zip((MAGNITUDES, ANGULARS), before, strict=True):
            registry.clear()
            registry.update(entries)
    return len(snippets)


def main() -> None:
    """Rewrite the page and its images, or say whether the page is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the tables are out of date")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    made = render(text)
    for name in HEADS:
        print(re.search(rf"<!-- begin {name} -->\n(.*?)<!-- end", made, re.S)[1])  # type: ignore[index]
    print(f"{run_snippets(made)} snippets ran")
    if check and made != text:
        raise SystemExit("docs/operators.md is out of date; run: python examples/operator_docs.py")
    if not check:
        PAGE.write_text(made, encoding="utf-8")
        print(f"{len(draw(DOCS / 'images'))} plots in {DOCS / 'images'}")


if __name__ == "__main__":
    main()
