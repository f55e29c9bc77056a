"""Nothing is NaN and nothing is silently wrong: extreme inputs, half precision, and errors that say what to do."""

import copy
import itertools
import math

import pytest
import torch
from tolerances import HALF, SCALE, error

import dcnets
from dcnets import DecoupledConv2d, DecoupledLinear, Operator
from dcnets.functional import (
    backend,
    decoupled_conv1d,
    decoupled_conv2d,
    decoupled_conv_transpose2d,
    decoupled_linear,
)

PATHS = ["reference", "fused"]
H = ["sphere", "ball", "tanh", "linear", "segmented", "log", "mixed", "inner_product", "tanh+0.5*segmented"]
G = ["linear", "cosine", "sigmoid", "square_cosine", "power_cosine", "relu_cosine"]
VALID = [
    "-".join([h, g] if weighting == "none" else [h, g, weighting])
    for h, g, weighting in itertools.product(H, G, ["none", "linear", "product", "separate"])
    if weighting == "none" or (h != "inner_product" and (h != "sphere" or weighting == "linear"))
]


def learned(operator, filters, dtype=torch.float32):
    """Everything that an operator can learn, one value a filter."""
    takes = (*operator.h.parameters, *operator.g.parameters)
    values = {"alpha": 1.2, "rho": 0.9, "beta": 0.4, "k": 0.3, "p": 1.5}
    return {
        name: torch.linspace(value, value * 1.3, filters, dtype=dtype).requires_grad_()
        for name, value in values.items()
        if name == "alpha" or name in takes
    }


def run(path, form, x, weight, dtype=None, **arguments):
    """The output and every gradient, by name, on one path."""
    operator = Operator.parse(form) if isinstance(form, str) else form
    x, weight = (t.detach().to(dtype or t.dtype).requires_grad_() for t in (x, weight))
    tensors = learned(operator, weight.shape[0], torch.float64 if x.dtype == torch.float64 else torch.float32)
    with backend(path):
        y = decoupled_conv2d(x, weight, operator, **arguments, **tensors)
        weights = torch.sin(torch.arange(y.numel(), device=y.device) + 1.0).reshape(y.shape).to(y.dtype)
        leaves = {"x": x, "weight": weight, **tensors}
        found = torch.autograd.grad(y, list(leaves.values()), weights, allow_unused=True)
    return {"y": y, **{f"d{name}": g for name, g in zip(leaves, found, strict=True) if g is not None}}


def deviation(name, found, truth):
    """The error in units of the truth's scale; what a filter learns is summed over all outputs, whose scale it has."""
    outputs = truth["y"].detach().abs().sum((0, 2, 3)).max().item()
    return error(found, truth[name], least_scale=0.0 if name in ("y", "dx", "dweight") else outputs)


def assert_finite(results, context):
    for name, value in results.items():
        assert value.isfinite().all(), (name, *context)


# -- extreme inputs ---------------------------------------------------------------------------------------------------


def special():
    """One patch a sample: zeros, along the first filter, against the second, random; the third filter is zero."""
    weight = torch.randn(4, 3, 3, 3)
    weight[2] = 0
    return torch.stack([torch.zeros(3, 3, 3), 2.5 * weight[0], -0.4 * weight[1], torch.randn(3, 3, 3)]), weight


SITUATIONS = {
    "zero patches, zero filters, parallel and antiparallel ones": special,
    "nothing but zeros": lambda: (torch.zeros(2, 3, 4, 4), torch.zeros(4, 3, 3, 3)),
    "nothing but zero patches": lambda: (torch.zeros(2, 3, 4, 4), torch.randn(4, 3, 3, 3)),
    "inputs of 1e-4": lambda: (torch.randn(2, 3, 4, 4) * 1e-4, torch.randn(4, 3, 3, 3)),
    "inputs of 1e4": lambda: (torch.randn(2, 3, 4, 4) * 1e4, torch.randn(4, 3, 3, 3)),
}


@pytest.mark.parametrize("form", VALID)
def test_outputs_and_gradients_are_finite(form):
    for situation, make in SITUATIONS.items():
        x, weight = make()
        for path, dtype in itertools.product(PATHS, [torch.float32, torch.bfloat16]):
            assert_finite(run(path, form, x, weight, dtype), (situation, path, dtype))


@pytest.mark.parametrize("form", VALID)
def test_float16_takes_inputs_of_200(form):
    x, weight = torch.full((2, 3, 4, 4), 200.0).half(), (torch.randn(4, 3, 3, 3) * 0.2).half()
    x[1] *= torch.randn(3, 4, 4).sign()
    truth = run("reference", form, x, weight, torch.float64)
    for path in PATHS:
        found = run(path, form, x, weight)
        assert_finite(found, (path,))
        assert error(found["y"], truth["y"]) < HALF[torch.float16], path


@pytest.mark.parametrize("form", VALID)
def test_half_precision_is_near_the_truth(form):
    for dtype in (torch.float16, torch.bfloat16):
        x, weight = torch.randn(2, 3, 4, 4).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
        truth = run("reference", form, x, weight, torch.float64)
        for path in PATHS:
            for name, value in run(path, form, x, weight).items():
                assert deviation(name, value, truth) < HALF[dtype], (path, dtype, name)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("g", [g for g in G if g != "relu_cosine"])
def test_a_parallel_patch_gives_plus_one_and_an_antiparallel_one_minus_one(g, dtype, path):
    weight = torch.randn(20, 64).to(dtype)
    x = torch.cat([weight * factor for factor in (0.37, 1.0, 7.3, -0.37, -1.0, -7.3)])
    with backend(path):
        y = decoupled_linear(x, weight, Operator("sphere", g)).double().unflatten(0, (6, 20)).diagonal(dim1=1, dim2=2)
    # what the rounding of cos θ by a unit does to θ, and ε to a norm of 0.37·8
    allowed = 2 * math.sqrt(2 * torch.finfo(dtype).eps) + 2 * math.sqrt(1e-4 / (0.37 * 5) ** 2)
    assert (y[:3] - 1).abs().max() < allowed
    assert (y[3:] + 1).abs().max() < allowed


def clear_of_the_ends(x, weight):
    """Whether 1 − |cos θ| > 1e-3 everywhere."""
    cosine = decoupled_conv2d(x.double(), weight.double(), "sphere-cosine")
    return bool((1 - cosine.abs() > 1e-3).all())


@pytest.mark.parametrize("form", VALID)
def test_float32_is_within_1e_5_of_the_float64_truth(form):
    for size in (1e-4, 1.0, 1e4):
        x, weight = torch.randn(2, 3, 4, 4) * size, torch.randn(4, 3, 3, 3)
        assert clear_of_the_ends(x, weight)
        truth = run("reference", form, x, weight, torch.float64)
        for path in PATHS:
            found = run(path, form, x, weight)
            assert found.keys() == truth.keys()
            for name, value in found.items():
                assert value.dtype == torch.float32
                assert deviation(name, value, truth) < SCALE, (size, path, name)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("g", G)
def test_float32_is_within_1e_5_of_the_truth_up_to_the_last_thousandth_of_the_cosine(g, path):
    theta = torch.linspace(math.acos(1 - 1.01e-3), math.pi - math.acos(1 - 1.01e-3), 200)
    x = 3 * torch.stack([theta.cos(), theta.sin()], 1)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = x.to(dtype).requires_grad_()
        with backend(path):
            y = decoupled_linear(leaf, torch.tensor([[1.0, 0.0]], dtype=dtype), Operator("tanh", g, eps=1e-6), mean_norm=1.0)
            results.append([y, *torch.autograd.grad(y.sum(), leaf)])
    (y, dx), (true_y, true_dx) = results
    assert error(y, true_y) < SCALE
    # cos θ is known to a unit, which the slope 1/√(1 − cos² θ) magnifies by 1/(1 − cos² θ)
    allowed = (2 * torch.finfo(torch.float32).eps / (1 - theta.double().cos() ** 2)).clamp(min=SCALE)[:, None]
    assert ((dx - true_dx).abs() / true_dx.abs().max() < allowed).all()


@pytest.mark.parametrize(
    "form", ["ball-cosine", "segmented-cosine", "segmented-square_cosine-linear", "ball-linear-separate"]
)
@pytest.mark.parametrize("path", PATHS)
def test_a_norm_exactly_at_the_radius_has_the_outer_slope(form, path):
    operator = Operator.parse(form.replace("-", "(radius=absolute, eps=1)-", 1))
    x = torch.full((1, 3, 2, 2), 0.5)  # Σx² + ε = 3 + 1, so that n = 2 to the bit
    weight = torch.rand(2, 3, 2, 2)
    results = []
    for rho in (2.0, 2.0 - 1e-6, 2.0 + 1e-6):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_(), torch.full((2,), rho, requires_grad=True)]
        with backend(path):
            y = decoupled_conv2d(leaves[0], leaves[1], operator, rho=leaves[2])
            results.append(torch.autograd.grad(y.sum(), leaves))
    at, outer, inner = results
    for found, expected in zip(at, outer, strict=True):
        assert found.isfinite().all()
        assert error(found, expected) < SCALE
    assert error(at[0], inner[0]) > 0.01  # there is a kink to tell apart


@pytest.mark.parametrize("form", VALID)
def test_a_norm_exactly_at_the_radius_is_finite(form):
    operator = Operator.parse(form)
    options = {"radius": "absolute"} if operator.has_radius else {}
    operator = Operator(operator.magnitude, operator.angular, operator.weighting, eps=1.0, **options)
    x = torch.full((1, 3, 2, 2), 0.5)
    for path in PATHS:
        with backend(path):
            leaves = [x.clone().requires_grad_(), torch.randn(4, 3, 2, 2, requires_grad=True)]
            y = decoupled_conv2d(*leaves, operator, **({"rho": 2.0} if operator.has_radius else {}))
            assert_finite(dict(zip("xw", torch.autograd.grad(y.sum(), leaves), strict=True)), (path,))
            assert y.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", VALID)
def test_an_empty_batch_gives_an_empty_output_and_gradients_of_zero(form, path):
    results = run(path, form, torch.zeros(0, 3, 4, 4), torch.randn(4, 3, 3, 3))
    assert results["y"].shape == (0, 4, 2, 2)
    assert results["dx"].shape == (0, 3, 4, 4)
    asked = {f"d{name}" for name in learned(Operator.parse(form), 4)}
    assert asked <= results.keys()
    assert all((value == 0).all() for value in results.values())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["tanh-cosine", "segmented-sigmoid-separate", "linear-square_cosine"])
def test_an_empty_batch_passes_through_a_linear_layer(form, path):
    operator = Operator.parse(form)
    layer = DecoupledLinear(
        5, 3, bias=True, magnitude=operator.magnitude, angular=operator.angular, weighting=operator.weighting,
        learn=("alpha", "radius") if operator.has_radius else "alpha",
    )  # fmt: skip
    before = {name: value.clone() for name, value in layer.named_buffers()}
    with backend(path):
        y = layer(torch.zeros(2, 0, 5))
        assert y.shape == (2, 0, 3)
        y.sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad == 0).all(), name
    assert all(torch.equal(value, before[name]) for name, value in layer.named_buffers())


# -- errors that say what came, what was expected and what to do ------------------------------------------------------

X, W = torch.randn(2, 4, 5, 5), torch.randn(6, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: decoupled_conv2d(X[:, :3], W, "tanh-cosine"),
            ValueError,
            r"expected x of shape \(batch, 4, …, …\).*filters of shape \(6, 4, 3, 3\) and groups=1, got \(2, 3, 5, 5\)",
        ),
        (
            lambda: decoupled_conv2d(X, W, "tanh-cosine", groups=2),
            ValueError,
            r"expected x of shape \(batch, 8, .*groups=2, got",
        ),
        (lambda: decoupled_conv2d(X[None], W, "tanh-cosine"), ValueError, r"got \(1, 2, 4, 5, 5\)"),
        (lambda: decoupled_conv2d(X[0, 0], W, "tanh-cosine"), ValueError, r"got \(5, 5\)"),
        (lambda: decoupled_conv2d(X, W[0, 0, 0], "tanh-cosine"), ValueError, r"\(3,\)"),
        (lambda: decoupled_conv1d(X, W, "tanh-cosine"), ValueError, r"filters of 3 dimensions, got shape \(6, 4, 3, 3\)"),
        (
            lambda: decoupled_conv_transpose2d(X, W, "tanh-cosine"),
            ValueError,
            r"expected x of shape \(batch, 6, .*got \(2, 4, 5, 5\)",
        ),
        (
            lambda: decoupled_linear(X, W[0, 0], "tanh-cosine"),
            ValueError,
            r"expected x of shape \(…, 3\) .*got \(2, 4, 5, 5\)",
        ),
        (
            lambda: decoupled_conv2d(X.int(), W, "tanh-cosine"),
            TypeError,
            "x must be a floating-point tensor, got torch.int32; convert it with .float()",
        ),
        (
            lambda: decoupled_conv2d(X, W.long(), "tanh-cosine"),
            TypeError,
            "weight must be a floating-point tensor, got torch.int64",
        ),
        (
            lambda: decoupled_conv2d(X.double(), W, "tanh-cosine"),
            TypeError,
            "x is torch.float64 and weight is torch.float32; convert one, or use torch.autocast",
        ),
        (
            lambda: decoupled_linear(X.half(), torch.randn(3, 5), "tanh-cosine"),
            TypeError,
            "x is torch.float16 and weight is torch.float32",
        ),
        (lambda: decoupled_conv2d(X, W, "tahn-cosine"), ValueError, "unknown magnitude 'tahn'; did you mean 'tanh'?"),
        (
            lambda: decoupled_conv2d(X, W, "tanh-cosine", padding_mode="reflekt"),
            ValueError,
            "unknown padding_mode 'reflekt'; did you mean 'reflect'?",
        ),
        (
            lambda: decoupled_conv2d(X, W, "tanh-cosine", padding="sane"),
            ValueError,
            "unknown padding 'sane'; did you mean 'same'?",
        ),
        (
            lambda: decoupled_conv2d(X, W, "tanh-cosine", padding="same", stride=2),
            ValueError,
            "padding='same' needs stride 1, got 2",
        ),
        (
            lambda: decoupled_conv2d(X, W, "tanh-cosine", stride=(1, 1, 1)),
            ValueError,
            r"stride takes one number or 2, got \(1, 1, 1\)",
        ),
        (
            lambda: decoupled_conv_transpose2d(X, W.transpose(0, 1), "tanh-cosine", padding="same"),
            (TypeError, ValueError),
            "padding",
        ),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", roh=1.0), TypeError, "unknown keyword 'roh'; did you mean 'rho'?"),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", rho=0.0), ValueError, "rho must be above 0, got 0"),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", rho=-1), ValueError, "rho must be above 0, got -1"),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", rho=math.nan), ValueError, "rho must be above 0, got nan"),
        (
            lambda: decoupled_conv2d(X, W, "tanh-cosine", rho=torch.tensor([1.0, 1, 0, 1, 1, 1])),
            ValueError,
            "rho must be above 0",
        ),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", rho=torch.ones(5)), ValueError, r"rho.*6.*\(5,\)|rho.*5.*6"),
        (lambda: decoupled_conv2d(X, W, "tanh-sigmoid", k=0.0), ValueError, "k must be above 0, got 0"),
        (lambda: decoupled_conv2d(X, W, "tanh-sigmoid", k=torch.tensor(-0.1)), ValueError, "k must be above 0"),
        (lambda: decoupled_conv2d(X, W, "tanh-power_cosine", p=0.5), ValueError, "p must be at least 1, got 0.5"),
        (lambda: decoupled_conv2d(X, W, "tanh-power_cosine", p=torch.full((6,), 0.9)), ValueError, "p must be at least 1"),
        (lambda: decoupled_conv2d(X, W, "linear-cosine", rho=2.0), (TypeError, ValueError), "rho"),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", k=2.0), (TypeError, ValueError), "k"),
        (lambda: decoupled_conv2d(X, W, "tanh-cosine", beta=2.0), (TypeError, ValueError), "beta"),
        (lambda: decoupled_conv2d(X, W, "piecewise-cosine"), (TypeError, ValueError), "piecewise is a module.*h="),
        (lambda: backend("fuse"), ValueError, "unknown backend 'fuse'; did you mean 'fused'?"),
    ],
)
def test_a_wrong_argument_of_a_function_is_refused_with_what_to_do(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"magnitude": "tanhh"}, ValueError, "unknown magnitude 'tanhh'; did you mean 'tanh'? choose one of ball, "),
        ({"angular": "cos"}, ValueError, "unknown angular 'cos'"),
        ({"weighting": "lin"}, ValueError, "unknown weighting 'lin'; did you mean 'linear'?"),
        ({"magnitud": "tanh"}, TypeError, "DecoupledConv2d got an unknown keyword 'magnitud'; did you mean 'magnitude'?"),
        ({"radius": "absolut"}, ValueError, "unknown radius 'absolut'; did you mean 'absolute'?"),
        ({"radius_per": "channel"}, ValueError, "unknown radius_per 'channel'; choose one of filter, layer"),
        ({"radius_init": 0.0}, ValueError, "radius_init must be above 0.0001, got 0.0"),
        ({"radius_init": -1.0}, ValueError, "radius_init must be above 0.0001, got -1.0"),
        ({"radius_init": math.nan}, ValueError, "radius_init must be above 0.0001, got nan"),
        ({"angular": "sigmoid", "k": 0.0}, ValueError, "k must be above 0, got 0.0"),
        ({"angular": "sigmoid", "k": 0.04, "learn": "k"}, ValueError, "a learned k must start above 0.05, got 0.04"),
        ({"angular": "power_cosine", "p": 0.5}, ValueError, "p must be at least 1, got 0.5"),
        ({"learn": ("k",)}, ValueError, r"tanh-cosine has no k to learn; leave it out of learn=\('k',\)"),
        ({"learn": ("radii",)}, ValueError, "unknown name in learn 'radii'; did you mean 'radius'?"),
        ({"magnitude": "sphere", "radius_init": 2.0}, ValueError, "sphere has no radius, so radius_init means nothing"),
        ({"magnitude": "log", "learn": "radius"}, ValueError, "log-cosine has no radius to learn"),
        ({"magnitude": "sphere", "weighting": "product"}, ValueError, "use 'linear'"),
        ({"radius": "absolute", "sync": True}, ValueError, "an absolute radius has no mean norm to share"),
    ],
)
def test_a_wrong_option_of_a_layer_is_refused_with_what_to_do(options, kind, message):
    with pytest.raises(kind, match=message.replace("?", r"\?")):
        DecoupledConv2d(4, 6, 3, **options)


def test_a_layer_refuses_what_its_function_refuses():
    layer = dcnets.DecoupledConv2d(4, 6, 3)
    with pytest.raises(ValueError, match=r"expected x of shape \(batch, 4, …, …\).*got \(2, 5, 5, 5\)"):
        layer(torch.randn(2, 5, 5, 5))
    with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got torch.uint8"):
        layer(torch.zeros(2, 4, 5, 5, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"x is torch.float64 and weight is torch.float32"):
        layer(X.double())


# -- inputs that are no numbers, and radii that half precision does not hold -------------------------------------------


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [{"magnitude": "piecewise"}, {"angular": "piecewise"}])
def test_a_piecewise_layer_answers_nan_or_infinity_where_its_input_is_that(options, strange):
    layer, x = DecoupledConv2d(2, 3, 3, **options).eval(), torch.randn(1, 2, 6, 6)
    x[0, 0, 0, 0] = strange
    y = layer(x)
    assert not y[..., 0, 0].isfinite().any()
    assert y[..., 1:, 1:].isfinite().all()


@pytest.mark.parametrize("rho", [70_000.0, 1e6])
def test_an_absolute_radius_beyond_float16_is_kept_in_it(rho):
    wide = DecoupledConv2d(2, 3, 3, radius="absolute")
    wide.set_radius(rho)
    half = copy.deepcopy(wide).half().eval()
    half.set_radius(rho)
    x = torch.randn(2, 2, 6, 6).mul_(1000)
    torch.testing.assert_close(half.rho, torch.full((3,), rho), rtol=HALF[torch.float16], atol=0)
    for own in (half, dcnets.freeze(half)):
        assert error(own(x.half()), wide(x).half()) < HALF[torch.float16]
