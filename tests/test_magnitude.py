"""Every magnitude function against its equation in plain Python, and its slopes against autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import EXACT, error

import dcnets
from dcnets import Operator
from dcnets.magnitude import MAGNITUDES
from dcnets.piecewise import PiecewiseMagnitude

EQUATIONS = {
    "sphere": lambda n, rho, alpha, beta, w: 1.0,
    "ball": lambda n, rho, alpha, beta, w: n / rho if n < rho else 1.0,
    "tanh": lambda n, rho, alpha, beta, w: (
        (math.exp(n / rho) - math.exp(-n / rho)) / (math.exp(n / rho) + math.exp(-n / rho))
    ),
    "linear": lambda n, rho, alpha, beta, w: n,
    "segmented": lambda n, rho, alpha, beta, w: alpha * n if n < rho else beta * (n - rho) + alpha * rho,
    "log": lambda n, rho, alpha, beta, w: math.log(1 + n),
    "mixed": lambda n, rho, alpha, beta, w: alpha * n + beta * math.log(1 + n),
    "inner_product": lambda n, rho, alpha, beta, w: w * n,
}
FORMULAS = sorted(EQUATIONS)
SUMS = ["tanh+0.5*segmented+2*mixed", "3*ball", "sphere+-0.25*log"]
NORMS = torch.tensor([0.01, 0.3, 0.899, 0.9, 0.901, 1.7, 2.0, 30.0], dtype=torch.float64)
VALUES = {"rho": 0.9, "alpha": 1.3, "beta": 0.4, "weight_norm": 2.5}


def h_of(name):
    return MAGNITUDES[name] if name in MAGNITUDES else Operator(name).h


def known_at(h, n, values):
    known = {**values, "n": n, "h": h(n, values)}
    known["h_n"] = h.slope("n", known)
    return known


def test_every_registered_formula_has_its_equation_here():
    assert {name for name, h in MAGNITUDES.items() if not h.is_module} == set(EQUATIONS)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_magnitude_is_its_equation(name):
    expected = [EQUATIONS[name](n, *VALUES.values()) for n in NORMS.tolist()]
    assert MAGNITUDES[name](NORMS, VALUES).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_magnitude_broadcasts_one_value_a_filter(name):
    n = NORMS.reshape(1, 1, 1, -1)
    rho = torch.tensor([0.5, 0.9, 4.0], dtype=torch.float64)
    values = {**VALUES, "rho": rho.reshape(1, 3, 1)}
    expected = [[EQUATIONS[name](m, r, 1.3, 0.4, 2.5) for m in NORMS.tolist()] for r in rho.tolist()]
    found = MAGNITUDES[name](n, values).expand(1, 1, 3, len(NORMS))[0, 0]
    assert error(found, torch.tensor(expected, dtype=torch.float64)) < EXACT


def test_a_sum_takes_each_term_at_alpha_one_with_its_coefficient():
    h = Operator("tanh+0.5*segmented+2*mixed").h
    at_one = {**VALUES, "alpha": 1.0}.values()
    for n, found in zip(NORMS.tolist(), h(NORMS, VALUES).tolist(), strict=True):
        terms = [c * EQUATIONS[name](n, *at_one) for c, name in ((1, "tanh"), (0.5, "segmented"), (2, "mixed"))]
        assert found == pytest.approx(sum(terms), rel=1e-14)


@pytest.mark.parametrize("name", [*FORMULAS, *SUMS])
def test_every_slope_agrees_with_autograd(name):
    h = h_of(name)
    assert h.has_slopes
    n = torch.linspace(0.02, 3, 41, dtype=torch.float64)
    names = [of for of in ("rho", "alpha", "beta", "weight_norm") if of in h.parameters]
    leaves = {of: torch.full_like(n, VALUES[of]).requires_grad_() for of in names}
    n.requires_grad_()
    value = h(n, {**VALUES, **leaves}) + 0 * n
    truths = torch.autograd.grad(value.sum(), [n, *leaves.values()], allow_unused=True)
    known = known_at(h, n.detach(), {**VALUES, **{of: leaf.detach() for of, leaf in leaves.items()}})
    for of, truth in zip(["n", *names], truths, strict=True):
        found = torch.as_tensor(h.slope(of, known), dtype=torch.float64).expand_as(n)
        assert error(found, truth) < EXACT, of


@pytest.mark.parametrize("name", [*FORMULAS, *SUMS])
def test_slopes_do_not_write_over_what_they_are_given(name):
    h = h_of(name)
    known = known_at(h, NORMS.clone(), {key: torch.full_like(NORMS, value) for key, value in VALUES.items()})
    before = {key: torch.as_tensor(value).clone() for key, value in known.items()}
    for of in ("n", *h.parameters):
        h.slope(of, known)
    assert all(torch.equal(torch.as_tensor(known[key]), value) for key, value in before.items())


@pytest.mark.parametrize(
    ("name", "outer"),
    [("ball", {"n": 0.0, "rho": 0.0}), ("segmented", {"n": 0.4, "rho": 1.3 - 0.4, "alpha": 0.9, "beta": 0.0})],
)
def test_the_slope_at_the_radius_is_the_outer_one(name, outer):
    h = MAGNITUDES[name]
    leaves = {of: torch.tensor(VALUES[of], dtype=torch.float64, requires_grad=True) for of in outer if of != "n"}
    n = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    value = h(n, {**VALUES, **leaves})
    by_autograd = torch.autograd.grad(value, [n, *leaves.values()])
    known = known_at(h, n.detach(), {**VALUES, **{of: leaf.detach() for of, leaf in leaves.items()}})
    for of, found in zip(["n", *leaves], by_autograd, strict=True):
        assert found.item() == pytest.approx(outer[of], abs=1e-15), of
        assert float(h.slope(of, known)) == pytest.approx(outer[of], abs=1e-15), of


@pytest.mark.parametrize("name", [name for name in FORMULAS if "rho" in MAGNITUDES[name].parameters])
def test_a_magnitude_with_a_radius_is_continuous_there(name):
    below, above = MAGNITUDES[name](torch.tensor([0.9 - 1e-12, 0.9 + 1e-12], dtype=torch.float64), VALUES).tolist()
    assert below == pytest.approx(above, abs=1e-11)


def test_segmented_at_its_defaults_has_slope_one_inside_and_one_half_outside():
    h = Operator("segmented")
    n = torch.tensor([0.5, 3.0], dtype=torch.float64)
    known = {"n": n, "rho": 1.0, "alpha": h.alpha, "beta": h.beta}
    assert h.h.slope("n", known).tolist() == [1.0, 0.5]


# -- the learned h ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", FORMULAS)
@pytest.mark.parametrize("monotone", [False, True])
def test_a_piecewise_magnitude_starts_as_the_named_one_at_its_knots(init, monotone):
    module = PiecewiseMagnitude(2, init=init, knots=7, reach=3.0, monotone=monotone, dtype=torch.float64)
    rho = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(1, 2, 1)
    knots = torch.linspace(0, 3, 7, dtype=torch.float64)
    beta = MAGNITUDES[init].defaults.get("beta", 0.0)
    expected = [EQUATIONS[init](n, 1.0, 1.0, beta, 1.0) for n in knots.tolist()]
    for of_filter in range(2):
        n = (knots * rho[0, of_filter]).reshape(1, 1, 1, 7)
        assert module(n, rho)[0, 0, of_filter].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_piecewise_magnitude_is_straight_between_and_beyond_its_knots():
    module = PiecewiseMagnitude(1, knots=3, reach=2.0, dtype=torch.float64)
    with torch.no_grad():
        module.values.copy_(torch.tensor([[0.0, 4.0, 5.0]]))
    n = torch.tensor([0.25, 0.5, 1.5, 2.0, 5.0], dtype=torch.float64).reshape(1, 1, 1, 5)
    assert module(n, 1.0).flatten().tolist() == pytest.approx([1.0, 2.0, 4.5, 5.0, 8.0])


def test_a_piecewise_magnitude_gives_each_filter_of_each_group_its_own_function():
    module = PiecewiseMagnitude(4, knots=2, reach=1.0, dtype=torch.float64)
    with torch.no_grad():
        module.values.copy_(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]))
    n = torch.tensor([[0.5, 0.25], [0.1, 0.2]], dtype=torch.float64).reshape(1, 2, 1, 2)  # two groups, two positions
    expected = torch.tensor([[[0.5, 0.25], [1.0, 0.5]], [[0.3, 0.6], [0.4, 0.8]]], dtype=torch.float64)
    assert error(module(n, 1.0)[0], expected) < EXACT


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6))
@settings(max_examples=30)
def test_a_monotone_piecewise_magnitude_rises_whatever_its_values_are(values):
    module = PiecewiseMagnitude(1, knots=len(values), monotone=True, dtype=torch.float64)
    with torch.no_grad():
        module.values.copy_(torch.tensor([values]))
    h = module(torch.linspace(0, 8, 101, dtype=torch.float64).reshape(1, 1, 1, -1), 1.0).flatten()
    assert (h.diff() >= -1e-12).all()


@pytest.mark.parametrize("monotone", [False, True])
def test_a_piecewise_magnitude_learns_another_one(monotone):
    x, weight = torch.nn.functional.normalize(torch.randn(64, 6)) * torch.rand(64, 1) * 4, torch.randn(3, 6)
    layer = dcnets.DecoupledLinear(
        6, 3, magnitude=f"piecewise(init=linear, monotone={monotone})", radius="absolute", learn=()
    )
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    target = dcnets.functional.decoupled_linear(x, weight, "tanh(radius=absolute)-cosine")
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    losses = []
    for _ in range(150):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 50


def test_a_piecewise_magnitude_needs_two_knots_and_a_known_start():
    with pytest.raises(ValueError, match="at least 2 knots, got 1"):
        PiecewiseMagnitude(3, knots=1)
    with pytest.raises(ValueError, match="unknown init of a piecewise magnitude 'tahn'; did you mean 'tanh'"):
        PiecewiseMagnitude(3, init="tahn")
    with pytest.raises(ValueError, match="unknown init"):
        PiecewiseMagnitude(3, init="piecewise")
