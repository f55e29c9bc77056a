"""What PyTorch does to layers: compile, export, torch.func, forward mode, autocast, recomputing, processes, saved bytes."""

import copy
import gc
import os

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import dcnets
from dcnets import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
)
from dcnets.processes import SharedMean

# torch's own rules for forward mode, and inductor, import scripted functions
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

F64 = torch.float64
CONV = (4, 6, 3)
OPERATORS = {
    "tanh-cosine": {},
    "ball-sigmoid": {"magnitude": "ball", "angular": "sigmoid", "learn": ("radius", "k"), "radius_init": 0.9},
    "segmented-linear-linear": {"magnitude": "segmented", "angular": "linear", "weighting": "linear"},
    "mixed-power_cosine-product": {
        "magnitude": "mixed",
        "angular": "power_cosine",
        "weighting": "product",
        "learn": ("alpha", "beta", "p"),
    },
    "tanh-square_cosine-separate": {"angular": "square_cosine", "weighting": "separate", "learn": ("radius", "alpha")},
    "absolute": {"magnitude": "tanh", "radius": "absolute", "radius_init": 5.0, "radius_per": "layer"},
    "sphere-relu_cosine": {"magnitude": "sphere", "angular": "relu_cosine"},
    "piecewise": {"magnitude": "piecewise", "angular": "piecewise"},
    "inner_product": {"magnitude": "inner_product"},
}
SMOOTH = {name: OPERATORS[name] for name in ("tanh-cosine", "tanh-square_cosine-separate", "mixed-power_cosine-product")}
KINDS = [
    pytest.param(lambda **options: DecoupledConv1d(4, 6, 3, 2, 1, **options), (3, 4, 7), id="conv1d"),
    pytest.param(lambda **options: DecoupledConv2d(4, 6, 3, 1, "same", groups=2, **options), (3, 4, 5, 6), id="conv2d"),
    pytest.param(lambda **options: DecoupledConv3d(4, 6, 2, **options), (3, 4, 4, 3, 3), id="conv3d"),
    pytest.param(lambda **options: DecoupledConvTranspose2d(4, 6, 3, 2, 1, 1, **options), (3, 4, 3, 4), id="transpose2d"),
    pytest.param(lambda **options: DecoupledLinear(4, 6, **options), (3, 5, 4), id="linear"),
]


def by_operator(operators=OPERATORS):
    return pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in operators.items()])


def numbers(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def trained(layer):
    """One step of training, so that the statistics are some batch's; then evaluation."""
    layer.train()(numbers(3, 4, 5, 6, seed=9, dtype=layer.weight.dtype) * 2)
    return layer.eval()


def step(layer, call, x, target):
    """Output, gradients by name, and buffers after one training step."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = call(x)
    (y * target).sum().backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}


def assert_all_close(actual, expected, **tolerance):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def along(function, point, direction, width=1e-6):
    """The directional derivative by central differences."""
    return (function(point + width * direction) - function(point - width * direction)) / (2 * width)


# -- compile and export ----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("training", [True, False])
@by_operator()
def test_a_compiled_layer_is_one_graph_and_equals_the_eager_one(options, training):
    eager = DecoupledConv2d(*CONV, padding=1, groups=2, bias=True, dtype=F64, **options).train(training)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    target = numbers(3, 6, 5, 6, seed=1)
    for seed in (2, 3):  # the second step measures that the statistics of the first were kept
        x = numbers(3, 4, 5, 6, seed=seed)
        assert_all_close(step(layer, compiled, x, target), step(eager, eager, x, target), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_every_layer_compiles_to_one_graph(make, shape):
    eager = make(bias=True, dtype=F64)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = numbers(*shape)
    target = numbers(*copy.deepcopy(eager)(x).shape, seed=1)
    assert_all_close(step(layer, compiled, x, target), step(eager, eager, x, target), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_takes_another_batch_size_and_an_empty_batch():
    layer = DecoupledConv2d(*CONV, dtype=F64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    reference = copy.deepcopy(layer)
    for batch in (4, 7, 1, 0, 5):
        x = numbers(batch, 4, 5, 6, seed=batch)
        torch.testing.assert_close(compiled(x), reference(x), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(layer.running_norm, reference.running_norm, rtol=1e-12, atol=0)
        assert layer.num_batches_tracked == reference.num_batches_tracked


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_keeps_channels_last():
    layer = DecoupledConv2d(*CONV, padding=1)
    x = numbers(3, 4, 5, 6, dtype=torch.float32).to(memory_format=torch.channels_last)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_under_autocast_equals_the_eager_one():
    layer = DecoupledConv2d(*CONV, padding=1, bias=True)
    x = numbers(3, 4, 5, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
        y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected)


@pytest.mark.usefixtures("fresh_compiler")
def test_inductor_gives_the_same_step_as_eager():
    eager = DecoupledConv2d(*CONV, padding=1, bias=True, magnitude="ball", radius_init=0.9)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True)
    x, target = numbers(3, 4, 5, 6, dtype=torch.float32), numbers(3, 6, 5, 6, seed=1, dtype=torch.float32)
    assert_all_close(step(layer, compiled, x, target), step(eager, eager, x, target), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_an_exported_layer_takes_any_batch(make, shape):
    layer = make(bias=True, dtype=F64, magnitude="segmented", angular="linear")
    layer(numbers(*shape, seed=5))
    layer.eval()
    exported = torch.export.export(layer, (numbers(*shape),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for batch in (2, 3, 11):
        x = numbers(batch, *shape[1:], seed=batch)
        torch.testing.assert_close(exported.module()(x), layer(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(3, 2, 1, 1), (1, 2, 0, 1), (2, 3, 0, 2)])
def test_an_exported_layer_with_a_stride_takes_images_of_any_size(kernel, stride, padding, dilation):
    layer = DecoupledConv2d(4, 6, kernel, stride, padding, dilation, dtype=F64).eval()
    sizes = {2: torch.export.Dim("height", min=6, max=64), 3: torch.export.Dim("width", min=6, max=64)}
    exported = torch.export.export(layer, (numbers(3, 4, 18, 16),), dynamic_shapes=(sizes,)).module()
    for height, width in ((19, 21), (6, 16), (7, 8)):
        x = numbers(3, 4, height, width)
        torch.testing.assert_close(exported(x), layer(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("extra", [0, 1])
def test_an_exported_transposed_layer_takes_images_of_any_size(extra):
    layer = DecoupledConvTranspose2d(4, 6, 3, 2, 1, extra, dtype=F64).eval()
    sizes = {2: torch.export.Dim("height", min=2, max=64), 3: torch.export.Dim("width", min=2, max=64)}
    exported = torch.export.export(layer, (numbers(3, 4, 8, 7),), dynamic_shapes=(sizes,)).module()
    for height, width in ((9, 11), (2, 6)):
        x = numbers(3, 4, height, width)
        torch.testing.assert_close(exported(x), layer(x), rtol=1e-11, atol=1e-11)


@by_operator()
def test_every_operator_is_exported(options):
    layer = trained(DecoupledConv2d(*CONV, dtype=F64, **options))
    exported = torch.export.export(layer, (numbers(3, 4, 5, 6),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    x = numbers(8, 4, 5, 6, seed=1)
    torch.testing.assert_close(exported.module()(x), layer(x), rtol=1e-11, atol=1e-11)


def test_an_exported_training_step_updates_the_running_norm():
    layer = DecoupledConv2d(*CONV, dtype=F64)
    exported = torch.export.export(copy.deepcopy(layer), (numbers(3, 4, 5, 6),)).module()
    x = numbers(3, 4, 5, 6, seed=1)
    torch.testing.assert_close(exported(x), layer(x), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(exported.running_norm, layer.running_norm, rtol=1e-12, atol=0)


# -- torch.func and forward mode -------------------------------------------------------------------------------------


@by_operator()
def test_vmap_in_evaluation_is_a_loop(options):
    layer = trained(DecoupledConv2d(*CONV, bias=True, dtype=F64, **options))
    x = numbers(3, 2, 4, 5, 6)
    torch.testing.assert_close(vmap(layer)(x), torch.stack([layer(each) for each in x]), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_vmap_over_every_layer_is_a_loop_whatever_dimension_is_mapped(make, shape):
    layer = make(bias=True, dtype=F64).eval()
    x = numbers(*shape, 2)
    expected = torch.stack([layer(each) for each in x.unbind(-1)])
    torch.testing.assert_close(vmap(layer, in_dims=-1)(x), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("freezes", [False, True])
def test_vmap_over_every_padding_mode_is_a_loop(mode, freezes):
    layer = DecoupledConv2d(4, 6, 3, padding=1, padding_mode=mode, dtype=F64).eval()
    layer = dcnets.freeze(layer) if freezes else layer
    x = numbers(3, 2, 4, 5, 6)
    torch.testing.assert_close(vmap(layer)(x), torch.stack([layer(each) for each in x]), rtol=1e-11, atol=1e-11)


def test_vmap_in_training_works_with_an_absolute_radius():
    layer = DecoupledConv2d(*CONV, dtype=F64, magnitude="ball", radius="absolute", radius_init=6.0).train()
    x = numbers(3, 2, 4, 5, 6)
    torch.testing.assert_close(vmap(layer)(x), torch.stack([layer(each) for each in x]), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_vmap_over_a_relative_layer_in_training_is_refused_and_says_what_to_do(make, shape):
    layer = make(dtype=F64)
    before = layer.running_norm.clone()
    with pytest.raises(
        RuntimeError, match=r"vmap over Decoupled\w+ in training: .*call eval\(\) first, or use radius='absolute'"
    ):
        vmap(layer)(numbers(2, *shape))
    with pytest.raises(RuntimeError, match="vmap over"):
        vmap(grad(lambda x: layer(x).sum()))(numbers(2, *shape))
    torch.testing.assert_close(layer.running_norm, before, rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
@by_operator()
def test_torch_func_grad_equals_autograd_in_training_and_evaluation(options, training):
    layer = trained(DecoupledConv2d(*CONV, bias=True, dtype=F64, **options)).train(training)
    x, target = numbers(3, 4, 5, 6), numbers(3, 6, 3, 4, seed=1)
    buffers = copy.deepcopy(dict(layer.named_buffers()))

    def loss(parameters, x):
        return (functional_call(layer, parameters, (x,)) * target).sum()

    by_name, of_x = grad(loss, argnums=(0, 1))(dict(layer.named_parameters()), x)
    assert_all_close(dict(layer.named_buffers()), buffers, rtol=0, atol=0)  # a pure function leaves them alone
    expected = step(layer, layer, x, target)
    torch.testing.assert_close(of_x, expected["x"], rtol=1e-9, atol=1e-10)
    for name, gradient in by_name.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-10, msg=name)


@by_operator()
def test_gradients_per_sample_equal_a_loop_over_samples(options):
    layer = trained(DecoupledConv2d(*CONV, bias=True, dtype=F64, **options))
    x, target = numbers(3, 4, 5, 6), numbers(3, 6, 3, 4, seed=1)

    def loss(parameters, sample, wanted):
        return (functional_call(layer, parameters, (sample,)) * wanted).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0))(dict(layer.named_parameters()), x, target)
    for index in range(3):
        expected = step(layer, layer, x[index], target[index])
        for name, gradient in each.items():
            torch.testing.assert_close(gradient[index], expected[name], rtol=1e-9, atol=1e-10, msg=name)


def test_gradients_per_sample_work_in_training_with_an_absolute_radius():
    layer = DecoupledLinear(4, 6, dtype=F64, radius="absolute", radius_init=2.0).train()
    x = numbers(3, 4)

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)
    total = {name: gradient.sum(0) for name, gradient in each.items()}
    layer(x).square().sum().backward()
    assert_all_close(total, {name: p.grad for name, p in layer.named_parameters()}, rtol=1e-10, atol=1e-12)


def test_an_ensemble_is_vmap_over_stacked_layers():
    layers = [
        trained(DecoupledConv2d(*CONV, bias=True, dtype=F64, magnitude="ball", angular="sigmoid", learn=("radius", "k")))
        for _ in range(3)
    ]
    for index, layer in enumerate(layers):
        layer.running_norm.mul_(1 + index)
    parameters, buffers = stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")
    x = numbers(2, 4, 5, 6)
    together = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([layer(x) for layer in layers]), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("training", [True, False])
@by_operator()
def test_jvp_equals_finite_differences_in_the_input(options, training):
    layer = trained(DecoupledConv2d(*CONV, dtype=F64, **options)).train(training)
    x, direction = numbers(2, 4, 5, 6), numbers(2, 4, 5, 6, seed=1)
    y, tangent = jvp(layer, (x,), (direction,))
    with torch.no_grad():
        torch.testing.assert_close(y, layer(x), rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(tangent, along(layer, x, direction), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("training", [True, False])
@by_operator()
def test_dual_numbers_equal_finite_differences_in_every_parameter(options, training):
    layer = trained(DecoupledConv2d(*CONV, bias=True, dtype=F64, **options)).train(training)
    x = numbers(2, 4, 5, 6)
    for seed, (name, parameter) in enumerate(layer.named_parameters()):
        point, direction = parameter.detach(), numbers(*parameter.shape, seed=seed)
        call = lambda value, name=name: functional_call(layer, {name: value}, (x,))
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(call(forward_ad.make_dual(point, direction))).tangent
        with torch.no_grad():
            torch.testing.assert_close(tangent, along(call, point, direction), rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_dual_numbers_go_through_every_layer(make, shape, training):
    layer = make(dtype=F64).train(training)
    x, direction = numbers(*shape), numbers(*shape, seed=1)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, direction))).tangent
    with torch.no_grad():
        torch.testing.assert_close(tangent, along(layer, x, direction), rtol=1e-6, atol=1e-7)


@by_operator(SMOOTH)
def test_the_jacobian_and_the_hessian_equal_finite_differences(options):
    layer = DecoupledLinear(3, 2, dtype=F64, **options).eval()
    x, target = numbers(3), numbers(2, seed=1)

    def loss(x):
        return (layer(x) * target).sum()

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(loss(x), x)[0]

    with torch.no_grad():
        by_column = torch.stack([along(layer, x, direction) for direction in torch.eye(3, dtype=F64)], 1)
    torch.testing.assert_close(jacrev(layer)(x), by_column, rtol=1e-7, atol=1e-8)
    columns = torch.stack([along(gradient, x, direction) for direction in torch.eye(3, dtype=F64)], 1)
    torch.testing.assert_close(hessian(loss)(x), columns, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("training", [True, False])
@by_operator()
def test_a_gradient_penalty_trains_like_the_plain_formula(options, training):
    layer = trained(DecoupledConv2d(*CONV, bias=True, dtype=F64, **options)).train(training)
    found = []
    for path in ("auto", "reference"):
        layer.zero_grad()
        x = numbers(2, 4, 5, 6).requires_grad_()
        with dcnets.functional.backend(path):
            y = layer(x)
            (slope,) = torch.autograd.grad((y * numbers(*y.shape, seed=1)).sum(), x, create_graph=True)
            (y.square().mean() + slope.square().sum()).backward()
        found.append({"x": x.grad, **{name: parameter.grad for name, parameter in layer.named_parameters()}})
    assert_all_close(*found, rtol=1e-8, atol=1e-9)
    if options.get("magnitude") != "inner_product":
        assert found[0]["x"].abs().max() > 0


def test_a_gradient_penalty_equals_finite_differences():
    layer = DecoupledConv2d(*CONV, dtype=F64)
    target = numbers(2, 6, 3, 4, seed=1)

    def penalty(x):
        (slope,) = torch.autograd.grad((layer(x) * target).sum(), x, create_graph=True)
        return slope.square().sum()

    x, direction = numbers(2, 4, 5, 6).requires_grad_(), numbers(2, 4, 5, 6, seed=2)
    (gradient,) = torch.autograd.grad(penalty(x), x)
    torch.testing.assert_close((gradient * direction).sum(), along(penalty, x, direction), rtol=1e-6, atol=0)


@by_operator()
def test_checkpointing_recomputes_the_same_gradients(options):
    layer = DecoupledConv2d(*CONV, bias=True, dtype=F64, **options)
    kept = copy.deepcopy(layer)
    x, target = numbers(2, 4, 5, 6), numbers(2, 6, 3, 4, seed=1)
    found = step(layer, lambda x: checkpoint(layer, x, use_reentrant=False), x, target)
    expected = step(kept, kept, x, target)
    for name in ("running_norm", "num_batches_tracked"):  # the same batch is seen twice, as batch norm sees it
        found.pop(name, None)
        expected.pop(name, None)
    assert_all_close(found, expected, rtol=0, atol=0)


# -- autocast and number formats -------------------------------------------------------------------------------------

UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def rounded_truth(layer, x, dtype):
    """What the layer gives in float64 for the rounded x, and the mean norm of its patches."""
    exact = copy.deepcopy(layer).double()
    with torch.no_grad():
        return exact(x.to(dtype).double()), getattr(exact, "running_norm", None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
@by_operator()
def test_autocast_is_within_the_rounding_of_the_format(options, training, dtype):
    layer = DecoupledConv2d(8, 6, 3, padding=1, bias=True, **options).train(training)
    x = numbers(3, 8, 5, 6, dtype=torch.float32)
    truth, mean_norm = rounded_truth(layer, x, dtype)
    with torch.autocast("cpu", dtype):
        y = layer(x)
        assert y.dtype == nn.Conv2d(8, 6, 3)(x).dtype == dtype
    # ŵ, z and y are rounded once each; none is larger than the patch norm allows
    scale = truth.abs().max().item()
    torch.testing.assert_close(y.double(), truth, rtol=0, atol=4 * UNIT[dtype] * max(scale, 1.0))
    if training and hasattr(layer, "running_norm"):
        torch.testing.assert_close(layer.running_norm.double(), mean_norm, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("make", "shape"), KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_gradients_in_the_dtypes_of_their_tensors(make, shape, dtype):
    layer = make(bias=True, magnitude="segmented", angular="sigmoid", learn=("radius", "alpha", "beta", "k"))
    for kind in (torch.float32, dtype):
        layer.zero_grad()
        x = numbers(*shape, dtype=torch.float32).to(kind).requires_grad_()
        with torch.autocast("cpu", dtype):
            y = layer(x)
        assert y.dtype == dtype
        y.float().square().sum().backward()
        assert x.grad.dtype == kind
        assert x.grad.isfinite().all()
        for name, parameter in layer.named_parameters():
            assert parameter.grad.dtype == torch.float32, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@by_operator()
def test_autocast_gradients_are_within_the_rounding_of_the_format(options, dtype):
    layer = DecoupledConv2d(8, 6, 3, padding=1, bias=True, **options)
    exact = copy.deepcopy(layer).double()
    x, target = numbers(3, 8, 5, 6).to(dtype), numbers(3, 6, 5, 6, seed=1).to(dtype)

    def under_autocast(x):
        with torch.autocast("cpu", dtype):
            return layer(x)

    found = step(layer, under_autocast, x.float(), target)
    expected = step(exact, exact, x.double(), target.double())
    for name in ("x", *dict(layer.named_parameters())):
        scale = expected[name].abs().max().item()
        torch.testing.assert_close(found[name].double(), expected[name], rtol=0, atol=16 * UNIT[dtype] * scale, msg=name)


@pytest.mark.parametrize("under_autocast", [True, False])
@by_operator()
def test_half_precision_inputs_of_two_hundred_do_not_overflow(options, under_autocast):
    layer = DecoupledConv2d(8, 6, 3, bias=True, **options)
    x = numbers(2, 8, 5, 6).sign().half() * 200
    truth, mean_norm = rounded_truth(layer, x, torch.float16)
    if not under_autocast:
        layer.half()
        truth, mean_norm = rounded_truth(layer, x, torch.float16)
    x.requires_grad_()
    with torch.autocast("cpu", torch.float16, enabled=under_autocast):
        y = layer(x)
    assert y.dtype == torch.float16
    assert y.isfinite().all()
    scale = truth.abs().max().item()
    torch.testing.assert_close(y.double(), truth, rtol=0, atol=4 * UNIT[torch.float16] * max(scale, 1.0))
    if hasattr(layer, "running_norm"):
        torch.testing.assert_close(layer.running_norm.double(), mean_norm, rtol=1e-6, atol=0)
    (y.float() / y.numel()).sum().backward()
    assert x.grad.isfinite().all()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_autocast_leaves_float64_alone():
    layer = DecoupledConv2d(*CONV, dtype=F64)
    x = numbers(2, 4, 5, 6)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


def test_float32_is_within_its_rounding_of_float64():
    layer = DecoupledConv2d(*CONV, bias=True)
    x = numbers(2, 4, 5, 6, dtype=torch.float32)
    torch.testing.assert_close(layer(x).double(), layer.double()(x.double()), rtol=1e-5, atol=1e-6)


# -- processes -------------------------------------------------------------------------------------------------------

SHARES = {"equal": (4, 4), "unequal": (5, 2), "one empty": (3, 0)}


def batch_of(total):
    return numbers(total, 4, 5, 6) * torch.linspace(0.5, 4, total, dtype=F64).view(-1, 1, 1, 1)


def model_of(sync):
    """Two layers, so that a gradient passes through the second one's mean norm."""
    torch.manual_seed(5)
    layers = [DecoupledConv2d(4, 5, 3, padding=1, sync=sync), DecoupledConv2d(5, 3, 3, magnitude="ball", sync=sync)]
    return nn.Sequential(*layers).double()


def loss_of(y):
    return (y * numbers(3, 3, 4, seed=8)).square().sum() + y.sum()


def second_derivative(x):
    """Of m³, m being the mean norm of all processes' batches: d/ds of d(m³)/ds, in the direction of x itself."""
    stretch = torch.ones((), dtype=F64, requires_grad=True)
    n = (x * stretch).square().sum(1).sqrt()
    (first,) = torch.autograd.grad(SharedMean()(n) ** 3, stretch, create_graph=True)
    return torch.autograd.grad(first, stretch)[0]


def work(rank, folder):
    """One of two processes: a training step for each way of sharing; what came out goes into a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    found = {}
    for sync in (False, True):
        for name, shares in SHARES.items():
            if name == "one empty" and not sync:
                continue
            model = DistributedDataParallel(model_of(sync))
            x = batch_of(sum(shares)).split(shares)[rank].clone().requires_grad_()
            y = model(x)
            loss_of(y).backward()
            if sync and name == "equal":
                found["second"] = second_derivative(batch_of(sum(shares)).split(shares)[rank])
            found[sync, name] = {
                "y": y.detach(),
                "x": x.grad,
                "parameters": {key: p.grad for key, p in model.module.named_parameters()},
                "buffers": dict(model.module.named_buffers()),
            }
    torch.save(found, f"{folder}/{rank}.pt")
    del model
    gc.collect()  # wrapped models go before the group that they hold on to, and both processes leave it together
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # as the command does: threads of torch's own may abort a process that takes its time to end


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def alone(x):
    """A training step of one process: the gradients are those of the sum of losses."""
    model = model_of(False)
    x = x.clone().requires_grad_()
    y = model(x)
    loss_of(y).backward()
    return model, y.detach(), x.grad


@pytest.mark.parametrize("name", ["equal", "unequal"])
def test_each_process_uses_its_own_mean_norm_and_gradients_are_averaged(processes, name):
    parts = batch_of(sum(SHARES[name])).split(SHARES[name])
    models = []
    for x, found in zip(parts, processes, strict=True):
        model, y, of_x = alone(x)
        models.append(model)
        torch.testing.assert_close(found[False, name]["y"], y, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[False, name]["x"], of_x, rtol=1e-9, atol=1e-11)
        assert_all_close(found[False, name]["buffers"], dict(model.named_buffers()), rtol=1e-10, atol=1e-12)
    first, second = (dict(model.named_parameters()) for model in models)
    mean = {key: (first[key].grad + second[key].grad) / 2 for key in first}
    for found in processes:
        assert_all_close(found[False, name]["parameters"], mean, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SHARES)
def test_sync_gives_outputs_and_gradients_of_one_process_with_the_whole_batch(processes, name):
    shares = SHARES[name]
    model, y, of_x = alone(batch_of(sum(shares)))
    mean = {key: parameter.grad / 2 for key, parameter in model.named_parameters()}
    for found, part, of_part in zip(processes, y.split(shares), of_x.split(shares), strict=True):
        torch.testing.assert_close(found[True, name]["y"], part, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[True, name]["x"], of_part, rtol=1e-9, atol=1e-11)
        assert_all_close(found[True, name]["parameters"], mean, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SHARES)
def test_sync_gives_the_running_norm_of_one_process_with_the_whole_batch(processes, name):
    model, _, _ = alone(batch_of(sum(SHARES[name])))
    for found in processes:
        assert_all_close(found[True, name]["buffers"], dict(model.named_buffers()), rtol=1e-10, atol=1e-12)


def test_the_shared_mean_has_second_derivatives(processes):
    mean = batch_of(sum(SHARES["equal"])).square().sum(1).sqrt().mean()
    # both processes have the loss m³, where m = Σ sᵣAᵣ: the second derivatives of their sum add up to 2·6·m·(ΣAᵣ)²
    total = sum(found["second"] for found in processes)
    torch.testing.assert_close(total, 12 * mean**3, rtol=1e-9, atol=0)


def test_sync_without_processes_is_an_ordinary_layer():
    x = batch_of(4)
    torch.testing.assert_close(model_of(True)(x), model_of(False)(x), rtol=0, atol=0)


# -- bytes saved for backward ----------------------------------------------------------------------------------------


def bytes_saved(layer, x):
    """Bytes of the distinct storages that a forward pass keeps for its backward pass."""
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    total = sum(storages.values())
    assert y.requires_grad  # and lives until here, so that no storage was freed and counted under another's address
    return total


@pytest.mark.parametrize("angular", ["cosine", "square_cosine", "relu_cosine", "linear", "sigmoid"])
@pytest.mark.parametrize("magnitude", ["sphere", "ball", "linear", "segmented", "tanh", "log", "mixed"])
def test_a_layer_saves_hardly_more_than_its_input_and_its_output(magnitude, angular):
    x = torch.zeros(8, 64, 32, 32, requires_grad=True)
    plain = bytes_saved(nn.Conv2d(64, 64, 3, padding=1, bias=False), x)
    assert plain >= x.nbytes
    ours = bytes_saved(DecoupledConv2d(64, 64, 3, padding=1, magnitude=magnitude, angular=angular), x)
    assert ours <= 2.05 * plain


# -- tracers ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", [DecoupledConv2d, DecoupledLinear])
def test_a_trace_answers_to_batches_of_another_size(kind):
    layer, shape = (
        (DecoupledConv2d(4, 6, 3).eval(), (4, 5, 6)) if kind is DecoupledConv2d else (DecoupledLinear(4, 6).eval(), (4,))
    )
    trace = torch.jit.trace(layer, torch.randn(2, *shape))
    x = torch.randn(3, *shape)
    torch.testing.assert_close(trace(x), layer(x))


def test_make_fx_writes_down_the_plain_formula():
    layer, x = DecoupledConv2d(4, 6, 3).eval(), torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(make_fx(layer)(x)(x), layer(x))
