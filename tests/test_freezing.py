"""The copy for inference: the same outputs, and nothing that depends on weights alone computed again."""

import copy
import io
import pickle

import pytest
import torch
from tolerances import error
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dcnets import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
    convert,
    freeze,
)
from dcnets.decoupled import Decoupled
from dcnets.functional import backend
from dcnets.operator import Operator

MAGNITUDES = (
    "sphere", "ball", "tanh", "linear", "segmented", "log", "mixed", "inner_product", "tanh+0.5*linear",
    "0.5*ball+0.5*log", "piecewise", "piecewise(init=ball, knots=5, monotone=True)",
)  # fmt: skip
ANGULARS = (
    "linear", "cosine", "sigmoid", "square_cosine", "power_cosine", "relu_cosine", "piecewise", "piecewise(monotone=True)",
)  # fmt: skip
WEIGHTINGS = ("none", "linear", "product", "separate")
SMALL = [
    pytest.param(DecoupledConv1d, (4, 6, 3), (2, 4, 7), id="conv1d"),
    pytest.param(DecoupledConv2d, (4, 6, 3, 2, 1), (2, 4, 6, 5), id="conv2d"),
    pytest.param(DecoupledConv2d, (4, 6, 3, 1, "same", 1, 2, True, "reflect"), (2, 4, 6, 5), id="padded"),
    pytest.param(DecoupledConv3d, (4, 6, 3), (2, 4, 4, 5, 3), id="conv3d"),
    pytest.param(DecoupledConvTranspose2d, (4, 6, 3, 2, 1, 1, 2, True), (2, 4, 4, 5), id="conv_transpose2d"),
    pytest.param(DecoupledLinear, (4, 6, True), (2, 5, 4), id="linear"),
]


def operators():
    """Every operator that exists, with each weighting and each kind of radius that it has."""
    for magnitude in MAGNITUDES:
        for weighting in WEIGHTINGS:
            for radius in ("relative", "absolute"):
                try:
                    Operator(magnitude, weighting=weighting, radius=radius)
                except ValueError:
                    continue
                yield {"magnitude": magnitude, "weighting": weighting, "radius": radius}


def disturb(layer):
    """Give every floating-point tensor other values, some of them negative where they may be."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
                if name in ("weight", "bias", "alpha"):
                    tensor -= 1.0
    return layer.eval()


def learnable(options, angular):
    """Everything that an operator can learn."""
    own = Operator(options["magnitude"], angular)
    takes = {*own.h.parameters, *own.g.parameters}
    return ("alpha", *(name for name in ("beta", "k", "p") if name in takes), *(("radius",) if own.has_radius else ()))


def without_radius(options):
    """The options, less a radius where the magnitude has none."""
    has = Operator(options["magnitude"]).has_radius
    return {name: value for name, value in options.items() if name != "radius" or has}


# -- the same outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("angular", ANGULARS)
@pytest.mark.parametrize("options", list(operators()), ids=lambda options: "-".join(options.values()))
def test_the_copy_computes_what_the_model_computes_in_evaluation(options, angular):
    options = without_radius(options)
    for learn in (learnable(options, angular), ()):
        layer = disturb(DecoupledConv2d(4, 6, 3, padding=1, groups=2, bias=True, angular=angular, learn=learn, **options))
        x = torch.randn(2, 4, 5, 6)
        assert error(freeze(layer)(x), layer(x)) < 1e-6


@pytest.mark.parametrize("path", ["auto", "reference"])
@pytest.mark.parametrize("options", [{}, {"magnitude": "linear"}, {"magnitude": "piecewise", "weighting": "separate"}])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_every_kind_of_layer_is_frozen(kind, arguments, shape, options, path):
    layer = disturb(kind(*arguments, **options))
    x = torch.randn(shape)
    with backend(path):
        assert error(freeze(layer)(x), layer(x)) < 1e-6
        unbatched = x[0] if kind is not DecoupledLinear else x[0, 0]
        assert error(freeze(layer)(unbatched), layer(unbatched)) < 1e-6


@pytest.mark.parametrize("magnitude", ["tanh", "ball", "segmented", "sphere", "log", "piecewise"])
def test_the_copy_does_the_same_sums_so_that_outputs_are_bit_identical(magnitude):
    layer = disturb(DecoupledConv2d(4, 6, 3, bias=True, magnitude=magnitude))
    x = torch.randn(2, 4, 5, 6)
    with torch.no_grad():
        assert torch.equal(freeze(layer)(x), layer(x))


@pytest.mark.parametrize("radius_per", ["filter", "layer"])
def test_a_radius_of_the_layer_is_folded_as_one_of_each_filter_is(radius_per):
    layer = disturb(DecoupledConv2d(4, 6, 3, radius_per=radius_per))
    x = torch.randn(2, 4, 5, 6)
    assert error(freeze(layer)(x), layer(x)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_dtype_survives(dtype):
    layer = disturb(DecoupledConv2d(4, 6, 3, bias=True, magnitude="segmented", dtype=dtype))
    x = torch.randn(2, 4, 5, 6, dtype=dtype)
    y = freeze(layer)(x)
    assert y.dtype == dtype
    assert error(y, layer(x)) < 2 * torch.finfo(dtype).eps


def test_the_copy_follows_autocast_as_the_layer_does():
    layer = disturb(DecoupledConv2d(4, 6, 3, bias=True))
    x = torch.randn(2, 4, 5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = freeze(layer)(x)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, layer(x))


def test_channels_last_goes_in_and_comes_out():
    layer = DecoupledConv2d(4, 6, 3).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    assert freeze(layer)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_transposed_copy_takes_the_output_size_that_the_layer_takes():
    layer = disturb(DecoupledConvTranspose2d(4, 6, 3, stride=2))
    frozen, x = freeze(layer), torch.randn(2, 4, 4, 5)
    for size in ([9, 11], [10, 12]):
        assert error(frozen(x, output_size=size), layer(x, output_size=size)) < 1e-6
    with pytest.raises(ValueError, match="output size"):
        frozen(x, output_size=[99, 99])


def test_wrong_inputs_are_refused_as_the_layer_refuses_them():
    frozen = freeze(DecoupledConv2d(4, 6, 3))
    with pytest.raises(ValueError, match="expected x of shape"):
        frozen(torch.randn(2, 5, 5, 5))
    with pytest.raises(TypeError, match=r"x is torch.float64 and weight is torch.float32"):
        frozen(torch.randn(2, 4, 5, 5, dtype=torch.float64))


def test_the_copy_can_be_attacked_so_gradients_reach_the_input():
    layer = disturb(DecoupledConv2d(4, 6, 3))
    frozen = freeze(layer)
    x = torch.randn(2, 4, 5, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    (found,) = torch.autograd.grad(frozen(x).square().sum(), x)
    assert error(found, expected) < 1e-5


# -- the original ----------------------------------------------------------------------------------------------------


def network(**options):
    """A converted network, trained for a batch."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(6, 5, 3), nn.Flatten(),
        nn.Linear(5 * 36, 4),
    )  # fmt: skip
    model, _ = convert(model, select=lambda name, module: True, **options)
    model(torch.randn(4, 3, 8, 8))
    return model


@pytest.mark.parametrize("options", [{}, {"magnitude": "linear"}, {"magnitude": "piecewise(monotone=True)"}])
def test_the_original_is_left_as_it_is(options):
    model = network(**options)
    if options.get("magnitude", "").startswith("piecewise"):
        with torch.no_grad():
            model[0].h.values.normal_()  # far from monotone
    before, modules = copy.deepcopy(model.state_dict()), list(model.modules())
    frozen = freeze(model)
    assert list(model.modules()) == modules
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for tensor in frozen.state_dict().values():
        tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_copy_is_in_evaluation_mode_and_learns_nothing():
    model = network()
    frozen = freeze(model)
    assert not any(module.training for module in frozen.modules())
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not any(isinstance(module, Decoupled) for module in frozen.modules())
    x = torch.randn(4, 3, 8, 8)
    assert error(frozen(x), model.eval()(x)) < 1e-6


def test_what_is_linear_in_x_becomes_an_ordinary_layer():
    frozen = freeze(network(magnitude="linear"))
    assert [type(frozen[index]) for index in (0, 4, 6)] == [nn.Conv2d, nn.Conv2d, nn.Linear]


def test_a_shared_layer_is_frozen_once():
    layer = DecoupledConv2d(3, 3, 3, padding=1)
    frozen = freeze(nn.Sequential(layer, nn.ReLU(), layer))
    assert frozen[0] is frozen[2]
    assert frozen[0] is not layer


def test_hooks_and_attributes_of_a_user_go_along():
    layer = DecoupledConv2d(3, 4, 3).eval()
    layer.note = "mine"
    layer.register_buffer("mask", torch.ones(4))
    layer.register_forward_hook(lambda module, inputs, y: 3 * y)
    frozen = freeze(layer)
    assert (frozen.note, frozen.in_channels, frozen.stride) == ("mine", 3, (1, 1))
    assert torch.equal(frozen.mask, torch.ones(4))
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(frozen(x), layer(x))


def test_a_users_subclass_and_a_parametrised_layer_stay_as_they_are():
    class Doubled(DecoupledConv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    parametrised = nn.utils.parametrizations.weight_norm(DecoupledConv2d(4, 4, 3, magnitude="linear"))
    model = nn.Sequential(Doubled(3, 4, 3), parametrised).eval()
    frozen = freeze(model)
    assert isinstance(frozen[0], Doubled)
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(frozen(x), model(x))


def test_a_compiled_model_is_refused():
    with pytest.raises(TypeError, match="is compiled; freeze the model first, then compile it"):
        freeze(torch.compile(DecoupledConv2d(3, 4, 3), backend="eager"))


def test_a_frozen_layer_prints_its_shape_and_operator():
    assert repr(freeze(DecoupledConv2d(3, 4, 3))) == "Frozen((4, 3, 3, 3), operator=tanh-cosine)"


# -- nothing is computed again ---------------------------------------------------------------------------------------

UNCOMPUTED = {"aten.view", "aten.detach", "aten.t", "aten._unsafe_view", "aten.alias", "aten.transpose"}
PRODUCTS = {"aten.convolution", "aten.mm", "aten.addmm"}


class FromWeightsAlone(TorchDispatchMode):
    """Lists the operations on tensors as large as the weight which nothing but the model's own tensors go into."""

    def __init__(self, model, numel):
        super().__init__()
        self.known = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.numel, self.found, self.products = numel, [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if name in PRODUCTS:
            self.products += 1
        if tensors and all(id(t) in self.known for t in tensors):
            self.known |= {id(t): t for t in tree_leaves(result) if isinstance(t, torch.Tensor)}  # and keep them alive
            if name not in UNCOMPUTED and any(t.numel() >= self.numel for t in tensors):
                self.found.append(name)
        return result


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_no_operation_on_the_weight_is_left_but_the_product(kind, arguments, shape, weighting):
    layer = disturb(kind(*arguments, weighting=weighting))
    frozen, x = freeze(layer), torch.randn(shape)
    with torch.no_grad(), FromWeightsAlone(frozen, layer.weight.numel()) as frozen_mode:
        frozen(x)
    with torch.no_grad(), FromWeightsAlone(layer, layer.weight.numel()) as layer_mode:
        layer(x)
    assert {"aten.sum", "aten.div"} <= {*layer_mode.found}  # the layer itself normalises
    assert frozen_mode.products == layer_mode.products == 1
    assert frozen_mode.found == []


@pytest.mark.parametrize("magnitude", ["tanh", "ball", "segmented"])
def test_the_running_norm_is_folded_into_the_radius(magnitude):
    layer = disturb(DecoupledConv2d(4, 6, 3, magnitude=magnitude))
    frozen = freeze(layer)
    assert frozen.state_dict().keys() == {"weight", "value_rho"}
    torch.testing.assert_close(frozen.value_rho.flatten(), (layer.rho * layer.running_norm).detach())
    lengths = frozen.weight.flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(6), rtol=1e-3, atol=0)


def test_a_monotone_piecewise_function_is_sorted_out_once():
    layer = DecoupledConv2d(4, 6, 3, magnitude="piecewise(monotone=True)", angular="piecewise(monotone=True)").eval()
    with torch.no_grad():
        layer.h.values.normal_()
        layer.g.values.normal_()
    frozen, x = freeze(layer), torch.randn(2, 4, 5, 6)
    expected = layer(x)
    with torch.no_grad(), FromWeightsAlone(frozen, layer.h.values.numel()) as mode:
        y = frozen(x)
    assert not any("cum" in name for name in mode.found)
    assert error(y, expected) < 1e-6


# -- what is done with a copy ----------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("options", [{}, {"magnitude": "piecewise", "weighting": "product"}, {"magnitude": "linear"}])
def test_the_copy_compiles_to_one_graph(options):
    frozen = freeze(network(**options))
    compiled = torch.compile(frozen, fullgraph=True, backend="aot_eager")
    for batch in (3, 5):
        x = torch.randn(batch, 3, 8, 8)
        assert error(compiled(x), frozen(x)) < 1e-6


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_copy_is_exported_for_any_batch(kind, arguments, shape):
    frozen = freeze(disturb(kind(*arguments)))
    exported = torch.export.export(frozen, (torch.randn(3, *shape[1:]),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for batch in (1, 2, 7):
        x = torch.randn(batch, *shape[1:])
        assert error(exported.module()(x), frozen(x)) < 1e-6


@pytest.mark.parametrize("options", [{}, {"magnitude": "piecewise", "angular": "sigmoid", "learn": ("radius", "k")}])
def test_a_checkpoint_of_the_copy_goes_round(options):
    frozen, other = freeze(network(**options)), freeze(network(**options))
    x = torch.randn(3, 3, 8, 8)
    assert error(other(x), frozen(x)) > 1e-3
    other.load_state_dict(frozen.state_dict(), strict=True)
    assert torch.equal(other(x), frozen(x))


@pytest.mark.parametrize("options", [{}, {"magnitude": "piecewise", "angular": "piecewise"}, {"magnitude": "linear"}])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: saved_and_loaded(m)])
def test_the_copy_is_copied_and_pickled(again, options):
    frozen = freeze(network(**options))
    x = torch.randn(3, 3, 8, 8)
    assert torch.equal(again(frozen)(x), frozen(x))


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_freezing_a_frozen_model_changes_nothing():
    frozen = freeze(network())
    again = freeze(frozen)
    x = torch.randn(3, 3, 8, 8)
    assert torch.equal(again(x), frozen(x))


def test_the_copy_moves_to_another_dtype():
    frozen = freeze(network())
    x = torch.randn(3, 3, 8, 8)
    assert error(copy.deepcopy(frozen).double()(x.double()), frozen(x)) < 1e-6


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", [{}, {"radius_per": "layer"}, {"magnitude": "segmented", "weighting": "separate"}])
def test_a_frozen_network_takes_channels_last(options, groups):
    layer = DecoupledConv2d(4, 6, 3, padding=1, groups=groups, **options).eval()
    x = torch.randn(2, 4, 5, 5)
    frozen = freeze(layer).to(memory_format=torch.channels_last)
    y = frozen(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, layer(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_frozen_network_keeps_its_radii_in_float32_when_it_is_halved(dtype):
    layer = DecoupledConv2d(4, 6, 3).eval()
    layer.running_norm.fill_(4e5)  # beyond float16
    frozen = freeze(layer).to(dtype)
    assert frozen.weight.dtype == dtype
    assert frozen.value_rho.dtype == torch.float32
    torch.testing.assert_close(frozen.value_rho, torch.full((6,), 4e5))
    assert frozen.double().value_rho.dtype == torch.float64


@pytest.mark.parametrize("name", ["values", "names", "numbers", "formula", "value_rho"])
@pytest.mark.parametrize("kind", ["buffer", "attribute"])
def test_a_layer_with_an_attribute_that_a_frozen_one_needs_stays_as_it_is_in_the_copy(name, kind):
    layer, x = DecoupledConv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    if kind == "buffer":
        layer.register_buffer(name, torch.ones(2))
    else:
        setattr(layer, name, [1])
    frozen = freeze(nn.Sequential(layer, DecoupledConv2d(4, 4, 3)))
    assert isinstance(frozen[0], DecoupledConv2d)
    assert not isinstance(frozen[1], DecoupledConv2d)
    assert list(getattr(frozen[0], name)) == list(getattr(layer, name))
    torch.testing.assert_close(frozen[0](x), layer.eval()(x))
