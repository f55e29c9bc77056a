"""The layers: torch's signatures and checkpoints, the operator's own tensors, and tools that must leave them alone."""

import copy
import inspect
import io
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import dcnets
from dcnets import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
)
from dcnets.losses import NormalisedClassifier
from dcnets.margins import MarginHead

EPS = 1e-4
TWINS = {
    DecoupledConv1d: nn.Conv1d,
    DecoupledConv2d: nn.Conv2d,
    DecoupledConv3d: nn.Conv3d,
    DecoupledConvTranspose2d: nn.ConvTranspose2d,
    DecoupledLinear: nn.Linear,
}
SMALL = [
    pytest.param(DecoupledConv1d, (4, 6, 3), (2, 4, 7), id="conv1d"),
    pytest.param(DecoupledConv2d, (4, 6, 3), (2, 4, 6, 5), id="conv2d"),
    pytest.param(DecoupledConv3d, (4, 6, 3), (2, 4, 4, 5, 3), id="conv3d"),
    pytest.param(DecoupledConvTranspose2d, (4, 6, 3), (2, 4, 4, 5), id="conv_transpose2d"),
    pytest.param(DecoupledLinear, (4, 6), (2, 5, 4), id="linear"),
]
MODES = ("zeros", "reflect", "replicate", "circular")
POSITIONAL = [
    *[
        (DecoupledConv1d, arguments, (2, 4, 9))
        for arguments in [
            (4, 6, 3),
            (4, 6, 1),
            (4, 6, (4,), (2,), (1,), (2,), 2, True, "zeros"),
            (4, 6, 4, 1, "same", 2, 2, True, "zeros"),
            (4, 6, 4, 2, "valid", 1, 1, False, "reflect"),
            *[(4, 6, 3, 2, 2, 2, 2, True, mode) for mode in MODES],
            *[(4, 6, 4, 1, "same", 1, 1, True, mode) for mode in MODES],
        ]
    ],
    *[
        (DecoupledConv2d, arguments, (2, 4, 7, 8))
        for arguments in [
            (4, 6, 3),
            (4, 6, 3, 2, 1),
            (4, 4, 3, 1, 1, 1, 4),
            (4, 6, (2, 3), (1, 2), (2, 0), (3, 1), 2, True, "zeros"),
            (4, 6, (2, 4), 1, "same", (1, 2), 2, True, "zeros"),
            (4, 6, (2, 3), (2, 1), "valid", 1, 1, False, "circular"),
            *[(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), 2, True, mode) for mode in MODES],
            *[(4, 6, (3, 4), 1, "same", 1, 1, True, mode) for mode in MODES],
        ]
    ],
    *[
        (DecoupledConv3d, arguments, (2, 4, 5, 6, 4))
        for arguments in [
            (4, 6, 2),
            (4, 6, (1, 3, 2), (1, 2, 1), (0, 2, 1), (1, 1, 2), 2, True, "zeros"),
            (4, 6, (2, 3, 1), 1, "same", 1, 2, True, "zeros"),
            *[(4, 6, (1, 3, 2), (2, 1, 1), (1, 0, 2), 1, 2, True, mode) for mode in MODES],
        ]
    ],
    *[
        (DecoupledConvTranspose2d, arguments, (2, 4, 4, 5))
        for arguments in [
            (4, 6, 3),
            (4, 6, 1),
            (4, 6, 3, 2, 1, 1, 2, True, 1, "zeros"),
            (4, 6, (2, 3), (3, 2), (0, 1), (2, 1), 2, True, (1, 2)),
            (4, 6, 2, 3),
            (4, 4, 3, 2, 2, 0, 4),
        ]
    ],
    (DecoupledLinear, (4, 6), (3, 4)),
    (DecoupledLinear, (4, 6, True), (3, 2, 5, 4)),
]
ALL_LEARNED = [
    ({}, {"raw_radius"}),
    ({"magnitude": "sphere"}, set()),
    ({"learn": ()}, set()),
    ({"learn": "alpha"}, {"alpha"}),
    ({"magnitude": "segmented", "learn": ("radius", "alpha", "beta")}, {"raw_radius", "alpha", "beta"}),
    ({"magnitude": "linear", "angular": "sigmoid", "learn": ("k",)}, {"raw_k"}),
    ({"magnitude": "linear", "angular": "power_cosine", "learn": ("p",)}, {"raw_p"}),
    ({"angular": "power_cosine", "learn": ("radius", "p", "alpha")}, {"raw_radius", "raw_p", "alpha"}),
]
MANY = {"magnitude": "segmented", "angular": "sigmoid", "learn": ("radius", "alpha", "beta", "k"), "radius_init": 0.8}


def disturb(layer, seed=0):
    """Give every floating-point tensor of a layer other values, and say that it has seen three batches."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5)
            else:
                tensor.fill_(3)
    return layer


def assert_same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


# -- torch's signature -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")  # torch warns, of itself
@pytest.mark.parametrize(("kind", "arguments", "shape"), POSITIONAL)
def test_every_positional_argument_means_what_it_means_to_the_torch_twin(kind, arguments, shape):
    """SphereConv is ⟨w, x⟩ / (‖w‖‖x‖), and ‖x‖² is what the twin makes of x² with filters of ones."""
    layer = kind(*arguments, magnitude="sphere").double()
    twin = TWINS[kind](*arguments).double()
    bias = twin.bias.detach().clone() if layer.bias is not None else 0.0
    if layer.bias is None:
        twin.bias = None
    layer.load_state_dict(twin.state_dict())
    x = torch.randn(shape, dtype=torch.float64)
    shaped = (lambda values, x: values) if kind is DecoupledLinear else per_channel
    with torch.no_grad():
        twin.bias = None
        products = twin(x)
        norms = filters_of(kind, twin).square().sum(1).add(EPS).sqrt()
        twin.weight.fill_(1)
        truth = products / (shaped(norms, x) * (twin(x.square()) + EPS).sqrt())
        truth = truth + shaped(torch.as_tensor(bias), x)
    assert layer(x).shape == products.shape
    torch.testing.assert_close(layer(x), truth, rtol=1e-11, atol=1e-11)


def per_channel(values, x):
    return values.view(-1, *(1,) * (x.dim() - 2))


def filters_of(kind, twin):
    """The twin's filters as rows: one for each output channel."""
    if kind is not DecoupledConvTranspose2d:
        return twin.weight.flatten(1)
    each = twin.weight.unflatten(0, (twin.groups, -1)).transpose(1, 2)
    return each.flatten(0, 1).flatten(1)


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_keywords_of_torch_are_accepted_by_name(kind, arguments, shape):
    names = ("in_features", "out_features") if kind is DecoupledLinear else ("in_channels", "out_channels", "kernel_size")
    layer = kind(**dict(zip(names, arguments, strict=True)), bias=True, device="cpu", dtype=torch.float64)
    assert layer.bias.shape == (6,)
    assert layer(torch.randn(shape, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_input_can_be_named_as_in_torch(kind, arguments, shape):
    layer, x = kind(*arguments).eval(), torch.randn(shape)
    torch.testing.assert_close(layer(input=x), layer(x), rtol=0, atol=0)
    frozen = dcnets.freeze(layer)
    torch.testing.assert_close(frozen(input=x), frozen(x), rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_an_operator_can_stand_for_its_parts(kind, arguments, shape):
    layer = kind(*arguments, operator="segmented(beta=0.3)-sigmoid-linear", learn=("k",))
    parts = {"magnitude": "segmented", "beta": 0.3, "angular": "sigmoid", "weighting": "linear"}
    assert layer.operator == kind(*arguments, **parts).operator
    torch.testing.assert_close(layer.k, torch.full((6,), 0.75))
    with pytest.raises(TypeError, match="operator='tanh-cosine' and beta as well"):
        kind(*arguments, operator="tanh-cosine", beta=0.3)


def test_sizes_can_be_numbers_of_numpy():
    layer = DecoupledConv2d(4, 6, np.int64(3), stride=np.int32(2))
    assert (layer.kernel_size, layer.stride) == ((3, 3), (2, 2))


@pytest.mark.parametrize(("name", "least", "value"), [("stride", 1, 0), ("dilation", 1, (1, 0)), ("padding", 0, -1)])
def test_a_size_that_no_window_has_is_refused(name, least, value):
    with pytest.raises(ValueError, match=f"{name} is {least} or more"):
        DecoupledConv2d(4, 6, 3, **{name: value})


class Passing(DecoupledConv2d):
    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)


class Square(DecoupledConv2d):
    def __init__(self, channels):
        super().__init__(channels, channels, 3, magnitude="ball")


@pytest.mark.parametrize(
    ("kind", "shown", "hidden"),
    [
        (DecoupledConv2d, {"in_channels", "bias", "magnitude", "operator", "sync"}, {"options"}),
        (Passing, {"args", "magnitude", "operator", "sync"}, {"keywords"}),
        (Square, {"channels"}, {"magnitude", "operator"}),
        (NormalisedClassifier, {"in_features", "magnitude", "eps"}, {"angular", "weighting", "learn", "bias"}),
        (MarginHead, {"margin", "magnitude", "eps"}, {"angular", "weighting", "learn", "bias"}),
    ],
)
def test_a_signature_shows_what_a_constructor_takes_and_no_more(kind, shown, hidden):
    parameters = set(inspect.signature(kind).parameters)
    assert shown <= parameters
    assert not hidden & parameters


def test_subclasses_of_all_kinds_can_be_made():
    assert Passing(4, 6, 3, magnitude="ball").operator.magnitude == "ball"
    assert Square(4).operator.magnitude == "ball"
    with pytest.raises(TypeError, match="Passing got an unknown keyword 'magnitud'; did you mean 'magnitude'"):
        Passing(4, 6, 3, magnitud="ball")


def test_a_layer_has_no_bias_unless_asked():
    assert DecoupledConv2d(3, 4, 3).bias is None
    assert DecoupledLinear(3, 4).bias is None


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_bias_is_added_after_the_operator(kind, arguments, shape):
    layer = kind(*arguments, bias=True).eval()
    bare = kind(*arguments).eval()
    bare.weight = layer.weight
    x = torch.randn(shape)
    bias = layer.bias if kind is DecoupledLinear else per_channel(layer.bias, x)
    torch.testing.assert_close(layer(x), bare(x) + bias)


@pytest.mark.parametrize("path", ["auto", "reference"])
@pytest.mark.parametrize("magnitude", ["tanh", "inner_product"])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_gradient_of_the_bias_is_the_sum_of_the_incoming_one(kind, arguments, shape, magnitude, path):
    layer = kind(*arguments, bias=True, magnitude=magnitude)
    with dcnets.functional.backend(path):
        y = layer(torch.randn(shape, requires_grad=True))
        dy = torch.randn_like(y)
        y.backward(dy)
    channel = y.dim() - 1 if kind is DecoupledLinear else 1
    torch.testing.assert_close(layer.bias.grad, dy.sum([d for d in range(y.dim()) if d != channel]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_an_unbatched_input_is_a_batch_of_one_without_its_batch_dimension(kind, arguments, shape, training):
    layer = kind(*arguments, bias=True).train(training)
    x = torch.randn(shape[1:]) if kind is not DecoupledLinear else torch.randn(4)
    torch.testing.assert_close(layer(x), layer(x.unsqueeze(0)).squeeze(0), rtol=0, atol=0)


def test_a_linear_layer_takes_every_row_of_any_shape_for_a_patch():
    layer = DecoupledLinear(4, 6).eval()
    x = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(layer(x), layer(x.view(-1, 4)).view(2, 3, 5, 6), rtol=0, atol=0)


def test_a_linear_layer_takes_a_transposed_input():
    layer = DecoupledLinear(4, 6)
    x = torch.randn(4, 3, 2).permute(2, 1, 0)
    torch.testing.assert_close(layer(x), layer(x.contiguous()), rtol=0, atol=0)


def test_a_transposed_convolution_takes_the_output_size_that_torch_takes():
    ours = DecoupledConvTranspose2d(4, 6, 3, stride=2)
    twin = nn.ConvTranspose2d(4, 6, 3, stride=2)
    x = torch.randn(2, 4, 4, 5)
    for size in ([9, 11], [10, 12]):
        assert ours(x, output_size=size).shape == twin(x, output_size=size).shape == (2, 6, *size)
    with pytest.raises(ValueError, match="output size"):
        ours(x, output_size=[99, 99])


def test_a_transposed_convolution_refuses_other_padding_modes_as_torch_does():
    with pytest.raises(ValueError, match='Only "zeros" padding mode'):
        DecoupledConvTranspose2d(4, 6, 3, padding_mode="reflect")


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_on_the_meta_device_a_layer_has_shapes_and_nothing_else(kind, arguments, shape):
    layer = kind(*arguments, bias=True, device="meta", **MANY)
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"meta"}
    y = layer(torch.empty(shape, device="meta"))
    assert y.device.type == "meta"
    assert y.shape == TWINS[kind](*arguments)(torch.zeros(shape)).shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_dtype_holds_for_parameters_and_output_and_statistics_are_float32_at_least(kind, arguments, shape, dtype):
    layer = kind(*arguments, bias=True, dtype=dtype, **MANY)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert layer.running_norm.dtype == torch.promote_types(dtype, torch.float32)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == layer.weight.grad.dtype == layer.raw_radius.grad.dtype == dtype


@pytest.mark.parametrize("path", ["auto", "reference"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [1, 2])
def test_channels_last_goes_in_and_comes_out(groups, mode, training, path):
    layer = DecoupledConv2d(4, 6, 3, padding=1, groups=groups, bias=True, padding_mode=mode).train(training)
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    expected = layer(x.contiguous())
    with dcnets.functional.backend(path):
        y = layer(x)
        with torch.no_grad():
            assert layer(x).is_contiguous(memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, expected)


def test_a_contiguous_input_has_a_contiguous_output():
    assert DecoupledConv2d(4, 6, 3)(torch.randn(2, 4, 5, 6)).is_contiguous()


def test_channels_last_3d_and_a_transposed_convolution_preserve_the_format_too():
    x = torch.randn(2, 4, 3, 5, 6).to(memory_format=torch.channels_last_3d)
    assert DecoupledConv3d(4, 6, 3, padding=1)(x).is_contiguous(memory_format=torch.channels_last_3d)
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    assert DecoupledConvTranspose2d(4, 6, 3)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_channels_last_weight_makes_no_difference():
    layer = DecoupledConv2d(4, 6, 3, padding=1)
    x = torch.randn(2, 4, 5, 6)
    expected = layer(x)
    torch.testing.assert_close(layer.to(memory_format=torch.channels_last)(x), expected)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("magnitud", "magnitude"),
        ("radius_ini", "radius_init"),
        ("wieghting", "weighting"),
        ("learned", "learn"),
        ("strid", "stride"),
        ("paddin", "padding"),
        ("padding_mod", "padding_mode"),
        ("dilatation", "dilation"),
        ("group", "groups"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "arguments"), [(DecoupledConv1d, (3, 4, 3)), (DecoupledConv2d, (3, 4, 3)), (DecoupledConv3d, (3, 4, 3))]
)
def test_an_unknown_keyword_of_a_convolution_is_refused_and_the_near_miss_named(kind, arguments, given, meant):
    with pytest.raises(TypeError, match=f"{kind.__name__}.*'{given}'.*did you mean '{meant}'"):
        kind(*arguments, **{given: 1})


@pytest.mark.parametrize(("given", "meant"), [("out_padding", "output_padding"), ("angula", "angular")])
def test_an_unknown_keyword_of_a_transposed_convolution_is_refused_and_the_near_miss_named(given, meant):
    with pytest.raises(TypeError, match=f"DecoupledConvTranspose2d.*'{given}'.*did you mean '{meant}'"):
        DecoupledConvTranspose2d(3, 4, 3, **{given: 1})


@pytest.mark.parametrize(("given", "meant"), [("bais", "bias"), ("devise", "device"), ("dtpe", "dtype")])
def test_an_unknown_keyword_of_a_linear_layer_is_refused_and_the_near_miss_named(given, meant):
    with pytest.raises(TypeError, match=f"DecoupledLinear.*'{given}'.*did you mean '{meant}'"):
        DecoupledLinear(3, 4, **{given: 1})


@pytest.mark.parametrize(
    ("options", "kind", "meant"),
    [
        ({"magnitude": "tanhh"}, "magnitude", "tanh"),
        ({"angular": "cosin"}, "angular", "cosine"),
        ({"weighting": "seperate"}, "weighting", "separate"),
        ({"radius": "absolut"}, "radius", "absolute"),
        ({"radius_per": "filtre"}, "radius_per", "filter"),
        ({"learn": ("radios",)}, "name in learn", "radius"),
    ],
)
def test_an_unknown_name_is_refused_and_the_near_miss_named(options, kind, meant):
    with pytest.raises(ValueError, match=f"unknown {kind} .*did you mean '{meant}'"):
        DecoupledConv2d(3, 4, 3, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"magnitude": "sphere", "radius_init": 2.0}, "sphere has no radius, so radius_init"),
        ({"magnitude": "linear", "radius_per": "layer"}, "linear has no radius, so radius_per"),
        ({"magnitude": "log", "sync": True}, "log has no radius, so sync"),
        ({"magnitude": "sphere", "radius": "absolute"}, "sphere has no radius"),
        ({"magnitude": "sphere", "radius": "relative"}, "sphere has no radius"),
        ({"magnitude": "sphere", "learn": ("radius",)}, "no radius to learn"),
        ({"angular": "cosine", "k": 0.3}, "cosine takes no k"),
        ({"angular": "cosine", "p": 2.0}, "cosine takes no p"),
        ({"magnitude": "tanh", "beta": 0.5}, "tanh takes no beta"),
        ({"learn": ("k",)}, "no k to learn"),
        ({"learn": ("p",)}, "no p to learn"),
        ({"learn": ("radius", "beta")}, "no beta to learn"),
        ({"radius": "absolute", "sync": True}, "absolute radius has no mean norm to share"),
        ({"magnitude": "sphere", "weighting": "product"}, "means nothing"),
        ({"magnitude": "inner_product", "weighting": "linear"}, "contains ‖w‖ already"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        DecoupledConv2d(3, 4, 3, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"radius_init": 0.0}, "radius_init must be above 0.0001, got 0.0"),
        ({"radius_init": -1.0}, "radius_init must be above"),
        ({"radius_init": float("nan")}, "radius_init must be above"),
        ({"radius_init": float("inf")}, "radius_init must be above"),
        ({"angular": "sigmoid", "k": 0.0}, "k must be above 0, got 0.0"),
        ({"angular": "sigmoid", "k": 0.01, "learn": ("k",)}, "learned k must start above 0.05, got 0.01"),
        ({"angular": "power_cosine", "p": 0.5}, "p must be at least 1, got 0.5"),
        ({"eps": 0.0}, "eps must be above 0"),
    ],
)
def test_a_number_out_of_range_is_refused_with_what_came_and_what_was_expected(options, said):
    with pytest.raises(ValueError, match=said):
        DecoupledConv2d(3, 4, 3, **options)


def test_a_learned_k_of_zero_is_refused_like_a_fixed_one():
    with pytest.raises(ValueError, match="k must be above 0, got 0"):
        DecoupledConv2d(3, 4, 3, angular="sigmoid", k=0.0, learn=("k",))


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_a_wrong_channel_count_is_refused_with_both_shapes(kind, arguments, shape):
    wrong = (*shape[:-1], 5) if kind is DecoupledLinear else (shape[0], 5, *shape[2:])
    with pytest.raises(ValueError, match=r"expected x of shape \(.*4.*got \(2, 5"):
        kind(*arguments)(torch.randn(wrong))


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_an_integer_tensor_is_refused(kind, arguments, shape):
    with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got torch.int64; convert it with .float\(\)"):
        kind(*arguments)(torch.ones(shape, dtype=torch.long))


def test_an_input_of_another_dtype_is_refused_with_both_dtypes():
    with pytest.raises(TypeError, match=r"x is torch.float64 and weight is torch.float32"):
        DecoupledConv2d(4, 6, 3)(torch.randn(2, 4, 5, 5, dtype=torch.float64))


# -- the operator's own tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "names"), ALL_LEARNED)
def test_learn_says_which_tensors_are_parameters(options, names):
    layer = DecoupledConv2d(4, 6, 3, **options)
    assert dict(layer.named_parameters()).keys() == {"weight"} | names
    for name in names:
        assert getattr(layer, name).shape == (6,)


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_every_learned_value_has_one_element_a_filter_and_is_trained(kind, arguments, shape):
    layer = kind(*arguments, bias=True, **MANY)
    layer(torch.randn(shape)).square().sum().backward()
    names = {"weight", "bias", "raw_radius", "alpha", "beta", "raw_k"}
    assert dict(layer.named_parameters()).keys() == names
    for name in names - {"weight"}:
        assert getattr(layer, name).shape == (6,)
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_a_radius_per_layer_is_one_number_and_is_trained():
    layer = DecoupledConv2d(4, 6, 3, radius_per="layer")
    assert layer.raw_radius.shape == layer.rho.shape == (1,)
    layer(torch.randn(2, 4, 5, 5)).square().sum().backward()
    assert layer.raw_radius.grad.shape == (1,)
    assert layer.raw_radius.grad.abs() > 0


def test_a_radius_per_layer_is_the_same_radius_for_every_filter():
    one, each = (DecoupledConv2d(4, 6, 3, radius_per=per, radius_init=0.6, magnitude="ball") for per in ("layer", "filter"))
    one.weight = each.weight
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(one(x), each(x), rtol=0, atol=0)


@pytest.mark.parametrize("radius_init", [0.01, 0.7, 1.0, 30.0])
@pytest.mark.parametrize("learn", [("radius",), ()])
@pytest.mark.parametrize("eps", [1e-4, 1e-12])
def test_radius_init_is_rho_itself_whatever_epsilon_is(radius_init, learn, eps):
    layer = DecoupledConv2d(4, 6, 3, radius_init=radius_init, learn=learn, eps=eps, dtype=torch.float64)
    torch.testing.assert_close(layer.rho.detach(), torch.full((6,), radius_init, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(layer.rho, layer.raw_radius.square() + 1e-4, rtol=0, atol=0)


def test_a_fixed_radius_is_a_buffer_that_is_saved():
    layer = DecoupledConv2d(4, 6, 3, learn=())
    assert "raw_radius" in dict(layer.named_buffers())
    assert "raw_radius" in layer.state_dict()


def test_without_a_radius_there_is_neither_radius_nor_statistics():
    layer = DecoupledConv2d(4, 6, 3, magnitude="linear")
    assert layer.state_dict().keys() == {"weight"}
    assert layer.rho is None


def test_an_absolute_radius_has_no_statistics():
    layer = DecoupledConv2d(4, 6, 3, radius="absolute")
    assert layer.state_dict().keys() == {"weight", "raw_radius"}


@pytest.mark.parametrize(
    ("options", "value"),
    [({"learn": ("k",)}, 0.75), ({"learn": ("k",), "k": 0.3}, 0.3), ({"k": 0.4}, 0.4), ({}, 0.3)],
)
def test_a_learned_k_starts_at_three_quarters_unless_given_and_a_fixed_one_at_three_tenths(options, value):
    layer = DecoupledConv2d(4, 6, 3, magnitude="linear", angular="sigmoid", dtype=torch.float64, **options)
    torch.testing.assert_close(torch.as_tensor(layer.k, dtype=torch.float64).expand(6), torch.tensor([value] * 6).double())


def test_a_learned_k_is_the_size_of_its_parameter_above_a_floor():
    layer = DecoupledConv2d(4, 2, 3, angular="sigmoid", learn=("k",))
    with torch.no_grad():
        layer.raw_k.copy_(torch.tensor([-0.5, 0.0]))
    torch.testing.assert_close(layer.k, torch.tensor([0.55, 0.05]))


@pytest.mark.parametrize(("options", "value"), [({}, 2.0), ({"p": 1.5}, 1.5), ({"p": 1.0}, 1.0)])
@pytest.mark.parametrize("learn", [("p",), ()])
def test_p_is_what_was_given_learned_or_not(options, value, learn):
    layer = DecoupledConv2d(4, 6, 3, angular="power_cosine", learn=learn, **options)
    torch.testing.assert_close(torch.as_tensor(layer.p).expand(6), torch.full((6,), value))


def test_a_learned_p_never_falls_below_one():
    layer = DecoupledConv2d(4, 2, 3, angular="power_cosine", learn=("p",))
    with torch.no_grad():
        layer.raw_p.copy_(torch.tensor([-0.5, 0.0]))
    torch.testing.assert_close(layer.p, torch.tensor([1.5, 1.0]))


@pytest.mark.parametrize("learn", [("alpha", "beta"), ()])
def test_alpha_and_beta_start_as_given(learn):
    layer = DecoupledConv2d(4, 6, 3, magnitude="segmented", alpha=1.5, beta=-0.25, learn=learn)
    torch.testing.assert_close(torch.as_tensor(layer.alpha).expand(6), torch.full((6,), 1.5))
    torch.testing.assert_close(torch.as_tensor(layer.beta).expand(6), torch.full((6,), -0.25))


@pytest.mark.parametrize(("magnitude", "beta"), [("segmented", 0.5), ("mixed", 1.0)])
def test_beta_has_the_default_of_its_magnitude(magnitude, beta):
    layer = DecoupledConv2d(4, 6, 3, magnitude=magnitude, learn=("beta",))
    torch.testing.assert_close(layer.beta.detach(), torch.full((6,), beta))


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_computes_the_functional_form_with_its_effective_values(training):
    layer = disturb(DecoupledConv2d(4, 6, 3, 2, 1, groups=2, bias=True, **MANY)).train(training)
    x = torch.randn(3, 4, 6, 6)
    expected = dcnets.functional.decoupled_conv2d(
        x, layer.weight, layer.operator, layer.bias, 2, 1, 1, 2, rho=layer.rho, alpha=layer.alpha, beta=layer.beta,
        k=layer.k, mean_norm=None if training else layer.running_norm,
    )  # fmt: skip
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


# -- the running norm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (lambda: DecoupledConv1d(4, 6, 3), 12),
        (lambda: DecoupledConv2d(4, 6, (3, 2), groups=2), 12),
        (lambda: DecoupledConv3d(4, 6, 2), 32),
        (lambda: DecoupledConvTranspose2d(4, 6, 3, groups=2), 18),
        (lambda: DecoupledLinear(7, 6), 7),
    ],
)
def test_before_training_the_running_norm_is_the_root_of_the_fan_in(layer, fan_in):
    layer = layer()
    torch.testing.assert_close(layer.running_norm.squeeze(), torch.tensor(float(fan_in)).sqrt())
    assert layer.num_batches_tracked == 0


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_first_batch_replaces_the_running_norm_and_the_next_ones_are_averaged(kind, arguments, shape):
    layer = kind(*arguments)
    batches = [torch.randn(shape) * scale for scale in (1, 3, 0.2)]
    means = []
    for count, x in enumerate(batches, start=1):
        layer(x)
        means.append(mean_norm_by_twin(kind, arguments, x))
        torch.testing.assert_close(layer.running_norm.squeeze(), torch.stack(means).mean().float())
        assert layer.num_batches_tracked == count


def mean_norm_by_twin(kind, arguments, x):
    """The mean of √(Σx² + ε) over batch and positions: the twin with one filter of ones sums the squares."""
    twin = TWINS[kind](*arguments, bias=False).double()
    nn.init.ones_(twin.weight)
    sums = twin(x.double().square()).detach()
    sums = sums[..., :1] if kind is DecoupledLinear else sums[:, :1]
    return (sums + EPS).sqrt().mean()


def test_the_mean_is_over_groups_too():
    layer = DecoupledConv2d(2, 4, 1, groups=2, eps=1e-12)
    layer(torch.tensor([3.0, 5.0]).view(1, 2, 1, 1))
    torch.testing.assert_close(layer.running_norm.squeeze(), torch.tensor(4.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_after_a_thousand_batches_the_running_norm_decays(dtype):
    layer = DecoupledLinear(1, 1, eps=1e-12, dtype=dtype)
    norms = torch.rand(1200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    expected = 0.0
    with torch.no_grad():
        for count, norm in enumerate(norms.tolist(), start=1):
            layer(torch.tensor([[norm]], dtype=dtype))
            expected += (norm - expected) * max(1 / count, 0.001)
            if count in (1, 2, 500, 1000, 1001, 1200):
                tolerance = 1e-12 if dtype == torch.float64 else 1e-5
                torch.testing.assert_close(layer.running_norm.item(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_evaluation_uses_the_running_norm_and_never_the_batch(kind, arguments, shape):
    layer = kind(*arguments)
    layer(torch.randn(shape))
    layer.eval()
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(shape)
    alone = layer(x[:1])
    x[1:] *= 100
    torch.testing.assert_close(layer(x)[:1], alone)
    assert_same_state(layer.state_dict(), before)
    layer.running_norm.mul_(2)
    assert not torch.allclose(layer(x)[:1], alone)


def test_training_measures_by_the_batch_and_not_by_the_running_norm():
    layer = DecoupledConv2d(4, 6, 3)
    x = torch.randn(2, 4, 5, 5)
    expected = layer(x)
    layer.running_norm.mul_(2)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)
    assert not torch.allclose(layer(torch.cat([x[:1], 100 * x[1:]]))[:1], expected[:1])


def test_the_running_norm_follows_training_without_gradients_too():
    layer = DecoupledConv2d(4, 6, 3)
    x = torch.randn(2, 4, 5, 5)
    with torch.no_grad():
        layer(x)
    torch.testing.assert_close(layer.running_norm.squeeze(), mean_norm_by_twin(DecoupledConv2d, (4, 6, 3), x).float())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_an_empty_batch_updates_nothing_and_has_gradients_of_zero(kind, arguments, shape, training):
    layer = kind(*arguments, bias=True).train(training)
    layer(torch.randn(shape))
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(0, *shape[1:], requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == TWINS[kind](*arguments)(torch.zeros(0, *shape[1:])).shape
    assert x.grad.shape == x.shape
    assert_same_state(layer.state_dict(), before)
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, torch.zeros_like(parameter), msg=name)


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, MANY, {"magnitude": "sphere"}, {"radius": "absolute", "learn": ()}])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_a_checkpoint_of_the_torch_twin_loads_strictly_and_the_rest_starts_anew(kind, arguments, shape, options):
    twin = nn.Sequential(nn.ReLU(), TWINS[kind](*arguments, bias=True))
    ours = nn.Sequential(nn.ReLU(), kind(*arguments, bias=True, **options))
    fresh = copy.deepcopy(ours.state_dict())
    disturb(ours)
    checkpoint = twin.state_dict()
    assert str(ours.load_state_dict(checkpoint, strict=True)) == "<All keys matched successfully>"
    assert_same_state(ours.state_dict(), {**fresh, **checkpoint})
    assert checkpoint.keys() == {"1.weight", "1.bias"}


@pytest.mark.parametrize("options", [{}, MANY, {"magnitude": "piecewise", "angular": "piecewise"}])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_a_checkpoint_of_the_torch_twin_can_be_assigned_to_a_layer_on_meta(kind, arguments, shape, options):
    twin = TWINS[kind](*arguments, bias=True)
    layer = kind(*arguments, bias=True, device="meta", **options)
    layer.load_state_dict(twin.state_dict(), strict=True, assign=True)
    fresh = kind(*arguments, bias=True, **options)
    assert_same_state(layer.state_dict(), {**fresh.state_dict(), **twin.state_dict()})
    assert {name for name, _ in layer.named_parameters()} == {name for name, _ in fresh.named_parameters()}
    assert all(parameter.requires_grad for parameter in layer.parameters())
    layer(torch.randn(shape)).sum().backward()


def test_a_learned_piecewise_function_starts_anew_when_a_checkpoint_lacks_it():
    layer = DecoupledConv2d(4, 6, 3, magnitude="piecewise", angular="piecewise")
    fresh = copy.deepcopy(layer.state_dict())
    disturb(layer)
    checkpoint = nn.Conv2d(4, 6, 3, bias=False).state_dict()
    layer.load_state_dict(checkpoint)
    assert_same_state(layer.state_dict(), {**fresh, **checkpoint})


def test_a_checkpoint_that_lacks_the_weight_or_has_more_is_still_refused():
    layer = DecoupledConv2d(4, 6, 3)
    with pytest.raises(RuntimeError, match=r'Missing key.*"weight"'):
        layer.load_state_dict({})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"bias"'):
        layer.load_state_dict(nn.Conv2d(4, 6, 3).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict(nn.Conv2d(5, 6, 3, bias=False).state_dict())


@pytest.mark.parametrize("checkpoint", [{}, {"1.bias": torch.zeros(6)}, {"module.0.weight": torch.zeros(6, 4, 3, 3)}])
def test_a_checkpoint_without_the_layers_weight_changes_nothing_of_the_layer(checkpoint):
    model = nn.Sequential(DecoupledConv2d(4, 6, 3, **MANY), nn.BatchNorm2d(6))
    disturb(model[0])
    before = copy.deepcopy(model[0].state_dict())
    missing = model.load_state_dict(checkpoint, strict=False).missing_keys
    assert_same_state(model[0].state_dict(), before)
    assert {f"0.{name}" for name in before} <= set(missing)


def test_a_checkpoint_of_a_parametrised_twin_loads_strictly_too():
    twin = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3, bias=False))
    layer = nn.utils.parametrizations.weight_norm(DecoupledConv2d(4, 6, 3))
    layer.set_radius(3.0)
    layer.load_state_dict(twin.state_dict(), strict=True)
    torch.testing.assert_close(layer.rho, torch.ones(6))
    torch.testing.assert_close(layer.weight, twin.weight)


@pytest.mark.parametrize("options", [MANY, {"magnitude": "piecewise", "angular": "piecewise"}])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_a_state_dict_goes_around_through_a_file_without_pickled_code(kind, arguments, shape, options):
    layer = disturb(kind(*arguments, bias=True, **options))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = kind(*arguments, bias=True, **options)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same_state(other.state_dict(), layer.state_dict())
    x = torch.randn(shape)
    torch.testing.assert_close(other.eval()(x), layer.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("options", [MANY, {"magnitude": "tanh+0.5*linear"}, {"angular": "piecewise(knots=5)"}])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_deepcopy_and_pickle_give_an_equal_and_independent_layer(kind, arguments, shape, options, duplicate):
    layer = disturb(kind(*arguments, bias=True, **options))
    twin = duplicate(layer)
    assert_same_state(twin.state_dict(), layer.state_dict())
    assert repr(twin) == repr(layer)
    x = torch.randn(shape)
    expected = layer(x)
    torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("options", [MANY, {"magnitude": "piecewise", "angular": "piecewise"}])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_reset_parameters_makes_a_layer_as_new(kind, arguments, shape, options):
    torch.manual_seed(3)
    fresh = kind(*arguments, bias=True, **options)
    layer = disturb(kind(*arguments, bias=True, **options))
    torch.manual_seed(3)
    layer.reset_parameters()
    assert_same_state(layer.state_dict(), fresh.state_dict())


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_the_initial_weights_are_those_of_the_torch_twin(kind, arguments, shape):
    torch.manual_seed(3)
    layer = kind(*arguments, bias=True)
    torch.manual_seed(3)
    twin = TWINS[kind](*arguments, bias=True)
    torch.testing.assert_close(layer.weight, twin.weight, rtol=0, atol=0)
    torch.testing.assert_close(layer.bias, twin.bias, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_half_precision_keeps_the_running_norm_in_float32(kind, arguments, shape, dtype):
    layer = kind(*arguments, bias=True)
    layer.running_norm.fill_(1.2345678)
    layer.to(dtype)
    assert layer.raw_radius.dtype == layer.weight.dtype == layer.bias.dtype == dtype
    torch.testing.assert_close(layer.running_norm.squeeze(), torch.tensor(1.2345678), rtol=0, atol=0)
    assert layer(torch.randn(shape, dtype=dtype)).dtype == dtype
    assert layer.running_norm.dtype == torch.float32
    assert layer.float().running_norm.dtype == torch.float32


def test_double_takes_the_running_norm_along():
    layer = DecoupledConv2d(4, 6, 3).double()
    assert layer.running_norm.dtype == layer.raw_radius.dtype == torch.float64
    assert layer.num_batches_tracked.dtype == torch.int64


# -- what others make of a layer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "operator=tanh-cosine, learn=('radius',)"),
        ({"magnitude": "segmented", "beta": 0.3, "angular": "square_cosine"}, "operator=segmented(beta=0.3)-square_cosine"),
        ({"magnitude": "linear", "weighting": "linear"}, "operator=linear-cosine-linear"),
        (
            {"radius_init": 2.0, "radius_per": "layer"},
            "operator=tanh-cosine, learn=('radius',), radius_init=2.0, radius_per=layer",
        ),
    ],
)
def test_repr_shows_what_torch_shows_and_the_operator(options, shown):
    assert repr(DecoupledConv2d(4, 6, 3, 2, 1, **options)).startswith(
        f"DecoupledConv2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False, {shown}"
    )
    assert repr(DecoupledLinear(4, 6, **options)).startswith(
        f"DecoupledLinear(in_features=4, out_features=6, bias=False, {shown}"
    )


@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_a_layer_is_not_of_the_type_that_folders_and_quantisers_look_for(kind, arguments, shape):
    assert not isinstance(kind(*arguments), TWINS[kind])


@pytest.mark.parametrize("freezes", [False, True])
@pytest.mark.parametrize(("kind", "arguments", "shape"), SMALL)
def test_a_symbolic_trace_has_a_layer_as_one_call(kind, arguments, shape, freezes):
    model = nn.Sequential(kind(*arguments), nn.ReLU()).eval()
    model = dcnets.freeze(model) if freezes else model
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    x = torch.randn(*shape)
    assert torch.equal(traced(x), model(x))
    assert torch.equal(traced(input=x), model(x))


def test_a_symbolic_trace_has_the_named_arguments_of_a_layer():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = DecoupledConvTranspose2d(2, 3, 3, stride=2)

        def forward(self, x):
            return self.conv(input=x, output_size=[10, 10])

    model, x = Up().eval(), torch.randn(1, 2, 4, 4)
    traced = torch.fx.symbolic_trace(model)
    assert traced(x).shape == (1, 3, 10, 10)
    assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize("freezes", [False, True])
def test_a_symbolic_trace_has_a_layer_with_its_hooks_as_one_call(freezes):
    model = nn.Sequential(DecoupledConv2d(2, 3, 3)).eval()
    model = dcnets.freeze(model) if freezes else model
    model[0].register_forward_pre_hook(lambda layer, inputs: inputs[0] + 1)
    model[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "output"]
    x = torch.randn(1, 2, 5, 5)
    assert torch.equal(traced(x), model(x))


def test_a_symbolic_trace_has_a_subclass_with_its_forward_as_one_call():
    class Doubled(DecoupledConv2d):
        def forward(self, input):
            return 2 * super().forward(input)

    model, x = nn.Sequential(Doubled(2, 3, 3)).eval(), torch.randn(1, 2, 5, 5)
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "output"]
    assert torch.equal(traced(x), model(x))


def test_the_conv_bn_folder_of_fx_folds_an_ordinary_convolution_and_leaves_ours():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # on import, in torch's own files
        from torch.fx.experimental.optimization import fuse
    layers = [DecoupledConv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5)]
    model = nn.Sequential(*layers)
    for seed in range(3):
        model(torch.randn(4, 4, 7, 7, generator=torch.Generator().manual_seed(seed)) * 3)
    model.eval()
    traced = torch.fx.symbolic_trace(model)
    folded = fuse(traced, no_trace=True)
    kinds = [type(module) for module in folded.modules() if not list(module.children())]
    assert kinds.count(DecoupledConv2d) == kinds.count(nn.Conv2d) == kinds.count(nn.BatchNorm2d) == 1
    x = torch.randn(2, 4, 7, 7)
    torch.testing.assert_close(folded(x), model(x))
    torch.testing.assert_close(folded.get_submodule("0").weight, layers[0].weight, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("training", [True, False])
def test_the_fuser_of_the_quantiser_knows_no_way_to_fuse_ours(training):
    model = nn.Sequential(DecoupledConv2d(4, 6, 3), nn.BatchNorm2d(6)).train(training)
    fuse = torch.ao.quantization.fuse_modules_qat if training else torch.ao.quantization.fuse_modules
    with pytest.raises((AssertionError, NotImplementedError), match="DecoupledConv2d"):
        fuse(model, [["0", "1"]])


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_dynamic_quantisation_takes_the_ordinary_linear_layer_and_leaves_ours():
    model = nn.Sequential(DecoupledLinear(4, 6), nn.Linear(6, 5)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model)
    assert type(quantised[1]) is not nn.Linear
    assert type(quantised[0]) is DecoupledLinear
    assert_same_state(quantised[0].state_dict(), model[0].state_dict())


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_:UserWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max:UserWarning")
def test_static_quantisation_takes_the_ordinary_convolution_and_leaves_ours():
    from torch.ao import quantization

    model = nn.Sequential(DecoupledConv2d(4, 6, 3), nn.Conv2d(6, 5, 3)).eval()
    model.qconfig = quantization.QConfig(
        activation=quantization.MinMaxObserver, weight=quantization.MinMaxObserver.with_args(dtype=torch.qint8)
    )
    prepared = quantization.prepare(model)
    prepared(torch.randn(2, 4, 7, 7))
    converted = quantization.convert(prepared)
    assert type(converted[1]) is not nn.Conv2d
    assert type(converted[0]) is DecoupledConv2d
    assert_same_state(converted[0].state_dict(), model[0].state_dict())


# -- the package -----------------------------------------------------------------------------------------------------


def test_there_are_at_most_twenty_public_names_and_each_exists():
    assert len(dcnets.__all__) == len(set(dcnets.__all__)) <= 20
    for name in dcnets.__all__:
        assert hasattr(dcnets, name), name
    for name in (kind.__name__ for kind in TWINS):
        assert name in dcnets.__all__


def test_importing_all_of_dcnets_loads_torch_and_nothing_else():
    code = (
        "import sys, torch; before = set(sys.modules); from dcnets import *; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))); "
        "print(*(name for name in sys.modules if name.startswith('torch.') and name not in before))"
    )
    shown = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout
    others, torch_parts = shown.splitlines()
    assert others == "dcnets"
    assert torch_parts == ""


def test_importing_dcnets_alone_does_not_wait_for_torch():
    code = "import sys, dcnets; assert 'torch' not in sys.modules; assert dcnets.convert and 'torch' in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="'dcnets' has no attribute 'DecoupledConv4d'"):
        dcnets.DecoupledConv4d  # noqa: B018


def test_the_checkpoint_of_a_pruned_ordinary_layer_loads_into_a_pruned_decoupled_one():
    plain, layer = nn.Conv2d(3, 4, 3), DecoupledConv2d(3, 4, 3, bias=True)
    for module in (plain, layer):
        prune.l1_unstructured(module, "weight", 0.5)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weight_orig, plain.weight_orig)
    assert torch.equal(layer.weight_mask, plain.weight_mask)


def test_layers_with_learned_functions_can_be_made_on_the_meta_device_and_begun_module_by_module():
    options = {"magnitude": "piecewise(init=ball)", "angular": "piecewise(init=sigmoid, monotone=True)"}
    with torch.device("meta"):
        model = nn.Sequential(DecoupledConv2d(3, 4, 3, **options))
    model.to_empty(device="cpu")
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.reset_parameters()
    fresh = DecoupledConv2d(3, 4, 3, **options)
    assert torch.equal(model[0].h.values, fresh.h.values)
    assert torch.equal(model[0].g.values, fresh.g.values)
