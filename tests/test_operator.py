"""The frozen spec: its text form, what it refuses, and what it knows of itself."""

import copy
import itertools
import math
import pickle
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnets import Operator, functional
from dcnets.angular import ANGULARS
from dcnets.magnitude import MAGNITUDES
from dcnets.operator import WEIGHTINGS

H = ["ball", "inner_product", "linear", "log", "mixed", "segmented", "sphere", "tanh"]
G = ["cosine", "linear", "power_cosine", "relu_cosine", "sigmoid", "square_cosine"]
WITH_RADIUS = {"ball", "tanh", "segmented"}
NOT_SMOOTH = {"ball", "segmented", "relu_cosine"}


def allowed(h, weighting):
    return weighting == "none" or (h != "inner_product" and not (h == "sphere" and weighting in ("product", "separate")))


# -- the text form ----------------------------------------------------------------------------------------------------

numbers = (
    st.floats(-1e6, 1e6, allow_nan=False) | st.integers(-1000, 1000) | st.sampled_from([1e-12, 1e16, -2e22, 0.1, 1e300])
)
positive = st.floats(1e-12, 1e20) | st.integers(1, 100)
coefficients = numbers.filter(lambda c: c != 0)
terms = st.lists(st.tuples(coefficients, st.sampled_from([h for h in H if h != "inner_product"])), min_size=1, max_size=3)
sums = terms.map(lambda ts: "+".join(name if c == 1 else f"{c!r}*{name}" for c, name in ts))


@st.composite
def operators(draw):
    magnitude = draw(st.sampled_from(H) | sums)
    angular = draw(st.sampled_from(G))
    plain = Operator(magnitude, angular)
    options = {"alpha": draw(numbers), "eps": draw(positive)}
    if "beta" in plain.h.parameters:
        options["beta"] = draw(st.none() | numbers)
    if "k" in plain.g.parameters:
        options["k"] = draw(st.none() | positive)
    if "p" in plain.g.parameters:
        options["p"] = draw(st.none() | st.floats(1, 1e18))
    if plain.has_radius:
        options["radius"] = draw(st.sampled_from(["relative", "absolute"]))
    norm_free = all(name == "sphere" for name in re.findall(r"[a-z_]{3,}", magnitude))
    if magnitude != "inner_product":
        options["weighting"] = draw(st.sampled_from(["none", "linear"] if norm_free else WEIGHTINGS))
    return Operator(magnitude, angular, **options)


@given(operators())
@settings(max_examples=300)
def test_an_operator_reads_back_from_its_text(operator):
    assert Operator.parse(str(operator)) == operator


@given(operators())
@settings(max_examples=50)
def test_pickle_and_deepcopy_and_hash_keep_an_operator_what_it_is(operator):
    for twin in (pickle.loads(pickle.dumps(operator)), copy.deepcopy(operator), copy.copy(operator)):
        assert twin == operator
        assert hash(twin) == hash(operator)
        assert str(twin) == str(operator)


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        (lambda: Operator(), "tanh-cosine"),
        (lambda: Operator("segmented", "square_cosine", beta=0.3), "segmented(beta=0.3)-square_cosine"),
        (lambda: Operator("segmented", beta=0.5), "segmented-cosine"),
        (lambda: Operator("mixed", "sigmoid", beta=1, k=0.3), "mixed-sigmoid"),
        (lambda: Operator("ball", "power_cosine", "product", p=3), "ball-power_cosine(p=3)-product"),
        (lambda: Operator("log", "sigmoid", k=0.25, alpha=-2), "log(alpha=-2)-sigmoid(k=0.25)"),
        (lambda: Operator("ball", radius="absolute", eps=1e-12), "ball(radius=absolute, eps=1e-12)-cosine"),
        (lambda: Operator("tanh+0.5*linear", weighting="linear"), "tanh+0.5*linear-cosine-linear"),
        (lambda: Operator("linear + -0.25*log", "linear"), "linear+-0.25*log-linear"),
        (lambda: Operator("1e+16*tanh"), "1e+16*tanh-cosine"),
        (
            lambda: Operator("piecewise(init=ball, knots=5)", "piecewise(monotone=True)"),
            "piecewise(init=ball, knots=5)-piecewise(monotone=True)",
        ),
        (lambda: Operator("piecewise(reach=2.0)", alpha=2), "piecewise(reach=2, alpha=2)-cosine"),
    ],
)
def test_the_text_leaves_defaults_out_and_reads_back(spec, form):
    assert str(spec()) == form
    assert Operator.parse(form) == spec()


def test_spaces_in_a_text_do_not_matter():
    assert Operator.parse(" segmented( beta = 0.3 ,alpha=2)-sigmoid(k= 0.1)-linear ") == Operator(
        "segmented", "sigmoid", "linear", alpha=2, beta=0.3, k=0.1
    )


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("tanh", "cannot read operator 'tanh'; expected magnitude-angular"),
        ("tanh-cosine-linear-none", "cannot read operator"),
        ("tanh(alpha)-cosine", "cannot read 'alpha' in 'tanh.alpha.'; expected argument=value"),
        ("tanh(alpha=2-cosine", "cannot read"),
        ("tahn-cosine", "unknown magnitude 'tahn'; did you mean 'tanh'?"),
        ("tanh-cosin", "unknown angular 'cosin'; did you mean 'cosine'?"),
        ("tanh-cosine-produkt", "unknown weighting 'produkt'; did you mean 'product'?"),
        ("tanh+0.5*linera-cosine", "unknown magnitude 'linera'; did you mean 'linear'?"),
        ("half*tanh-cosine", r"cannot read 'half\*tanh'"),
        ("tanh(gamma=2)-cosine", "tanh is a formula and takes no arguments in its name"),
        ("tanh(k=0.3)-sigmoid", "tanh is a formula"),
        ("tanh-cosine(k=0.3)", "cosine takes no k, got k=0.3"),
        ("tanh(radius=relativ)-cosine", "unknown radius 'relativ'; did you mean 'relative'?"),
        ("piecewise+tanh-cosine", r"cannot add up 'piecewise\+tanh'"),
        ("tanh+inner_product-cosine", "cannot add up"),
    ],
)
def test_an_unreadable_text_is_refused_with_what_was_probably_meant(form, message):
    with pytest.raises(ValueError, match=message):
        Operator.parse(form)


def test_an_unknown_name_lists_all_choices():
    with pytest.raises(
        ValueError, match="choose one of ball, inner_product, linear, log, mixed, piecewise, segmented, sphere, tanh"
    ):
        Operator("cube")


def test_an_unknown_argument_of_a_module_is_refused():
    with pytest.raises(TypeError, match=r"piecewise got an unknown keyword 'knot'; did you mean 'knots'\?"):
        Operator("piecewise(knot=5)")


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["product", "separate"])
@pytest.mark.parametrize("h", ["sphere", "2*sphere", "sphere+0.5*sphere"])
def test_the_sphere_refuses_weightings_that_need_a_norm(h, weighting):
    with pytest.raises(ValueError, match=f"sphere.*weighting='{weighting}' means nothing; use 'linear'"):
        Operator(h, weighting=weighting)


@pytest.mark.parametrize("weighting", ["linear", "product", "separate"])
def test_the_inner_product_refuses_any_weighting(weighting):
    with pytest.raises(ValueError, match=f"inner_product contains ‖w‖ already; use weighting='none', not '{weighting}'"):
        Operator("inner_product", weighting=weighting)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"angular": "cosine", "k": 0.3}, "cosine takes no k, got k=0.3; leave it out"),
        ({"angular": "sigmoid", "p": 2.0}, "sigmoid takes no p, got p=2.0"),
        ({"magnitude": "tanh", "beta": 0.5}, "tanh takes no beta, got beta=0.5"),
        ({"magnitude": "tanh+log", "beta": 0.5}, r"tanh\+log takes no beta"),
        ({"angular": "sigmoid", "k": 0}, "k must be above 0, got 0"),
        ({"angular": "sigmoid", "k": -0.3}, "k must be above 0, got -0.3"),
        ({"angular": "power_cosine", "p": 0.99}, "p must be at least 1, got 0.99"),
        ({"eps": 0.0}, "eps must be above 0, got 0.0"),
        ({"eps": -1e-4}, "eps must be above 0, got -0.0001"),
        ({"magnitude": "sphere", "radius": "absolute"}, "sphere has no radius, so radius='absolute' means nothing"),
        *[({"alpha": bad}, "alpha must be finite") for bad in (math.nan, math.inf, -math.inf)],
        *[({"magnitude": "segmented", "beta": bad}, "beta must be finite") for bad in (math.nan, math.inf)],
        *[({"angular": "sigmoid", "k": bad}, "k must be above 0") for bad in (math.nan, math.inf)],
        *[({"angular": "power_cosine", "p": bad}, "p must be at least 1") for bad in (math.nan, math.inf)],
        *[({"eps": bad}, "eps must be above 0") for bad in (math.nan, math.inf)],
        *[({"magnitude": f"{bad}*tanh"}, bad) for bad in ("nan", "inf", "-inf", "1e999")],
    ],
)
def test_a_number_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Operator(**options)


@pytest.mark.parametrize("value", [torch.ones(3), True, "1", [1.0]])
def test_what_is_not_a_number_is_refused_as_one(value):
    with pytest.raises(TypeError, match=f"alpha is a number, got {type(value).__name__}"):
        Operator(alpha=value)


def test_what_is_not_a_name_is_refused_as_one():
    with pytest.raises(TypeError, match="magnitude is a name, got int"):
        Operator(3)
    with pytest.raises(TypeError, match="weighting is a name, got NoneType"):
        Operator(weighting=None)


def test_an_operator_cannot_be_changed():
    with pytest.raises(AttributeError):
        Operator().alpha = 2.0


def test_equal_specs_are_one_key_however_their_numbers_were_written():
    assert {
        Operator("segmented", alpha=2, beta=0.5),
        Operator("segmented", alpha=2.0),
        Operator("segmented", alpha=2.5),
    } == {
        Operator("segmented", alpha=2.0),
        Operator("segmented", alpha=2.5),
    }


# -- what an operator knows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "g"), list(itertools.product(H, G)))
def test_radius_and_smoothness_are_known(h, g):
    operator = Operator(h, g)
    assert operator.has_radius == (h in WITH_RADIUS)
    assert operator.smooth == (not {h, g} & NOT_SMOOTH)


def test_the_lists_of_this_file_are_complete():
    assert {*H, "piecewise"} == set(MAGNITUDES)
    assert {*G, "piecewise"} == set(ANGULARS)


def test_a_sum_has_a_radius_and_a_kink_where_a_term_has():
    assert Operator("log+0.5*tanh").has_radius
    assert Operator("log+0.5*tanh").smooth
    assert not Operator("log+linear").has_radius
    assert not Operator("log+0.5*ball").smooth


@pytest.mark.parametrize(("h", "g", "weighting"), [c for c in itertools.product(H, G, WEIGHTINGS) if allowed(c[0], c[2])])
def test_the_bound_is_the_supremum(h, g, weighting):
    operator = Operator(h, g, weighting, alpha=-1.5)
    if h in ("sphere", "ball", "tanh") and weighting != "linear":
        assert operator.bounded
        assert operator.bound == pytest.approx(1.5, rel=1e-6)
    else:
        assert not operator.bounded
        assert operator.bound == math.inf


@pytest.mark.parametrize("g", G)
@pytest.mark.parametrize("alpha", [1e-9, 0.1, 1.0, 1e9])
def test_no_output_exceeds_the_bound(g, alpha):
    operator = Operator("tanh", g, alpha=alpha, radius="absolute", eps=1e-12)
    w = torch.eye(3, dtype=torch.float64)
    y = functional.decoupled_linear(torch.cat([1e6 * w, -1e6 * w, torch.randn(50, 3, dtype=torch.float64)]), w, operator)
    assert y.abs().max().item() == pytest.approx(alpha, rel=1e-6)
    assert y.abs().max().item() <= operator.bound * (1 + 1e-7)


def test_a_bounded_sum_is_bounded_by_its_coefficients():
    assert Operator("tanh+0.5*ball", alpha=2).bound == pytest.approx(3.0, rel=1e-6)
    assert Operator("tanh+0.5*log").bound == math.inf


def test_a_learned_function_has_no_known_bound_and_no_known_lipschitz_constant():
    for operator in (Operator("piecewise"), Operator("tanh", "piecewise")):
        assert operator.bound is None
        assert not operator.bounded
        assert operator.lipschitz() is None


def steepest(operator, radius, weight_norm, count=160):
    """The largest ‖∂f/∂x‖ that autograd finds over norms and angles in the plane of w, then again around the largest."""
    w = torch.tensor([[math.sqrt(weight_norm**2 - operator.eps), 0.0]], dtype=torch.float64)
    norms, angles = (-6.0, 4.0), (0.0, math.pi)
    best = 0.0
    for _ in range(3):
        r = torch.logspace(*norms, count, dtype=torch.float64)[:, None]
        theta = torch.linspace(*angles, count + 1, dtype=torch.float64)
        x = torch.stack([r * theta.cos(), r * theta.sin()], -1).requires_grad_()
        measure = {"rho": radius, "mean_norm": 1.0} if operator.has_radius else {}
        y = functional.decoupled_linear(x, w, operator, **measure)
        steep = torch.autograd.grad(y.sum(), x)[0].norm(dim=-1)
        best = max(best, steep.max().item())
        row, column = divmod(int(steep.argmax()), count + 1)
        about, wide = math.log10(r[row].item()), (norms[1] - norms[0]) / count * 2
        norms = (about - wide, about + wide)
        around, broad = theta[column].item(), (angles[1] - angles[0]) / count * 2
        angles = (max(0.0, around - broad), min(math.pi, around + broad))
    return best


@pytest.mark.parametrize(("h", "g"), list(itertools.product([*H, "tanh+0.5*log"], G)))
def test_the_lipschitz_constant_is_never_exceeded_and_is_attained(h, g):
    operator = Operator(h, g, alpha=1.5, eps=1e-4)
    constant = operator.lipschitz(radius=0.7, weight_norm=2.0)
    found = steepest(operator, 0.7, 2.0)
    assert math.isfinite(constant)
    assert found <= constant * (1 + 1e-6)
    assert found >= constant * 0.98


@pytest.mark.parametrize("weighting", ["linear", "product", "separate"])
@pytest.mark.parametrize("h", ["ball", "tanh", "linear", "segmented", "log", "mixed"])
def test_the_lipschitz_constant_knows_weightings(h, weighting):
    operator = Operator(h, "cosine", weighting, alpha=-0.8)
    constant = operator.lipschitz(radius=1.3, weight_norm=3.0)
    found = steepest(operator, 1.3, 3.0)
    assert constant * 0.98 <= found <= constant * (1 + 1e-6)


def test_the_lipschitz_constants_of_the_paper_are_what_paper_and_pencil_say():
    assert Operator("linear", "cosine").lipschitz() == pytest.approx(1.0)
    assert Operator("inner_product", "cosine").lipschitz(weight_norm=3.0) == pytest.approx(3.0)
    assert Operator("ball", "cosine").lipschitz(radius=0.25) == pytest.approx(4.0)
    assert Operator("sphere", "cosine", eps=1e-4).lipschitz() == pytest.approx(100.0)
    assert Operator("linear", "cosine", "linear", alpha=2).lipschitz(weight_norm=3.0) == pytest.approx(6.0)
