"""The Triton programs on a GPU, against the float64 definition."""

import contextlib
import copy
import functools
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from decisions import recorded, taken_over
from fused_cases import (
    CANCELLED,
    ERRORS,
    LAYERS,
    assert_close,
    conv_block,
    errors,
    far_from,
    gradients,
    layer_of,
    operators,
    results,
    small_network,
    unit_of,
)

import dcnets
from dcnets import functional, models
from dcnets.fusing import fuse

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # float32 is compared here
    pytest.mark.filterwarnings("ignore:Online softmax is disabled:UserWarning"),
]
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _full_precision():
    """Products in float32 as they are written, for the comparison with float64."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("text", list(operators()))
def test_every_operator_and_each_of_its_gradients(text):
    x = 0.7 * torch.randn(2, 4, 5, 6, device=DEVICE)
    found = errors(layer_of(text).to(DEVICE), x.to(memory_format=torch.channels_last))
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_in_every_precision(name, training, dtype):
    layer, shape = LAYERS[name]()
    found = errors(layer.to(DEVICE, dtype).train(training), torch.randn(shape, device=DEVICE).to(dtype))
    assert max(found.values()) < ERRORS[dtype], found


def test_repeated_runs_are_the_same_to_the_bit():
    layer, x = layer_of("tanh-sigmoid-product").to(DEVICE).eval(), torch.randn(64, 4, 33, 31, device=DEVICE)
    one, two = (gradients(layer, x, "fused")["raw_radius"] for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_block_is_its_sequence(dtype):
    layer = dcnets.DecoupledConv2d(16, 24, 3, padding=1, magnitude="segmented")
    plain = nn.Sequential(layer, nn.BatchNorm2d(24), nn.ReLU()).to(DEVICE)
    fused = fuse(nn.Sequential(copy.deepcopy(plain)))[0]
    x = torch.randn(32, 16, 15, 17, device=DEVICE).to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        found, wanted = gradients(fused, x, "fused"), gradients(plain, x, "reference")
    for name, value in wanted.items():
        error = (found[name].double() - value.double()).abs().max() / value.double().abs().max()
        assert error < (CANCELLED if dtype is torch.float32 else ERRORS[dtype]), (name, error)


@pytest.fixture
def unfilled():
    """Deterministic algorithms, but without fills, which a capture records too."""
    torch.use_deterministic_algorithms(False)
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    yield
    torch.backends.cudnn.deterministic = before


PARTS = {
    "block": lambda: conv_block(8, 24),
    "block without ReLU": lambda: conv_block(8, 24, relu=False),
    "segmented block": lambda: conv_block(8, 20, magnitude="segmented", angular="square_cosine"),
    "unit": lambda: unit_of(8, 8),
    "strided unit": lambda: unit_of(8, 16, 2),
    "chain": lambda: nn.Sequential(conv_block(8, 24), conv_block(24, 130, 1), conv_block(130, 16, stride=2)),
    "units": lambda: nn.Sequential(unit_of(8, 8), unit_of(8, 8), unit_of(8, 16, 2, decoupled_shortcut=False)),
}


def assert_near(found, truth, bound):
    """Every result within the bound of the truth."""
    far = far_from(truth, found)
    assert max(far.values()) < bound, far


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_blocks_units_and_chains_in_float32(name, training):
    model, x = PARTS[name]().to(DEVICE).train(training), torch.randn(5, 8, 9, 7).to(DEVICE)
    twin = copy.deepcopy(model).double()
    for own in (x, x.to(memory_format=torch.channels_last)):
        found = results(fuse(nn.Sequential(copy.deepcopy(model)))[0], own, "fused")
        assert_close(found, results(copy.deepcopy(twin), own.double(), "reference"), deep=True)


@pytest.mark.parametrize("whole", [True, False], ids=["all of it", "autocast"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PARTS)
def test_blocks_units_and_chains_in_sixteen_bits(name, dtype, training, whole):
    model, x = PARTS[name]().to(DEVICE, dtype).train(training), torch.randn(16, 8, 17, 15).to(DEVICE, dtype)
    if not whole:
        model, x = model.float(), x.float()
    twin = copy.deepcopy(model).double()
    with torch.autocast("cuda", dtype, enabled=not whole), recorded() as decisions:
        found = results(fuse(nn.Sequential(model))[0], x, "fused")
    with taken_over(decisions, near=0.5):
        assert_near(found, results(twin, x.double(), "reference"), ERRORS[dtype])


def network(**options):
    """A small fused network on the GPU, the same in every call."""
    torch.manual_seed(0)
    return fuse(small_network(width=16, units=2, **options)).to(DEVICE, memory_format=torch.channels_last)


def batch(seed=1, count=32, classes=5, size=16):
    """Images and labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, size, size, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    return images.to(DEVICE, memory_format=torch.channels_last), labels.to(DEVICE)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operator", ["tanh-cosine", "segmented-sigmoid"])
def test_a_step_of_a_network_is_the_same_to_the_bit_every_time(operator, precision, unfilled):
    images, labels = batch()

    def step():
        model = network(operator=operator)
        with functional.backend("fused"), torch.autocast("cuda", precision, enabled=precision is not torch.float32):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        of = {name: parameter.grad for name, parameter in model.named_parameters()}
        return {"loss": loss.detach(), **of, **{f"{name} after": value for name, value in model.named_buffers()}}

    first = step()
    for _ in range(3):
        for name, value in step().items():
            assert torch.equal(value, first[name]), name


def losses(way, count=8):
    """The losses of training steps: eager, compiled or captured."""
    torch._dynamo.reset()
    model = network()
    own = torch.compile(model, fullgraph=True, dynamic=False) if way == "compiled" else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    images, labels = batch()

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(own(images), labels)
        loss.backward()
        optimiser.step()
        return loss.detach()

    if way != "captured":
        return [step().item() for _ in range(count)]
    start = {name: value.clone() for name, value in model.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    model.load_state_dict(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    found = []
    for _ in range(count):
        graph.replay()
        found.append(loss.item())
    assert model.stem.bn.num_batches_tracked == model.stem.conv.num_batches_tracked == count
    return found


@pytest.mark.parametrize("way", ["compiled", "captured"])
def test_compiled_and_captured_steps_lose_as_eager_ones_do(way, unfilled):
    with functional.backend("fused"):
        eager, found = losses("eager"), losses(way)
    assert eager[-1] < 0.95 * eager[0]
    assert found == pytest.approx(eager, rel=1e-4)


def resnet():
    """ResNet-32 of full width, the same in every call."""
    torch.manual_seed(0)
    model = models.create("resnet32", num_classes=100, operator="tanh-cosine")
    return model.to(DEVICE, memory_format=torch.channels_last)


def of_step(number):
    """The batch of a step."""
    return batch(seed=1000 + number, count=64, classes=100, size=32)


def trained(model, path, first, last):
    """The losses of some steps."""
    optimiser, found = torch.optim.SGD(model.parameters(), lr=0.01), []
    with functional.backend(path):
        for number in range(first, last):
            images, labels = of_step(number)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            found.append(loss.detach())
    return torch.stack(found).tolist()


@contextlib.contextmanager
def quick_products():
    """TF32, for steps that are only on the way."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


@functools.cache
def reference_run():
    """Fifty losses of the definition, and its weights before steps 0, 100 and 500."""
    model = resnet()
    kept = {0: copy.deepcopy(model.state_dict())}
    found = trained(model, "reference", 0, 50)
    with quick_products():
        trained(model, "reference", 50, 100)
        kept[100] = copy.deepcopy(model.state_dict())
        trained(model, "reference", 100, 500)
    return found, {**kept, 500: copy.deepcopy(model.state_dict())}


def test_resnet32_trains_as_the_definition_does(unfilled):
    wanted, _ = reference_run()
    assert trained(fuse(resnet()), "fused", 0, 50) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("number", [0, 100, 500])
def test_gradients_of_resnet32_are_those_of_the_definition(number, unfilled):
    weights, (images, labels) = reference_run()[1][number], of_step(number)

    def of(model, path):
        model.load_state_dict(weights)
        with functional.backend(path):
            loss = nn.functional.cross_entropy(model(images.to(model.classifier.weight.dtype)), labels)
            return dict(
                zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
            )

    with recorded() as decisions:
        found = of(fuse(resnet()), "fused")
    with taken_over(decisions):
        assert_near(found, of(resnet().double(), "reference"), CANCELLED)


def test_a_second_call_takes_the_kernels_of_the_first(monkeypatch, unfilled):
    from dcnets.kernels.gpu import launcher, ops

    monkeypatch.setattr(ops, "taped_forward", ops.forward)  # a tape has its own
    monkeypatch.setattr(ops, "taped_backward", ops.all_gradients)
    monkeypatch.setattr(launcher, "LAUNCHES", {})
    model, x = network().eval(), batch()[0]
    first = gradients(model, x, "fused")
    remembered, taken = len(launcher.LAUNCHES), []
    assert remembered > 10
    for key, (launch, *rest) in launcher.LAUNCHES.items():
        launcher.LAUNCHES[key] = (lambda *places, key=key, launch=launch: taken.append(key) or launch(*places), *rest)
    second = gradients(model, x, "fused")
    assert len(launcher.LAUNCHES) == remembered == len(set(taken))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def displaced(t):
    """The same numbers, one element away from where memory is handed out."""
    return torch.empty(t.numel() + 1, dtype=t.dtype, device=t.device)[1:].view(t.shape).copy_(t.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_may_begin_anywhere(dtype):
    model = nn.Sequential(conv_block(8, 16), unit_of(16, 16)).to(DEVICE, dtype)
    x = torch.randn(4, 8, 8, 8).to(DEVICE, dtype)
    twin = copy.deepcopy(model).double()
    aligned, elsewhere, x_elsewhere = fuse(copy.deepcopy(model)), fuse(model), displaced(x)
    for module in elsewhere.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(displaced(parameter)))
            assert getattr(module, name).data_ptr() % 16

    def step(model, x):
        with functional.backend("fused"):
            y = model(x.requires_grad_())
            direction = torch.linspace(-1, 1, y.numel(), dtype=torch.float64, device=DEVICE).cos().view(y.shape)
            names, parameters = zip(*model.named_parameters(), strict=True)
            found = torch.autograd.grad(y, [x, *parameters], direction.to(y.dtype))
        return {"y": y.detach(), "x": found[0], **dict(zip(names, found[1:], strict=True))}

    for _ in range(2):
        for own, place in ((aligned, x), (elsewhere, x_elsewhere)):
            with recorded() as decisions:
                found = step(own, place)
            with taken_over(decisions, near=1e-3 if dtype is torch.float32 else 0.5):
                truth = gradients(twin, x.double(), "reference")
            assert_near(found, truth, CANCELLED if dtype is torch.float32 else ERRORS[dtype])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_network_may_be_on_a_gpu_that_is_not_the_current_one():
    model, x = small_network(), torch.randn(4, 3, 8, 8)
    found = [gradients(fuse(copy.deepcopy(model).to(gpu)), x.to(gpu), "fused") for gpu in ("cuda:0", "cuda:1")]
    assert torch.cuda.current_device() == 0
    for name, value in found[0].items():
        assert torch.equal(value.cpu(), found[1][name].cpu()), name
