"""A user's own h or g: one decorator, and it works in layers, by name, in sums and under torch.compile."""

import pytest
import torch
from tolerances import EXACT, error
from torch import nn

import dcnets
from dcnets import DecoupledConv2d, DecoupledLinear, Operator, functional
from dcnets.angular import ANGULARS
from dcnets.functional import backend, decoupled_conv2d
from dcnets.magnitude import MAGNITUDES


@pytest.fixture(autouse=True)
def _registries_as_they_were():
    before = dict(MAGNITUDES), dict(ANGULARS)
    yield
    for table, names in zip((MAGNITUDES, ANGULARS), before, strict=True):
        table.clear()
        table.update(names)


@pytest.fixture
def x():
    return torch.randn(2, 4, 5, 5, dtype=torch.float64)


def root(n, rho):
    return torch.sqrt(n / rho)


def cube(c):
    return c**3


ROOT_SLOPES = {"n": lambda h, n: h / (2 * n), "rho": lambda h, rho: -h / (2 * rho)}
CUBE_SLOPES = {"c": lambda c: 3 * c * c}


def values_and_gradients(path, x, operator="root-cube", **tensors):
    leaves = [x.clone().requires_grad_(), torch.linspace(-1, 1.3, 6 * 4 * 9, dtype=torch.float64).reshape(6, 4, 3, 3)]
    leaves[1].requires_grad_()
    rho = torch.linspace(0.5, 2, 6, dtype=torch.float64).requires_grad_()
    with backend(path):
        y = decoupled_conv2d(*leaves, operator, padding=1, rho=rho, **tensors)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        return y, *torch.autograd.grad((y * weights).sum(), [*leaves, rho])


def by_hand(x, weight, rho, h, g):
    """A layer of one sample with a relative radius, through unfold."""
    patches = nn.functional.unfold(x, 3, padding=1)
    n = (patches.square().sum(1, keepdim=True) + 1e-4).sqrt()
    w = weight.flatten(1)
    c = (w / (w.square().sum(1, keepdim=True) + 1e-4).sqrt()) @ patches / n
    return (h(n, rho[:, None] * n.mean()) * g(c)).unflatten(2, x.shape[2:])


@pytest.mark.parametrize("slopes", [False, True])
def test_one_decorator_makes_a_function_work_in_a_layer_by_its_name(x, slopes):
    dcnets.register_magnitude(slopes=ROOT_SLOPES if slopes else None)(root)
    dcnets.register_angular(slopes=CUBE_SLOPES if slopes else None)(cube)
    layer = DecoupledConv2d(4, 6, 3, padding=1, magnitude="root", angular="cube", dtype=torch.float64)
    assert "operator=root-cube" in repr(layer)
    assert layer.rho.shape == (6,)
    expected = by_hand(x, layer.weight, layer.rho, root, cube)
    assert error(layer(x), expected) < EXACT
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), layer.raw_radius)
    (truth,) = torch.autograd.grad(expected.square().sum(), layer.raw_radius)
    assert error(gradient, truth) < EXACT


def test_the_bare_decorator_and_the_named_one_both_return_the_function():
    assert dcnets.register_magnitude(root) is root
    assert dcnets.register_angular(name="third_power", smooth=False)(cube) is cube
    operator = Operator("root", "third_power")
    assert operator.has_radius
    assert not operator.smooth
    assert Operator.parse(str(operator)) == operator


def test_a_registered_function_can_be_part_of_a_sum(x):
    dcnets.register_magnitude(root)
    weight, rho = torch.randn(6, 4, 3, 3, dtype=torch.float64), torch.rand(6, dtype=torch.float64) + 0.5
    y = decoupled_conv2d(x, weight, "tanh+0.5*root-cosine", padding=1, rho=rho)
    expected = by_hand(x, weight, rho, lambda n, r: torch.tanh(n / r) + 0.5 * root(n, r), lambda c: c)
    assert error(y, expected) < EXACT


def test_what_an_operator_knows_holds_for_a_registered_function():
    dcnets.register_magnitude(lambda n: n / (1 + n), name="saturating")
    dcnets.register_magnitude(lambda n: n * n, name="square")
    assert Operator("saturating", alpha=2).bound == pytest.approx(2, rel=1e-6)
    assert Operator("saturating", eps=1e-12).lipschitz() == pytest.approx(1, rel=1e-4)
    assert Operator("square").bound == torch.inf
    assert Operator("square").lipschitz() == torch.inf


@pytest.mark.parametrize("slopes", [False, True])
def test_a_registered_function_compiles(x, slopes):
    dcnets.register_magnitude(slopes=ROOT_SLOPES if slopes else None)(root)
    layer = DecoupledConv2d(4, 6, 3, magnitude="root", angular="square_cosine", dtype=torch.float64).eval()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    expected = layer(x)
    found = compiled(x)
    assert error(found, expected) < EXACT
    truth = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    for found_one, true_one in zip(torch.autograd.grad(found.square().sum(), list(layer.parameters())), truth, strict=True):
        assert error(found_one, true_one) < EXACT


def test_without_slopes_autograd_differentiates_and_with_slopes_the_fused_path_agrees(x):
    dcnets.register_magnitude(root)
    dcnets.register_angular(cube)
    plain = values_and_gradients("auto", x)
    assert "Decouple" not in type(plain[0].grad_fn).__name__
    dcnets.register_magnitude(name="root_with_slopes", slopes=ROOT_SLOPES)(root)
    dcnets.register_angular(name="cube_with_slopes", slopes=CUBE_SLOPES)(cube)
    fused = values_and_gradients("fused", x, "root_with_slopes-cube_with_slopes")
    assert "Decouple" in type(fused[0].grad_fn).__name__
    for found, expected in zip(fused, plain, strict=True):
        assert error(found, expected) < EXACT


@pytest.mark.parametrize("missing", ["root", "cube"])
def test_the_fused_path_refuses_a_function_without_slopes_by_name(x, missing):
    dcnets.register_magnitude(slopes=None if missing == "root" else ROOT_SLOPES)(root)
    dcnets.register_angular(slopes=None if missing == "cube" else CUBE_SLOPES)(cube)
    with pytest.raises(ValueError, match=rf"{missing}.* has no slopes written out.*use backend\('auto'\)"):
        values_and_gradients("fused", x)


def test_the_fused_path_refuses_a_module_by_name(x):
    layer = DecoupledConv2d(4, 6, 3, magnitude="piecewise", dtype=torch.float64)
    with backend("fused"), pytest.raises(ValueError, match=r"piecewise.* has no slopes written out"):
        layer(x)


def test_slopes_that_leave_a_parameter_out_do_not_count(x):
    dcnets.register_magnitude(slopes={"n": ROOT_SLOPES["n"]})(root)
    assert not MAGNITUDES["root"].has_slopes
    found = values_and_gradients("auto", x, "root-cosine")
    assert found[3].abs().max() > 0


class Power(nn.Module):
    """h = (n/ρ)^q with q learned per filter."""

    def __init__(self, filters):
        super().__init__()
        self.exponent = nn.Parameter(torch.ones(filters))

    def forward(self, n, rho):
        groups = n.shape[1]
        return (n / rho) ** self.exponent.to(n.dtype).reshape(groups, -1, *(1,) * (n.dim() - 3))


class Blend(nn.Module):
    """g = a·cos θ + (1 − a)·cos³ θ, with a option for where a starts."""

    def __init__(self, filters, start=0.5, device=None, dtype=None):
        super().__init__()
        self.a = nn.Parameter(torch.full((filters,), float(start), device=device, dtype=dtype))

    def forward(self, c):
        a = self.a.reshape(c.shape[1], -1, *(1,) * (c.dim() - 3))
        return a * c + (1 - a) * c**3


def test_a_module_that_takes_the_number_of_filters_works_in_a_layer_and_trains(x):
    dcnets.register_magnitude(name="power")(Power)
    layer = DecoupledConv2d(4, 6, 3, groups=2, magnitude="power", radius="absolute", learn=(), dtype=torch.float64)
    assert dict(layer.named_parameters()).keys() == {"weight", "h.exponent"}
    assert layer.h.exponent.shape == (6,)
    target = decoupled_conv2d(x, layer.weight.detach(), "sphere-cosine", groups=2)
    optimiser = torch.optim.Adam([layer.h.exponent], lr=0.1)
    first = None
    for _ in range(60):
        loss = (layer(x) - target).square().mean()
        first = first if first is not None else loss.item()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < first / 100
    assert layer.h.exponent.abs().max() < 0.2  # n⁰ is the sphere


def test_a_module_takes_its_options_from_its_name_and_the_layers_device_and_dtype(x):
    dcnets.register_angular(name="blend")(Blend)
    layer = DecoupledLinear(4, 3, magnitude="linear", angular="blend(start=1)", dtype=torch.float64)
    assert layer.g.a.dtype == torch.float64
    assert layer.g.a.tolist() == [1.0, 1.0, 1.0]
    rows = x[0].flatten(1).t()
    assert error(layer(rows), functional.decoupled_linear(rows, layer.weight, "linear-cosine")) < EXACT
    layer(rows).square().sum().backward()
    assert layer.g.a.grad.abs().min() > 0


@pytest.mark.parametrize("weighting", ["none", "linear", "product", "separate"])
def test_a_learned_magnitude_takes_every_weighting(x, weighting):
    layer = DecoupledConv2d(
        4, 6, 3, magnitude="piecewise(init=linear, reach=100)", weighting=weighting, alpha=1.5, radius="absolute",
        radius_init=2.0, dtype=torch.float64,
    )  # fmt: skip
    w = (layer.weight.square().sum((1, 2, 3)) + 1e-4).sqrt()
    factor = {"none": 1.0, "linear": w, "product": w, "separate": w / 2}[weighting] * torch.ones(6, dtype=torch.float64)
    expected = decoupled_conv2d(x, layer.weight, "linear-cosine") * 1.5 / 2 * factor.reshape(6, 1, 1)
    assert error(layer(x), expected) < EXACT


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_duplicate_name_is_refused():
    with pytest.raises(ValueError, match="magnitude 'tanh' is registered already; choose another name"):
        dcnets.register_magnitude(name="tanh")(root)
    with pytest.raises(ValueError, match="angular 'cosine' is registered already"):
        dcnets.register_angular(name="cosine")(cube)
    assert MAGNITUDES["tanh"].function is not root


@pytest.mark.parametrize("name", ["square-root", "2fold", "a+b", "a*b", "with space", "f(x)"])
def test_a_name_that_the_text_form_cannot_hold_is_refused(name):
    with pytest.raises(ValueError, match="cannot be part of an operator's text"):
        dcnets.register_magnitude(name=name)(root)
    assert name not in MAGNITUDES


@pytest.mark.parametrize(
    "function",
    [lambda: 1.0, lambda x: x, lambda n, radius: n, lambda n, k: n, lambda n, **more: n, lambda rho, n: n],
    ids=["nothing", "wrong first", "unknown second", "angular's second", "anything", "swapped"],
)
def test_a_signature_that_no_operator_can_serve_is_refused(function):
    with pytest.raises(TypeError, match="the first argument is n, the others are among rho, alpha, beta, weight_norm"):
        dcnets.register_magnitude(name="mine")(function)
    assert "mine" not in MAGNITUDES


def test_an_argument_with_a_default_of_its_own_is_allowed(x):
    dcnets.register_magnitude(name="scaled")(lambda n, times=3.0: times * n)
    weight = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    found = decoupled_conv2d(x, weight, "scaled-cosine")
    assert error(found, 3 * decoupled_conv2d(x, weight, "linear-cosine")) < EXACT


def test_the_defaults_of_a_registered_function_become_the_operators():
    dcnets.register_magnitude(name="bent")(lambda n, beta=0.125: beta * n)
    dcnets.register_angular(name="steep")(lambda c, k=0.5, p=3: c / k)
    operator = Operator("bent", "steep")
    assert (operator.beta, operator.k, operator.p) == (0.125, 0.5, 3.0)
    assert str(operator) == "bent-steep"


@pytest.mark.parametrize(
    ("slopes", "said"),
    [
        ({"nn": lambda n: 1.0}, "has a slope of nn, which it does not take; it takes n, rho"),
        ({"n": lambda theta: 1.0}, "the slope of n in mine takes theta; it can take n, rho, h"),
        ({"n": lambda h_n: 1.0}, "the slope of n in mine takes h_n; it can take n, rho, h"),
    ],
)
def test_a_slope_that_no_path_can_use_is_refused(slopes, said):
    with pytest.raises(TypeError, match=said):
        dcnets.register_magnitude(name="mine", slopes=slopes)(lambda n, rho: n / rho)
    assert "mine" not in MAGNITUDES
