"""The operators as functions: against the authors' arrays, an unfold reference in θ, numerical gradients and identities."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import AUTHORS, EXACT, UNFOLD, error
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import dcnets
from dcnets import DecoupledConv2d, Operator, dispatch
from dcnets.functional import (
    backend,
    decoupled_conv1d,
    decoupled_conv2d,
    decoupled_conv3d,
    decoupled_conv_transpose2d,
    decoupled_linear,
    patch_norm,
)
from dcnets.kernels import blocks

PATHS = ["reference", "fused"]
CONVOLUTIONS = {1: decoupled_conv1d, 2: decoupled_conv2d, 3: decoupled_conv3d}
MODES = ["zeros", "reflect", "replicate", "circular"]
WITH_RADIUS = ("ball", "tanh", "segmented", "tanh+0.5*segmented")
H = [*WITH_RADIUS, "sphere", "linear", "log", "mixed", "inner_product"]
G = ["linear", "cosine", "sigmoid", "square_cosine", "power_cosine", "relu_cosine"]
WEIGHTINGS = ["none", "linear", "product", "separate"]
VALID = [
    (h, g, weighting)
    for h, g, weighting in itertools.product(H, G, WEIGHTINGS)
    if weighting == "none" or (h != "inner_product" and (h != "sphere" or weighting == "linear"))
]


# -- the definition once more, in θ and with unfolded patches ---------------------------------------------------------


def plain_h(name, n, rho, alpha, beta, w):
    """Eqs. (4)–(10) as the paper prints them."""
    if name == "tanh+0.5*segmented":
        return alpha * (plain_h("tanh", n, rho, 1.0, beta, w) + 0.5 * plain_h("segmented", n, rho, 1.0, beta, w))
    return {
        "sphere": lambda: alpha * torch.ones_like(n),
        "ball": lambda: torch.where(n < rho, alpha * n / rho, alpha * torch.ones_like(n)),
        "tanh": lambda: alpha * torch.tanh(n / rho),
        "linear": lambda: alpha * n,
        "segmented": lambda: torch.where(n < rho, alpha * n, beta * (n - rho) + alpha * rho),
        "log": lambda: alpha * torch.log(1 + n),
        "mixed": lambda: alpha * n + beta * torch.log(1 + n),
        "inner_product": lambda: alpha * w * n,
    }[name]()


def plain_g(name, theta, k, p):
    """Eqs. (11)–(14) as the paper prints them, and section 5's."""
    half = math.pi / 2
    return {
        "linear": lambda: 1 - theta / half,
        "cosine": lambda: torch.cos(theta),
        "sigmoid": lambda: (
            (1 + torch.exp(-half / k)) / (1 - torch.exp(-half / k))
            * (1 - torch.exp(theta / k - half / k)) / (1 + torch.exp(theta / k - half / k))
        ),
        "square_cosine": lambda: torch.sign(torch.cos(theta)) * torch.cos(theta) ** 2,
        "power_cosine": lambda: torch.sign(torch.cos(theta)) * torch.cos(theta).abs() ** p,
        "relu_cosine": lambda: torch.cos(theta).clamp(min=0),
    }[name]()  # fmt: skip


def plain(patches, filters, operator, rho=1.0, alpha=None, beta=None, k=None, p=None, mean_norm=None):
    """f for patches (batch, groups, elements, positions) and filters (groups, filters, elements)."""
    groups = filters.shape[0]

    def own(given, default):
        value = torch.as_tensor(default if given is None else given, dtype=torch.float64)
        return value.reshape(groups, -1, 1) if value.numel() > 1 else value.reshape(1, 1, 1)

    alpha, beta, k, p = (
        own(given, getattr(operator, name) or 1.0) for name, given in (("alpha", alpha), ("beta", beta), ("k", k), ("p", p))
    )
    n = (patches.square().sum(2, keepdim=True) + operator.eps).sqrt()
    w = (filters.square().sum(2, keepdim=True) + operator.eps).sqrt()
    theta = torch.acos(filters @ patches / (w * n))
    radius = own(rho, 1.0)
    around = radius
    if operator.radius == "relative":
        around = radius * (n.mean() if mean_norm is None else mean_norm)
    name = operator.magnitude
    if operator.weighting == "product":
        h = plain_h(name, n * w, around, alpha, beta, w)
    elif operator.weighting == "separate":
        h = alpha * plain_h(name, w, radius, 1.0, beta, w) * plain_h(name, n, around, 1.0, beta, w)
    else:
        h = plain_h(name, n, around, alpha, beta, w)
    if operator.weighting == "linear":
        h = h * w
    return h * plain_g(operator.angular, theta, k, p)


def pad_axis(x, axis, before, after, mode):
    """Padding by index, independent of F.pad."""
    if mode == "zeros":
        shape = list(x.shape)
        sides = []
        for side in (before, after):
            shape[axis] = side
            sides.append(x.new_zeros(shape))
        return torch.cat([sides[0], x, sides[1]], axis)
    index = np.pad(
        np.arange(x.shape[axis]), (before, after), {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    )
    return x.index_select(axis, torch.as_tensor(index))


def unfolded(x, kernel, stride, sides, dilation, groups, mode):
    """The patches of x (batch, channels, *positions) as (batch, groups, elements, positions), and the positions' shape."""
    dims = len(kernel)
    for axis in range(dims):
        x = pad_axis(x, 2 + axis, *sides[axis], mode)
    for axis in range(dims):
        x = x.unfold(2 + axis, dilation[axis] * (kernel[axis] - 1) + 1, stride[axis])[..., :: dilation[axis]]
    positions = x.shape[2 : 2 + dims]
    x = x.flatten(2, 1 + dims).flatten(3)  # (batch, channels, positions, taps)
    return x.unflatten(1, (groups, -1)).transpose(3, 4).flatten(2, 3), positions


def plain_convolution(x, weight, operator, bias, stride, sides, dilation, groups, mode, **tensors):
    patches, positions = unfolded(x, weight.shape[2:], stride, sides, dilation, groups, mode)
    y = plain(patches, weight.unflatten(0, (groups, -1)).flatten(2), operator, **tensors)
    y = y.flatten(1, 2).unflatten(2, positions)
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(positions))


def tensors_for(operator, filters):
    """Everything that an operator can learn, one value a filter."""
    tensors = {"alpha": torch.rand(filters) + 0.5}
    if operator.has_radius:
        tensors["rho"] = torch.rand(filters) + 0.5
    for name, least in (("beta", 0.2), ("k", 0.2), ("p", 1.1)):
        if name in (*operator.h.parameters, *operator.g.parameters):
            tensors[name] = torch.rand(filters) + least
    return {name: value.double().requires_grad_() for name, value in tensors.items()}


def gradients(y, leaves):
    """Of a fixed weighted sum of y; what y does not depend on has none."""
    weights = torch.sin(torch.arange(y.numel(), dtype=y.dtype) + 1).reshape(y.shape)
    found = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


def assert_same(function, expected, leaves, names):
    """`function` yields `expected` on both paths, and so do its gradients."""
    truths = gradients(expected, leaves)
    for path in PATHS:
        with backend(path):
            y = function()
            assert error(y, expected, least_scale=1e-3) < UNFOLD, path  # a patch of zeros has cos(acos 0) = 6e-17
            for name, found, truth in zip(names, gradients(y, leaves), truths, strict=True):
                assert error(found, truth, least_scale=1e-3) < UNFOLD, (path, name)


@st.composite
def convolutions(draw, dims):
    groups = draw(st.integers(1, 2))
    each = lambda strategy: tuple(draw(strategy) for _ in range(dims))
    kernel, dilation = each(st.integers(1, 3)), each(st.integers(1, 2))
    spans = [gap * (taps - 1) for gap, taps in zip(dilation, kernel, strict=True)]
    size = tuple(span + draw(st.integers(2, 4)) for span in spans)
    padding = draw(st.sampled_from(["same", "valid", 0, 1, "each"]))
    if padding == "each":
        padding = each(st.integers(0, 1))
    stride = (1,) * dims if padding == "same" else each(st.integers(1, 3))
    if padding == "same":
        sides = [(span // 2, span - span // 2) for span in spans]
    else:
        numbers = padding if isinstance(padding, tuple) else (0 if padding == "valid" else padding,) * dims
        sides = [(number, number) for number in numbers]
    h, g, weighting = draw(st.sampled_from(VALID))
    radius = draw(st.sampled_from(["relative", "absolute"])) if h in WITH_RADIUS else "relative"
    return {
        "operator": Operator(h, g, weighting, radius),
        "x": (draw(st.integers(1, 2)), groups * draw(st.integers(1, 2)), *size),
        "weight": (groups * draw(st.integers(1, 3)), kernel),
        "arguments": (stride, padding, dilation, groups),
        "sides": sides,
        "bias": draw(st.booleans()),
        "unbatched": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolution_is_the_formula_on_unfolded_patches(dims, mode):
    @given(convolutions(dims))
    @settings(max_examples={1: 30, 2: 50, 3: 20}[dims])
    def check(case):
        torch.manual_seed(case["seed"])
        operator, (stride, padding, dilation, groups) = case["operator"], case["arguments"]
        batch, channels, *size = case["x"]
        filters, kernel = case["weight"]
        x = torch.randn(batch, channels, *size, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(filters, channels // groups, *kernel, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(filters, dtype=torch.float64, requires_grad=True) if case["bias"] else None
        tensors = tensors_for(operator, filters)
        named = {"x": x, "weight": weight, **({} if bias is None else {"bias": bias}), **tensors}
        given_x = x[0] if case["unbatched"] else x
        expected = plain_convolution(
            x[:1] if case["unbatched"] else x,
            weight,
            operator,
            bias,
            stride,
            case["sides"],
            dilation,
            groups,
            mode,
            **tensors,
        )
        assert_same(
            lambda: CONVOLUTIONS[dims](
                given_x, weight, operator, bias, stride, padding, dilation, groups, padding_mode=mode, **tensors
            ),
            expected[0] if case["unbatched"] else expected,
            list(named.values()),
            list(named),
        )

    check()


@pytest.mark.parametrize(("h", "g", "weighting"), VALID)
def test_every_operator_is_the_formula_on_unfolded_patches(h, g, weighting):
    operator = Operator(h, g, weighting)
    x = torch.randn(2, 4, 5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    tensors = tensors_for(operator, 6)
    for mean_norm in (None, 2.5) if operator.has_radius else (None,):
        expected = plain_convolution(
            x, weight, operator, None, (2, 1), [(1, 1)] * 2, (1, 2), 2, "reflect", mean_norm=mean_norm, **tensors
        )
        given_mean = {} if mean_norm is None else {"mean_norm": mean_norm}
        assert_same(
            lambda given_mean=given_mean: decoupled_conv2d(
                x, weight, operator, None, (2, 1), 1, (1, 2), 2, padding_mode="reflect", **given_mean, **tensors
            ),
            expected,
            [x, weight, *tensors.values()],
            ["x", "weight", *tensors],
        )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own, of nn.Conv2d
@pytest.mark.parametrize(("kernel", "dilation"), [((2, 4), 1), ((4, 2), 3)])
@pytest.mark.parametrize("mode", MODES)
def test_an_even_kernel_pads_same_on_the_far_side_as_torch_does(kernel, dilation, mode):
    layer = nn.Conv2d(2, 3, kernel, padding="same", dilation=dilation, padding_mode=mode, bias=False, dtype=torch.float64)
    x = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    y = decoupled_conv2d(x, layer.weight, "linear-cosine-linear", padding="same", dilation=dilation, padding_mode=mode)
    assert error(y, layer(x)) < EXACT  # ε divides out of ‖w‖·n·z/(‖w‖n)


@settings(max_examples=40)
@given(
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    groups=st.integers(1, 2),
    combination=st.sampled_from(VALID),
    seed=st.integers(0, 2**16),
)
def test_a_transposed_convolution_is_the_convolution_of_the_zero_stuffed_input(
    stride, kernel, dilation, padding, extra, groups, combination, seed
):
    torch.manual_seed(seed)
    operator = Operator(*combination)
    extra = tuple(min(e, max(s, d) - 1) for e, s, d in zip(extra, stride, dilation, strict=True))  # as torch wants it
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padding = tuple(min(p, span) for p, span in zip(padding, spans, strict=True))
    x = torch.randn(2, 2 * groups, 3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2 * groups, 2, *kernel, dtype=torch.float64, requires_grad=True)
    tensors = tensors_for(operator, 2 * groups)
    stuffed = x.new_zeros(2, 2 * groups, *(2 * s + 1 for s in stride))
    stuffed[:, :, :: stride[0], :: stride[1]] = x
    sides = [(span - p, span - p + e) for span, p, e in zip(spans, padding, extra, strict=True)]
    flipped = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(2, 3)
    expected = plain_convolution(stuffed, flipped, operator, None, (1, 1), sides, dilation, groups, "zeros", **tensors)
    assert_same(
        lambda: decoupled_conv_transpose2d(x, weight, operator, None, stride, padding, extra, groups, dilation, **tensors),
        expected,
        [x, weight, *tensors.values()],
        ["x", "weight", *tensors],
    )


@pytest.mark.parametrize("path", PATHS)
def test_a_transposed_convolution_may_have_more_output_padding_than_stride(path):
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    with backend(path):
        y = decoupled_conv_transpose2d(x, weight, "linear-cosine-linear", output_padding=1, dilation=2)
    expected = F.conv_transpose2d(x, weight, output_padding=1, dilation=2)
    assert error(y, expected) < EXACT
    assert error(gradients(y, [x])[0], gradients(expected, [x])[0]) < EXACT


@pytest.mark.parametrize(("h", "g", "weighting"), VALID)
def test_a_linear_layer_takes_each_row_as_a_patch(h, g, weighting):
    operator = Operator(h, g, weighting)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    tensors = tensors_for(operator, 4)
    patches = x.flatten(0, 1).t()[None, None]
    expected = plain(patches, weight[None], operator, **tensors)[0, 0].t().reshape(2, 3, 4) + bias
    assert_same(
        lambda: decoupled_linear(x, weight, operator, bias, **tensors),
        expected,
        [x, weight, bias, *tensors.values()],
        ["x", "weight", "bias", *tensors],
    )


def test_a_linear_layer_takes_one_row_alone():
    x, weight = torch.randn(5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    y = decoupled_linear(x, weight, "tanh-linear")
    assert y.shape == (4,)
    assert error(y, decoupled_linear(x[None], weight, "tanh-linear")[0]) < EXACT


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("operator", ["tanh(radius=absolute)-linear", "ball-cosine-product", "segmented-sigmoid-separate"])
def test_groups_are_separate_layers(operator, path):
    x, weight = torch.randn(2, 6, 5, 5, dtype=torch.float64), torch.randn(6, 2, 3, 3, dtype=torch.float64)
    rho = torch.rand(6, dtype=torch.float64) + 0.5
    measure = {} if "absolute" in operator else {"mean_norm": 2.0}
    with backend(path):
        whole = decoupled_conv2d(x, weight, operator, padding=1, groups=3, rho=rho, **measure)
        parts = [
            decoupled_conv2d(
                x[:, 2 * i : 2 * i + 2],
                weight[2 * i : 2 * i + 2],
                operator,
                padding=1,
                rho=rho[2 * i : 2 * i + 2],
                **measure,
            )
            for i in range(3)
        ]
    assert error(whole, torch.cat(parts, 1)) < EXACT


@pytest.mark.parametrize("mode", MODES)
def test_the_patch_norm_is_that_of_the_padded_patch(mode):
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    n = patch_norm(x, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), groups=2, padding_mode=mode, eps=1e-3)
    patches, positions = unfolded(x, (3, 2), (2, 1), [(1, 1)] * 2, (1, 2), 2, mode)
    assert error(n, (patches.square().sum(2) + 1e-3).sqrt().unflatten(2, positions)) < EXACT


# -- the authors' own arrays ------------------------------------------------------------------------------------------

AUTHORS_FILE = Path(__file__).parent / "data" / "authors.npz"
with np.load(AUTHORS_FILE) as stored:
    RECORDED = {key: torch.from_numpy(stored[key]) for key in stored}
CASES = sorted({key.removesuffix("/y") for key in RECORDED if key.endswith("/y")})


def recorded_operator(case):
    magnitude, angular = case.split("/")[0].split("-")
    return Operator(magnitude, angular.removesuffix("_learned"))


def compare_with_recorded(case, y, leaves):
    found = {"y": y}
    for name, gradient in zip(leaves, torch.autograd.grad(y, list(leaves.values()), RECORDED[f"{case}/dy"]), strict=True):
        found[f"d{name}"] = gradient
    keys = {key.removeprefix(f"{case}/") for key in RECORDED if key.startswith(f"{case}/")}
    assert keys - {"dy", "projected_weight", "running_norm_after_one_step"} == set(found)
    for name, value in found.items():
        assert error(value, RECORDED[f"{case}/{name}"]) < AUTHORS, name


def test_all_recorded_operators_are_there():
    assert len(CASES) == 14
    assert {case.split("/")[0] for case in CASES} == {
        *(f"{h}-cosine" for h in ("tanh", "ball", "segmented", "linear", "sphere")),
        *("linear-square_cosine", "sphere-linear", "sphere-sigmoid", "sphere-sigmoid_learned"),
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES)
def test_the_functional_form_agrees_with_the_authors_outputs_and_gradients(case, path):
    operator = recorded_operator(case)
    leaves = {name: RECORDED[name].clone().requires_grad_() for name in ("x", "weight")}
    tensors = {}
    if operator.has_radius:
        leaves["raw_radius"] = RECORDED["raw_radius"].clone().requires_grad_()
        tensors["rho"] = leaves["raw_radius"] ** 2 + 1e-4
        tensors["mean_norm"] = 2.5 if case.endswith("/eval") else None
    if case.split("/")[0].endswith("_learned"):
        leaves["raw_k"] = RECORDED["raw_k"].clone().requires_grad_()
        tensors["k"] = leaves["raw_k"].abs() + 0.05
    with backend(path):
        y = decoupled_conv2d(leaves["x"], leaves["weight"], operator, padding=1, **tensors)
        compare_with_recorded(case, y, leaves)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES)
def test_the_layer_agrees_with_the_authors_outputs_and_gradients(case, path):
    operator = recorded_operator(case)
    learned_k = case.split("/")[0].endswith("_learned")
    learn = [name for name, there in (("radius", operator.has_radius), ("k", learned_k)) if there]
    layer = DecoupledConv2d(5, 7, 3, padding=1, magnitude=operator.magnitude, angular=operator.angular, learn=learn)
    state = {"weight": RECORDED["weight"]}
    if operator.has_radius:
        state |= {"raw_radius": RECORDED["raw_radius"], "running_norm": torch.tensor(2.5)}
    if learned_k:
        state["raw_k"] = RECORDED["raw_k"]
    layer.load_state_dict(state)
    layer.train(not case.endswith("/eval"))
    x = RECORDED["x"].clone().requires_grad_()
    with backend(path):
        compare_with_recorded(case, layer(x), {"x": x, **dict(layer.named_parameters())})
    after = RECORDED.get(f"{case}/running_norm_after_one_step")
    if after is not None:  # theirs starts at 0 and gives the mean its share of 1 − 0.999 in float32; ours takes it whole
        assert layer.running_norm.item() * (1 - np.float32(0.999)) == pytest.approx(after.item(), rel=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if f"{case}/projected_weight" in RECORDED])
def test_the_authors_projected_filters_give_the_output_of_unit_filters(case):
    projected = RECORDED[f"{case}/projected_weight"].double()
    w = RECORDED["weight"].double()
    assert error(projected, w / (w.square().sum((1, 2, 3), keepdim=True) + 1e-4).sqrt()) < AUTHORS
    x = RECORDED["x"].double()
    assert error(F.conv2d(x, projected, padding=1), decoupled_conv2d(x, w, "linear-cosine", padding=1)) < AUTHORS


# -- numerical derivatives --------------------------------------------------------------------------------------------

DERIVATIVES = [
    (h, g, weighting, radius)
    for h, g, weighting in VALID
    for radius in (("batch", "given", "absolute") if h in WITH_RADIUS else ("none",))
]


@pytest.mark.parametrize(("h", "g", "weighting", "radius"), DERIVATIVES)
def test_first_and_second_derivatives_are_the_numerical_ones(h, g, weighting, radius):
    operator = Operator(h, g, weighting, "absolute" if radius == "absolute" else "relative")
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    tensors = tensors_for(operator, 2)
    if radius == "given":
        tensors["mean_norm"] = torch.tensor(2.1, dtype=torch.float64, requires_grad=True)
    names = list(tensors)

    def function(x, weight, *values):
        return decoupled_conv2d(x, weight, operator, **dict(zip(names, values, strict=True)))

    inputs = (x, weight, *tensors.values())
    if radius in ("batch", "none"):
        with backend("reference"):
            assert gradcheck(function, inputs, check_undefined_grad=True, fast_mode=True)
    with backend("fused"):
        assert gradcheck(function, inputs, check_undefined_grad=True, fast_mode=True)
        assert gradgradcheck(function, inputs, check_undefined_grad=True, fast_mode=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("h", "g", "weighting"),
    [
        *[(h, "square_cosine", "none") for h in H],
        *[("tanh", g, "separate") for g in G],
        *[("segmented", "linear", weighting) for weighting in WEIGHTINGS],
    ],
)
def test_every_entry_of_the_jacobian_is_the_numerical_one(h, g, weighting, path):
    operator = Operator(h, g, weighting)
    x = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    tensors = tensors_for(operator, 2)

    def function(x, weight, bias, *values):
        return decoupled_conv2d(x, weight, operator, bias, 1, 1, groups=2, **dict(zip(tensors, values, strict=True)))

    with backend(path):
        assert gradcheck(function, (x, weight, bias, *tensors.values()), check_undefined_grad=True)
        assert gradgradcheck(function, (x, weight, bias, *tensors.values()), check_undefined_grad=True, fast_mode=True)


@pytest.mark.parametrize("path", PATHS)
def test_derivatives_of_the_other_forms_are_the_numerical_ones(path):
    operator = Operator("tanh", "linear", "product")
    rho = torch.tensor([0.7, 1.4], dtype=torch.float64, requires_grad=True)
    forms = [
        (lambda x, w, r: decoupled_conv1d(x, w, operator, stride=2, padding=1, rho=r), (2, 2, 5), (2, 2, 3)),
        (lambda x, w, r: decoupled_conv3d(x, w, operator, padding="same", rho=r), (1, 1, 2, 3, 2), (2, 1, 2, 2, 1)),
        (lambda x, w, r: decoupled_conv_transpose2d(x, w, operator, None, 2, 1, 1, rho=r), (1, 2, 2, 3), (2, 2, 3, 2)),
        (lambda x, w, r: decoupled_linear(x, w, operator, rho=r), (3, 4), (2, 4)),
    ]
    for form, *shapes in forms:
        x, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
        with backend(path):
            assert gradcheck(form, (x, weight, rho))
            assert gradgradcheck(form, (x, weight, rho), fast_mode=True)


def test_both_paths_give_the_same_gradients_whichever_inputs_ask_for_one():
    operator = Operator("segmented", "sigmoid", "separate")
    values = {"x": torch.randn(2, 2, 4, 4, dtype=torch.float64), "weight": torch.randn(4, 2, 2, 2, dtype=torch.float64)}
    values |= {name: value.detach() for name, value in tensors_for(operator, 4).items()}
    for asking in [["x"], ["weight"], ["rho"], ["alpha"], ["k", "beta"], ["x", "rho"]]:
        results = []
        for path in PATHS:
            with backend(path):
                leaves = {name: value.clone().requires_grad_(name in asking) for name, value in values.items()}
                rest = {name: value for name, value in leaves.items() if name not in ("x", "weight")}
                y = decoupled_conv2d(leaves["x"], leaves["weight"], operator, **rest)
                results.append([y, *gradients(y, [leaves[name] for name in asking])])
        for found, expected in zip(*results, strict=True):
            assert error(found, expected) < EXACT, asking


@pytest.mark.parametrize("block", [1, 7, 20, 50])
def test_a_pass_in_small_blocks_gives_what_one_block_gives(monkeypatch, block):
    monkeypatch.setattr(blocks, "BLOCK", block)
    operator = Operator("tanh+0.5*segmented", "sigmoid", "separate")
    tensors = tensors_for(operator, 4)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for form, shape, filters in [
        (decoupled_linear, (7, 5), (4, 5)),
        (decoupled_conv1d, (3, 4, 9), (4, 4, 3)),
        (decoupled_conv2d, (3, 4, 5, 6), (4, 4, 2, 3)),
        (decoupled_conv3d, (2, 4, 3, 4, 3), (4, 4, 2, 2, 1)),
    ]:
        x, weight = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (shape, filters))
        leaves = [x, weight, *tensors.values()]
        results = []
        for path in PATHS:
            with backend(path):
                y = form(x, weight, operator, bias, **tensors)
                results.append([y, *gradients(y, leaves)])
        for found, expected in zip(*results, strict=True):
            assert error(found, expected) < EXACT, form.__name__


# -- the switch -------------------------------------------------------------------------------------------------------


def path_taken():
    y = decoupled_conv1d(torch.randn(2, 3, 4), torch.randn(2, 3, 2, requires_grad=True), "tanh-cosine")
    return "fused" if "Decouple" in type(y.grad_fn).__name__ else "reference"


def test_a_backend_holds_until_the_next_call_or_the_end_of_its_block():
    assert path_taken() == "fused"
    backend("reference")
    assert path_taken() == "reference"
    with backend("fused"):
        assert path_taken() == "fused"
        with backend("reference"):
            assert path_taken() == "reference"
        assert path_taken() == "fused"
    assert path_taken() == "reference"


def test_a_decorated_function_has_its_backend_and_nothing_else_has():
    @backend("reference")
    def decorated():
        return path_taken()

    assert path_taken() == "fused"
    assert decorated() == "reference"
    assert path_taken() == "fused"
    backend("fused")
    assert decorated() == "reference"
    assert path_taken() == "fused"


def test_an_exception_ends_a_backends_block_too():
    with pytest.raises(KeyError), backend("reference"):
        raise KeyError
    assert path_taken() == "fused"


# -- identities -------------------------------------------------------------------------------------------------------


@pytest.fixture
def x():
    return torch.randn(2, 3, 6, 6, dtype=torch.float64)


@pytest.fixture
def weight():
    return torch.randn(4, 3, 3, 3, dtype=torch.float64)


def tiny(*names, **options):
    return Operator(*names, eps=1e-12, **options)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("operator", ["tanh-linear", "ball-square_cosine", "tanh-sigmoid-linear"])
def test_scaling_all_inputs_changes_nothing_where_the_radius_is_relative(x, weight, operator, path):
    operator = Operator.parse(operator.replace("-", "(eps=1e-12)-", 1))
    with backend(path):
        y = decoupled_conv2d(x, weight, operator, padding=1, rho=0.8)
        for scale in (1e-3, 7.0, 1e4):
            assert error(decoupled_conv2d(scale * x, weight, operator, padding=1, rho=0.8), y) < 1e-6  # ε is not scaled


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("g", G)
def test_seg_conv_with_equal_slopes_is_linear_conv(x, weight, g, path):
    with backend(path):
        y = decoupled_conv2d(x, weight, tiny("segmented", g, alpha=1.7, beta=1.7), padding=1)
        assert error(y, decoupled_conv2d(x, weight, tiny("linear", g, alpha=1.7), padding=1)) < EXACT


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("g", G)
def test_seg_conv_without_an_outer_slope_is_rho_times_ball_conv(x, weight, g, path):
    rho = torch.tensor([1.0, 3.0, 5.0, 8.0], dtype=torch.float64)
    with backend(path):
        y = decoupled_conv2d(x, weight, tiny("segmented", g, radius="absolute", beta=0.0), rho=rho)
        ball = decoupled_conv2d(x, weight, tiny("ball", g, radius="absolute"), rho=rho)
    assert error(y, rho.reshape(4, 1, 1) * ball) < EXACT


@pytest.mark.parametrize("path", PATHS)
def test_linearly_weighted_linear_conv_is_an_ordinary_convolution(x, path):
    layer = nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate", dtype=torch.float64)
    with backend(path):
        y = decoupled_conv2d(
            x, layer.weight, tiny("linear", "cosine", "linear"), layer.bias, padding=1, padding_mode="replicate"
        )
    assert error(y, layer(x)) < EXACT
    for found, expected in zip(*(gradients(out, list(layer.parameters())) for out in (y, layer(x))), strict=True):
        assert error(found, expected) < 1e-11


@pytest.mark.parametrize("path", PATHS)
def test_linear_conv_is_a_weight_normalised_convolution(x, weight, path):
    layer = nn.Conv2d(3, 4, 3, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
    nn.utils.parametrizations.weight_norm(layer)
    with torch.no_grad():
        layer.parametrizations.weight.original0.fill_(1)
    with backend(path):
        assert error(decoupled_conv2d(x, weight, tiny("linear", "cosine")), layer(x)) < EXACT


@pytest.mark.parametrize("path", PATHS)
def test_the_linear_angle_is_the_arc_sine_of_the_cosine(x, weight, path):
    with backend(path):
        cosine = decoupled_conv2d(x, weight, tiny("sphere", "cosine"))
        assert error(decoupled_conv2d(x, weight, tiny("sphere", "linear")), 2 / math.pi * torch.asin(cosine)) < EXACT


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("h", "g"), [(h, g) for h, g, weighting in VALID if weighting == "none" and h != "inner_product"])
def test_without_a_weighting_the_gradient_is_orthogonal_to_each_filter(x, weight, h, g, path):
    weight.requires_grad_()
    with backend(path):
        (gradient,) = gradients(decoupled_conv2d(x, weight, tiny(h, g)), [weight])
    along = (gradient * weight).sum((1, 2, 3)) / (gradient.flatten(1).norm(dim=1) * weight.flatten(1).norm(dim=1))
    assert along.abs().max() < 1e-12


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_inner_product_is_the_ordinary_convolution_to_the_bit(x, weight, dtype, path):
    x, weight = x.to(dtype), weight.to(dtype)
    with backend(path):
        y = decoupled_conv2d(x, weight, "inner_product-cosine", stride=2, padding=1)
    assert torch.equal(y, F.conv2d(x, weight, stride=2, padding=1))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("g", [g for g in G if g != "cosine"])
def test_the_inner_product_with_another_angle_is_linearly_weighted_linear_conv(x, weight, g, path):
    with backend(path):
        y = decoupled_conv2d(x, weight, Operator("inner_product", g))
        assert error(y, decoupled_conv2d(x, weight, Operator("linear", g, "linear"))) < EXACT


@pytest.mark.parametrize("path", PATHS)
def test_a_rectified_convolution_is_the_inner_product_with_the_rectified_cosine(x, weight, path):
    with backend(path):
        assert error(decoupled_conv2d(x, weight, "inner_product-relu_cosine"), F.conv2d(x, weight).relu()) < EXACT


@pytest.mark.parametrize("path", PATHS)
def test_b_cos_with_b_two_is_linear_conv_with_the_square_cosine(x, weight, path):
    unit = weight / weight.flatten(1).norm(dim=1).reshape(4, 1, 1, 1)
    linear = F.conv2d(x, unit)
    norms = F.conv2d(x.square(), torch.ones(1, 3, 3, 3, dtype=torch.float64)).sqrt()
    b_cos = linear * (linear / norms).abs()
    with backend(path):
        assert error(decoupled_conv2d(x, weight, tiny("linear", "square_cosine")), b_cos) < EXACT
        assert error(decoupled_conv2d(x, weight, tiny("linear", "power_cosine", p=2)), b_cos) < EXACT


def test_a_tensor_and_the_same_number_give_the_same_output(x, weight):
    for name, operator in (("rho", "tanh-cosine"), ("alpha", "log-cosine"), ("beta", "mixed-linear"), ("k", "ball-sigmoid")):
        y = decoupled_conv2d(x, weight, operator, **{name: 1.3})
        for value in (torch.tensor(1.3), torch.full((4,), 1.3), torch.full((1,), 1.3, dtype=torch.float64)):
            assert error(decoupled_conv2d(x, weight, operator, **{name: value}), y) < 1e-6  # 1.3 is rounded in float32


def test_channels_last_comes_out_where_it_went_in(x, weight):
    for path in PATHS:
        with backend(path):
            y = decoupled_conv2d(x.to(memory_format=torch.channels_last), weight, "tanh-square_cosine", padding=1)
            assert y.is_contiguous(memory_format=torch.channels_last), path
            assert error(y, decoupled_conv2d(x, weight, "tanh-square_cosine", padding=1)) < EXACT


def test_mean_norm_may_be_a_function_of_the_norms(x, weight):
    found = decoupled_conv2d(x, weight, "tanh-cosine", mean_norm=lambda n: n.mean() * 2)
    assert error(found, decoupled_conv2d(x, weight, "tanh-cosine", rho=2.0)) < EXACT


def test_a_layer_hands_its_tensors_to_the_functional_form(x):
    layer = dcnets.DecoupledConv2d(
        3, 4, 3, 2, 1, bias=True, dtype=torch.float64, magnitude="segmented", angular="sigmoid", weighting="separate",
        learn=("radius", "alpha", "beta", "k"), radius_init=0.7, alpha=1.2, beta=0.3, k=0.4,
    )  # fmt: skip
    found = layer(x)
    expected = decoupled_conv2d(
        x, layer.weight, "segmented-sigmoid-separate", layer.bias, 2, 1, rho=0.7, alpha=1.2, beta=0.3, k=0.4
    )
    assert error(found, expected) < EXACT


@pytest.mark.parametrize("operator", ["linear-cosine", "tanh(radius=absolute)-cosine"])
def test_a_mean_norm_where_no_radius_is_relative_is_refused(operator):
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with pytest.raises(ValueError, match="takes no mean_norm; leave it out"):
        decoupled_conv2d(x, weight, operator, mean_norm=2.0)
    with pytest.raises(ValueError, match="mean_norm must be above 0, got -2"):
        decoupled_conv2d(x, weight, "tanh-cosine", mean_norm=-2.0)


def test_a_bias_in_the_operators_place_is_refused():
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with pytest.raises(TypeError, match=r"operator is a dcnets\.Operator or its text, such as 'tanh-cosine', got Tensor"):
        decoupled_conv2d(x, weight, torch.zeros(4))


def test_filters_that_cannot_be_split_into_groups_are_refused():
    with pytest.raises(ValueError, match="cannot be split into groups=2"):
        decoupled_conv2d(torch.randn(2, 6, 5, 5), torch.randn(3, 3, 3, 3), "tanh-cosine", groups=2)


@pytest.mark.parametrize("path", PATHS)
def test_an_input_smaller_than_a_window_is_refused_with_both_sizes(path):
    x, weight = torch.randn(2, 3, 4, 9), torch.randn(4, 3, 3, 3)
    with backend(path):
        assert decoupled_conv2d(x, weight, "tanh-cosine", padding=(1, 0), dilation=2).shape == (2, 4, 2, 5)
        with pytest.raises(ValueError, match=r"\(4, 9\) positions, padding included, is smaller than a window of \(5, 5\)"):
            decoupled_conv2d(x, weight, "tanh-cosine", dilation=2)


def test_a_backend_can_be_entered_again():
    again = backend("reference")
    seen = []
    for _ in range(2):
        with again:
            seen.append(dispatch._backend)
        seen.append(dispatch._backend)
    assert seen == ["reference", "auto"] * 2


# -- a mean norm that is given, and calls that are recorded ---------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_mean_norm_is_one_number(path):
    x, w, m = torch.randn(2, 2, 5, 5), torch.randn(4, 2, 3, 3), torch.tensor([2.0], requires_grad=True)
    with backend(path):
        y = decoupled_conv2d(x, w, "tanh-cosine", mean_norm=m)
        assert torch.equal(y, decoupled_conv2d(x, w, "tanh-cosine", mean_norm=2.0))
        y.sum().backward()
        assert m.grad.shape == (1,)
        assert m.grad.item() != 0
        for wrong in (torch.tensor([1.0, 2.0, 30.0]), lambda n: n.mean((0, 3)) + 1):
            with pytest.raises(ValueError, match=r"mean_norm has shape \(.*\), expected one number.*give its mean"):
                decoupled_conv2d(x, w, "tanh-cosine", mean_norm=wrong)


@pytest.mark.parametrize("own", [{"rho": torch.ones(4)}, {"rho": 1.0}, {"mean_norm": torch.tensor(2.0)}])
def test_values_are_not_read_where_a_call_is_recorded_or_imagined(own):
    x, w = torch.randn(2, 2, 5, 5), torch.randn(4, 2, 3, 3)
    name, value = next(iter(own.items()))

    def f(x, w, value):
        return decoupled_conv2d(x, w, "tanh-cosine", **{name: value})

    torch.testing.assert_close(make_fx(f)(x, w, value)(x, w, value), f(x, w, value))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert f(x, w, value).shape == (2, 4, 3, 3)
    with FakeTensorMode() as imagined:
        fake = [imagined.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in (x, w, value)]
        assert f(*fake).shape == (2, 4, 3, 3)
