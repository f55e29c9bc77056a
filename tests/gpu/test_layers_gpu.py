"""The layers on a CUDA device, against the plain formula on the CPU in float64."""

import copy

import pytest
import torch
from torch import nn

import dcnets
from dcnets import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # inductor imports scripted functions
    pytest.mark.filterwarnings("ignore:.*has no Triton twin:UserWarning"),  # compositions and modules take torch's path
    pytest.mark.filterwarnings("ignore:.*eterministic:UserWarning"),  # some of torch's padding has no such backward pass
]

TOLERANCE = {  # of the largest element: what is rounded is ŵ, z, and the output or gradient
    torch.float32: 2e-5,
    torch.bfloat16: 16 * 2.0**-8,
    torch.float16: 16 * 2.0**-11,
}
MAGNITUDES = (
    "sphere",
    "ball",
    "tanh",
    "linear",
    "segmented",
    "log",
    "mixed",
    "inner_product",
    "tanh+0.5*linear",
    "piecewise",
)
ANGULARS = ("linear", "cosine", "sigmoid", "square_cosine", "power_cosine", "relu_cosine", "piecewise")
WEIGHTINGS = ("linear", "product", "separate")
KINDS = [
    pytest.param(lambda **options: DecoupledConv1d(4, 6, 3, 2, 1, **options), (3, 4, 9), id="conv1d"),
    pytest.param(lambda **options: DecoupledConv2d(4, 6, 3, 1, "same", groups=2, **options), (3, 4, 7, 6), id="conv2d"),
    pytest.param(lambda **options: DecoupledConv3d(4, 6, 2, **options), (3, 4, 4, 3, 5), id="conv3d"),
    pytest.param(lambda **options: DecoupledConvTranspose2d(4, 6, 3, 2, 1, 1, **options), (3, 4, 3, 4), id="transpose2d"),
    pytest.param(lambda **options: DecoupledLinear(4, 6, **options), (3, 5, 4), id="linear"),
]


@pytest.fixture(autouse=True)
def exact_float32():
    """Float32 is float32: no TF32 in convolutions and matrix products. What torch cannot do deterministically may run."""
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=True)
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision = before


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learned(options):
    """The options with every value learned that the operator has."""
    operator = dcnets.Operator(**options)
    takes = {"rho": "radius"}
    names = [takes.get(name, name) for name in (*operator.h.parameters, *operator.g.parameters) if name != "weight_norm"]
    return {**options, "learn": tuple(sorted({"alpha", *names}))}


def step(layer, x, target):
    """Output, gradients by name, and buffers after one training step."""
    layer.zero_grad()
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    y.backward(target.to(y.dtype))
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}


def truth_of(layer, x, target):
    """The same step by the plain formula, on the CPU in float64."""
    exact = copy.deepcopy(layer).cpu().double()
    with dcnets.functional.backend("reference"):
        return step(exact, x.detach().cpu().double(), target.detach().cpu().double())


def assert_close_to_truth(found, truth, tolerance):
    assert found.keys() == truth.keys()
    for name, expected in truth.items():
        scale = max(expected.abs().max().item(), 1e-3)
        actual = found[name].cpu().to(expected.dtype)
        assert found[name].is_cuda, name
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=tolerance * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("angular", ANGULARS)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_every_operator_and_its_gradients_equal_the_float64_truth(magnitude, angular):
    layer = DecoupledConv2d(4, 6, 3, padding=1, bias=True, **learned({"magnitude": magnitude, "angular": angular}))
    x, target = numbers(3, 4, 7, 6).float(), numbers(3, 6, 7, 6, seed=1).float()
    truth = truth_of(layer, x, target)
    assert_close_to_truth(step(layer.cuda(), x.cuda(), target.cuda()), truth, TOLERANCE[torch.float32])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("magnitude", ["ball", "tanh", "linear", "segmented", "log", "mixed"])
def test_every_weighting_equals_the_float64_truth(magnitude, weighting):
    options = learned({"magnitude": magnitude, "weighting": weighting, "angular": "square_cosine"})
    layer = DecoupledConv2d(4, 6, 3, groups=2, **options)
    x, target = numbers(3, 4, 7, 6).float(), numbers(3, 6, 5, 4, seed=1).float()
    truth = truth_of(layer, x, target)
    assert_close_to_truth(step(layer.cuda(), x.cuda(), target.cuda()), truth, TOLERANCE[torch.float32])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_every_layer_equals_the_float64_truth_in_training_and_evaluation(make, shape, training):
    layer = make(bias=True, magnitude="segmented", angular="sigmoid", learn=("radius", "alpha", "beta", "k")).train(training)
    x = numbers(*shape).float()
    target = numbers(*copy.deepcopy(layer)(x).shape, seed=1).float()
    truth = truth_of(layer, x, target)
    assert_close_to_truth(step(layer.cuda(), x.cuda(), target.cuda()), truth, TOLERANCE[torch.float32])


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_every_padding_mode_equals_the_float64_truth(mode):
    layer = DecoupledConv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), 2, True, mode)
    x = numbers(3, 4, 7, 6).float()
    target = numbers(*copy.deepcopy(layer)(x).shape, seed=1).float()
    truth = truth_of(layer, x, target)
    assert_close_to_truth(step(layer.cuda(), x.cuda(), target.cuda()), truth, TOLERANCE[torch.float32])


def test_a_layer_can_be_built_on_the_device():
    layer = DecoupledConv2d(4, 6, 3, device="cuda")
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"cuda"}
    layer.load_state_dict(nn.Conv2d(4, 6, 3, bias=False).state_dict())
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"cuda"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("magnitude", ["sphere", "ball", "tanh", "linear", "segmented", "log", "mixed", "inner_product"])
def test_autocast_is_within_the_rounding_of_the_format(magnitude, dtype):
    layer = DecoupledConv2d(16, 8, 3, padding=1, bias=True, magnitude=magnitude)
    x, target = numbers(3, 16, 8, 8).to(dtype), numbers(3, 8, 8, 8, seed=1).to(dtype)
    truth = truth_of(layer, x, target)
    layer.cuda()
    with torch.autocast("cuda", dtype):
        found = step(layer, x.cuda().float(), target.cuda())
        assert found["y"].dtype == nn.Conv2d(16, 8, 3).cuda()(x.cuda()).dtype == dtype
    for name, parameter in layer.named_parameters():
        assert parameter.grad.dtype == torch.float32, name
    if "running_norm" in found:  # norms are float32 throughout
        torch.testing.assert_close(found["running_norm"].cpu().double(), truth["running_norm"], rtol=1e-5, atol=0)
    assert_close_to_truth(found, truth, TOLERANCE[dtype])


def test_half_precision_inputs_of_two_hundred_do_not_overflow():
    layer = DecoupledConv2d(16, 8, 3, padding=1).cuda()
    x = numbers(2, 16, 8, 8).sign().half().cuda() * 200
    with torch.autocast("cuda", torch.float16):
        found = step(layer, x, torch.full((2, 8, 8, 8), 0.01, device="cuda"))
    for name, tensor in found.items():
        assert tensor.isfinite().all(), name
    assert found["running_norm"] > 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_last_goes_in_and_comes_out(dtype):
    layer = DecoupledConv2d(16, 8, 3, padding=1, bias=True).cuda()
    x = numbers(3, 16, 8, 8).to(dtype).cuda()
    target = numbers(3, 8, 8, 8, seed=1).to(dtype).cuda()
    truth = truth_of(layer, x, target)
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        found = step(layer, x.to(memory_format=torch.channels_last), target.to(memory_format=torch.channels_last))
    assert found["y"].is_contiguous(memory_format=torch.channels_last)
    assert_close_to_truth(found, truth, TOLERANCE[dtype])


@pytest.mark.parametrize("magnitude", ["tanh", "ball", "segmented"])
def test_a_training_step_with_its_running_norm_lives_in_a_cuda_graph(magnitude):
    layer = DecoupledConv2d(4, 6, 3, padding=1, bias=True, magnitude=magnitude).cuda()
    eager = copy.deepcopy(layer)
    batches = [numbers(3, 4, 7, 6, seed=seed).float().cuda() * (1 + seed) for seed in range(5)]
    target = numbers(3, 6, 7, 6, seed=9).float().cuda()
    x = batches[0].clone()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up, as capturing asks for; the statistics are put back below
        for _ in range(3):
            layer.zero_grad(set_to_none=True)
            layer(x).backward(target)
    torch.cuda.current_stream().wait_stream(side)
    layer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
        y.backward(target)
    layer.load_state_dict(eager.state_dict())

    for count, batch in enumerate(batches, start=1):
        x.copy_(batch)
        graph.replay()
        eager.zero_grad()
        expected = eager(batch)
        expected.backward(target)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer.running_norm, eager.running_norm)
        assert layer.num_batches_tracked == eager.num_batches_tracked == count
        for (name, parameter), other in zip(layer.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-4, msg=name)


def test_neither_evaluation_nor_training_waits_for_the_device(no_waiting):
    """The host can run ahead: nothing on the way reads a number back."""
    layer = DecoupledConv2d(4, 6, 3).cuda().eval()
    x = numbers(3, 4, 7, 6).float().cuda()
    layer(x)
    with no_waiting():
        layer(x)
        layer.train()(x).sum().backward()


def test_inductor_gives_the_same_step_as_eager():
    torch._dynamo.reset()
    layer = DecoupledConv2d(4, 6, 3, padding=1, bias=True, magnitude="ball", radius_init=0.9)
    x, target = numbers(3, 4, 7, 6).float(), numbers(3, 6, 7, 6, seed=1).float()
    truth = truth_of(layer, x, target)
    layer.cuda()
    compiled = torch.compile(layer, fullgraph=True)
    x = x.cuda().requires_grad_()
    y = compiled(x)
    y.backward(target.cuda())
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    found = {"y": y.detach(), "x": x.grad, **gradients, **dict(layer.named_buffers())}
    assert_close_to_truth(found, truth, TOLERANCE[torch.float32])
