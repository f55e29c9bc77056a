"""Every angular function against its equation in θ in plain Python, and its slopes against autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import EXACT, SCALE, error

import dcnets
from dcnets.angular import ANGULARS, POWER_FLOOR, arc_sine, arc_slope
from dcnets.piecewise import PiecewiseAngular


def equation_13(theta, k):
    top = (1 + math.exp(-math.pi / (2 * k))) / (1 - math.exp(-math.pi / (2 * k)))
    return top * (1 - math.exp(theta / k - math.pi / (2 * k))) / (1 + math.exp(theta / k - math.pi / (2 * k)))


EQUATIONS = {
    "linear": lambda theta, k, p: -2 / math.pi * theta + 1,
    "cosine": lambda theta, k, p: math.cos(theta),
    "sigmoid": lambda theta, k, p: equation_13(theta, k),
    "square_cosine": lambda theta, k, p: math.copysign(math.cos(theta) ** 2, math.cos(theta)),
    "power_cosine": lambda theta, k, p: math.copysign(abs(math.cos(theta)) ** p, math.cos(theta)),
    "relu_cosine": lambda theta, k, p: max(0.0, math.cos(theta)),
}
FORMULAS = sorted(EQUATIONS)
THETA = torch.linspace(0.01, math.pi - 0.01, 101, dtype=torch.float64)
VALUES = {"k": 0.3, "p": 1.7}


def known_at(g, c, values):
    known = {**values, "c": c, "g": g(c, values)}
    known["g_c"] = g.slope("c", known)
    return known


def test_every_registered_formula_has_its_equation_here():
    assert {name for name, g in ANGULARS.items() if not g.is_module} == set(EQUATIONS)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("k", "p"), [(0.3, 1.7), (0.75, 1.0), (3.0, 4.0)])
def test_an_angular_function_is_its_equation(name, k, p):
    found = ANGULARS[name](THETA.cos(), {"k": k, "p": p})
    assert found.tolist() == pytest.approx([EQUATIONS[name](theta, k, p) for theta in THETA.tolist()], abs=1e-12)


@pytest.mark.parametrize(
    ("name", "degrees", "value"),
    [
        *[(name, 0, 1.0) for name in FORMULAS],
        *[(name, 90, 0.0) for name in FORMULAS],
        *[(name, 180, -1.0) for name in FORMULAS if name != "relu_cosine"],
        ("relu_cosine", 180, 0.0),
        ("linear", 45, 0.5),
        ("linear", 60, 1 / 3),
        ("cosine", 60, 0.5),
        ("square_cosine", 60, 0.25),
        ("square_cosine", 120, -0.25),
        ("relu_cosine", 60, 0.5),
        ("relu_cosine", 120, 0.0),
        ("sigmoid", 45, math.tanh(math.pi / 8 / 0.3) / math.tanh(math.pi / 4 / 0.3)),
    ],
)
def test_special_angles_have_the_papers_values(name, degrees, value):
    c = torch.tensor(math.cos(math.radians(degrees)), dtype=torch.float64)
    assert ANGULARS[name](c, {"k": 0.3, "p": 2.0}).item() == pytest.approx(value, abs=1e-7)  # √(2 units): the arc sine's end


@pytest.mark.parametrize("k", [0.05, 0.01, 0.005])
def test_the_sigmoid_angle_is_equation_13_where_that_does_not_overflow_and_finite_where_it_does(k):
    c = torch.cat([THETA.cos(), torch.tensor([1.0, -1.0], dtype=torch.float64)])
    found = ANGULARS["sigmoid"](c, {"k": k})
    assert found.isfinite().all()
    assert (found.abs() <= 1 + 1e-12).all()
    compared = 0
    for theta, value in zip(THETA.tolist(), found.tolist(), strict=False):
        try:
            expected = equation_13(theta, k)
        except OverflowError:
            continue
        compared += 1
        assert value == pytest.approx(expected, abs=1e-11)
    assert compared > 50


@pytest.mark.parametrize("k", [30.0, 1e3, 1e6])
def test_the_larger_k_the_closer_the_sigmoid_angle_is_to_the_linear_one(k):
    c = THETA.cos().float()
    found = [ANGULARS["sigmoid"](c, {"k": given}) for given in (k, torch.tensor(k))]
    for g in found:
        assert error(g, ANGULARS["linear"](c, {})) < (math.pi / 4 / k) ** 2 / 3 + SCALE


def test_a_tiny_k_is_finite_in_value_and_slopes_where_equation_13_overflows():
    with pytest.raises(OverflowError):
        equation_13(math.pi, 0.001)
    c = torch.tensor([1.0, 0.3, 0.0, -0.3, -1.0], dtype=torch.float32, requires_grad=True)
    k = torch.tensor(0.001, requires_grad=True)
    g = ANGULARS["sigmoid"](c, {"k": k})
    assert g.tolist() == pytest.approx([1, 1, 0, -1, -1], abs=1e-6)
    assert all(d.isfinite().all() for d in torch.autograd.grad(g.sum(), [c, k]))
    known = known_at(ANGULARS["sigmoid"], c.detach(), {"k": k.detach()})
    assert known["g_c"].isfinite().all()
    assert ANGULARS["sigmoid"].slope("k", known).isfinite().all()


@pytest.mark.parametrize(("p", "same"), [(1.0, "cosine"), (2.0, "square_cosine")])
def test_power_cosine_includes_its_relatives(p, same):
    c = torch.linspace(-1, 1, 201, dtype=torch.float64)
    assert error(ANGULARS["power_cosine"](c, {"p": p}), ANGULARS[same](c, {})) < EXACT


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("k", "p"), [(0.3, 1.7), (0.05, 1.0), (2.0, 3.0)])
def test_every_slope_agrees_with_autograd(name, k, p):
    g = ANGULARS[name]
    assert g.has_slopes
    c = torch.cat([torch.linspace(-0.999, 0.999, 60, dtype=torch.float64), torch.tensor([3e-7, -2e-7], dtype=torch.float64)])
    leaves = {of: torch.full_like(c, {"k": k, "p": p}[of]).requires_grad_() for of in g.parameters}
    c.requires_grad_()
    truths = torch.autograd.grad(g(c, leaves).sum(), [c, *leaves.values()])
    known = known_at(g, c.detach(), {of: leaf.detach() for of, leaf in leaves.items()})
    for of, truth in zip(["c", *leaves], truths, strict=True):
        found = torch.as_tensor(g.slope(of, known), dtype=torch.float64).expand_as(c)
        assert error(found, truth) < 1e-10, of


@pytest.mark.parametrize("name", FORMULAS)
def test_slopes_do_not_write_over_what_they_are_given(name):
    g = ANGULARS[name]
    c = torch.linspace(-1, 1, 9)
    known = known_at(g, c, {key: torch.full_like(c, value) for key, value in VALUES.items()})
    before = {key: torch.as_tensor(value).clone() for key, value in known.items()}
    for of in ("c", *g.parameters):
        g.slope(of, known)
    assert all(torch.equal(torch.as_tensor(known[key]), value) for key, value in before.items())


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_slope_are_finite_at_and_beyond_the_ends(name, dtype):
    unit = torch.finfo(dtype).eps
    c = torch.tensor([-1 - 4 * unit, -1, -1 + unit, 0, 1 - unit, 1, 1 + 4 * unit], dtype=dtype, requires_grad=True)
    g = ANGULARS[name](c, VALUES)
    (slope,) = torch.autograd.grad(g.sum(), c)
    known = known_at(ANGULARS[name], c.detach(), VALUES)
    assert (g.abs() <= 1 + 16 * unit).all()
    assert slope.isfinite().all()
    assert torch.as_tensor(known["g_c"]).isfinite().all()


@pytest.mark.parametrize(("dtype", "cap"), [(torch.float32, 2048.0), (torch.float64, 4.745e7)])
def test_the_slope_of_the_arc_sine_has_the_documented_cap_and_is_zero_beyond(dtype, cap):
    unit = torch.finfo(dtype).eps
    c = torch.tensor([1 - unit, unit - 1, 1.0, -1.0, 1 + 1e-5, 1 - unit / 2], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(arc_sine(c).sum(), c)
    assert slope.tolist() == pytest.approx([cap, cap, 0, 0, 0, 0], rel=1e-3)
    assert arc_slope(c.detach()).tolist() == pytest.approx([cap, cap, 0, 0, 0, 0], rel=1e-3)


def test_the_slope_of_the_arc_sine_is_below_its_cap_everywhere():
    c = 1 - torch.arange(200, dtype=torch.float32) * torch.finfo(torch.float32).eps / 2
    for signed in (c, -c):
        leaf = signed.clone().requires_grad_()
        (slope,) = torch.autograd.grad(arc_sine(leaf).sum(), leaf)
        assert (slope <= 2048.5).all()
        assert error(arc_slope(signed), slope) < 1e-6


def test_the_arc_sine_is_exact_up_to_a_unit_from_its_ends_and_never_more_than_a_right_angle():
    c = torch.linspace(-1, 1, 1001, dtype=torch.float64) * (1 - 1e-12)
    assert arc_sine(c).tolist() == pytest.approx([math.asin(value) for value in c.tolist()], abs=1e-15)
    ends = arc_sine(torch.tensor([1.0, 1.02, -1.0, -1.02], dtype=torch.float32)).tolist()
    assert ends == pytest.approx([math.pi / 2, math.pi / 2, -math.pi / 2, -math.pi / 2], abs=5e-4)  # √(2 units)
    assert max(map(abs, ends)) <= math.pi / 2


def test_power_cosine_is_a_straight_line_below_its_floor():
    c = torch.tensor([0.0, POWER_FLOOR / 2, -POWER_FLOOR / 3], dtype=torch.float64, requires_grad=True)
    g = ANGULARS["power_cosine"](c, {"p": 1.5})
    (slope,) = torch.autograd.grad(g.sum(), c)
    assert slope.tolist() == pytest.approx([POWER_FLOOR**0.5] * 3, rel=1e-12)
    assert g.tolist() == pytest.approx((c * POWER_FLOOR**0.5).tolist(), rel=1e-12)


# -- the learned g ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", FORMULAS)
@pytest.mark.parametrize("monotone", [False, True])
def test_a_piecewise_angular_function_starts_as_the_named_one_at_its_knots(init, monotone):
    module = PiecewiseAngular(3, init=init, knots=5, monotone=monotone, dtype=torch.float64)
    knots = [math.pi / 4 * i for i in range(5)]
    c = torch.tensor([math.cos(theta) for theta in knots], dtype=torch.float64).expand(1, 1, 3, 5)
    expected = [EQUATIONS[init](theta, 0.3, 2.0) for theta in knots]
    for of_filter in range(3):
        assert module(c)[0, 0, of_filter].tolist() == pytest.approx(expected, abs=1e-7)  # √unit at θ = 0 and π


def test_a_piecewise_angular_function_with_a_linear_start_is_the_linear_angle_everywhere():
    module = PiecewiseAngular(1, init="linear", knots=4, dtype=torch.float64)
    found = module(THETA.cos().reshape(1, 1, 1, -1)).flatten()
    assert found.tolist() == pytest.approx(
        [1 - 2 * theta / math.pi for theta in THETA.tolist()], abs=3e-8
    )  # √(2 units), as its knot at θ = 0


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6))
@settings(max_examples=30)
def test_a_monotone_piecewise_angular_function_falls_whatever_its_values_are(values):
    module = PiecewiseAngular(1, knots=len(values), monotone=True, dtype=torch.float64)
    with torch.no_grad():
        module.values.copy_(torch.tensor([values]))
    g = module(torch.linspace(0, math.pi, 101, dtype=torch.float64).cos().reshape(1, 1, 1, -1)).flatten()
    assert (g.diff() <= 1e-12).all()


@pytest.mark.parametrize("monotone", [False, True])
def test_a_piecewise_angular_function_learns_another_one(monotone):
    x, weight = torch.randn(128, 4), torch.randn(3, 4)
    layer = dcnets.DecoupledLinear(4, 3, magnitude="sphere", angular=f"piecewise(init=linear, monotone={monotone})")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    target = dcnets.functional.decoupled_linear(x, weight, "sphere-sigmoid")
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 50


def test_the_sigmoid_angle_keeps_its_slope_where_its_value_is_all_but_one():
    c = torch.linspace(-1, 1, 2001, dtype=torch.float64)[1:-1]
    g, k = ANGULARS["sigmoid"], 0.06
    exact = (1 / torch.cosh(torch.asin(c) / (2 * k))) ** 2 / (2 * k * math.tanh(math.pi / 4 / k)) / (1 - c * c).sqrt()
    slope = known_at(g, c.float(), {"k": k})["g_c"].double()
    torch.testing.assert_close(slope, exact, rtol=1e-3, atol=0)
    torch.testing.assert_close(known_at(g, c.float(), {"k": torch.tensor(k)})["g_c"].double(), exact, rtol=1e-3, atol=0)
