"""`fuse`: blocks of decoupled layer, batch norm and ReLU, through Triton's interpreter, against the float64 definition."""

import copy

import pytest
import torch
from fused_cases import CANCELLED, ERRORS, LAYERS, MAGNITUDES
from torch import nn

import dcnets
from dcnets import dispatch, functional, models
from dcnets.fusing import FusedBlock, fuse

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these programs as they are")
NORMS = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


def block(layer, dims, relu=True, momentum=0.3):
    norm = NORMS[dims](layer.weight.shape[0], eps=1e-3, momentum=momentum)
    with torch.no_grad():
        norm.weight.copy_(torch.rand_like(norm.weight) + 0.5)
        norm.bias.copy_(torch.randn_like(norm.bias))
    return nn.Sequential(layer, norm, *([nn.ReLU()] if relu else []))


def results(model, x, path):
    with functional.backend(path):
        x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = model(x)
        direction = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).cos().view(y.shape)
        names, parameters = zip(*model.named_parameters(), strict=True)
        found = torch.autograd.grad(y, [x, *parameters], direction.to(y.dtype))
    buffers = {name: value.clone() for name, value in model.named_buffers() if value.is_floating_point()}
    return {"y": y.detach(), "x": found[0], **dict(zip(names, found[1:], strict=True)), **buffers}


def check(model, x):
    """Output, gradients and running statistics against the float64 sequence, each to its largest element."""
    twin = copy.deepcopy(model).double()
    holder = fuse(nn.Sequential(model))
    assert type(holder[0]) is FusedBlock
    found, wanted = results(holder[0], x, "fused"), results(twin, x.double(), "reference")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        error = (found[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-2)
        of_operator = name.startswith("0.") and name not in ("0.weight", "0.running_norm")
        assert error < (CANCELLED if of_operator else ERRORS[torch.float32]), (name, error)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("angular", ["cosine", "square_cosine", "sigmoid"])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_every_magnitude_and_each_gradient(magnitude, angular, relu):
    layer = dcnets.DecoupledConv2d(4, 6, 3, padding=1, magnitude=magnitude, angular=angular)
    if not fits_alone(layer):
        pytest.skip("an ordinary convolution, which fuse leaves alone")
    check(block(layer, 4, relu), torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last))


def fits_alone(layer):
    return (layer.operator.magnitude, layer.operator.angular) != ("inner_product", "cosine")


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("bias", "linear", "linear, three axes", "1x1")])
def test_every_layer(name):
    layer, shape = LAYERS[name]()
    check(block(layer, len(shape)), torch.randn(shape))


@pytest.mark.parametrize("weighting", ["linear", "product", "separate"])
def test_weightings(weighting):
    layer = dcnets.DecoupledConv2d(4, 6, 3, magnitude="segmented", angular="linear", weighting=weighting)
    check(block(layer, 4), torch.randn(3, 4, 6, 6))


def test_many_rows_share_their_statistics_exactly():
    layer = dcnets.DecoupledConv2d(3, 5, 1, magnitude="linear", angular="cosine")
    x = torch.randn(9, 3, 40, 41) + 1  # at + 3 the weight's gradient is 2.6e-5 off, at + 30 5.9e-3 (torch's own: 1.0e-3)
    check(block(layer, 4), x)


def test_evaluation_is_that_of_the_sequence():
    model = block(dcnets.DecoupledConv2d(4, 6, 3), 4).eval()
    x = torch.randn(2, 4, 6, 6)
    wanted = copy.deepcopy(model)(x)
    with functional.backend("fused"):
        torch.testing.assert_close(fuse(nn.Sequential(model))(x), wanted, rtol=1e-5, atol=1e-6)


def test_on_the_usual_paths_a_fused_network_is_the_network():
    torch.manual_seed(0)
    plain = models.create("cnn9_attack", num_classes=10, operator="tanh-cosine", width=4, image_size=16)
    fused = fuse(copy.deepcopy(plain))
    assert sum(isinstance(module, FusedBlock) for module in fused.modules()) == 10
    assert list(fused.state_dict()) == list(plain.state_dict())
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(fused(x), plain(x))
    for (name, a), b in zip(fused.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_a_fused_network_trains_as_the_network_does():
    torch.manual_seed(0)
    plain = models.create("cnn9_attack", num_classes=4, operator="segmented-cosine", width=2, image_size=16)
    fused = fuse(copy.deepcopy(plain))
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4)
    losses = {}
    for model, path in ((plain, "reference"), (fused, "fused")):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        with functional.backend(path):
            for _ in range(3):
                loss = nn.functional.cross_entropy(model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.setdefault(path, []).append(loss.item())
    assert losses["fused"] == pytest.approx(losses["reference"], rel=2e-4)
    for (name, a), b in zip(fused.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


def test_what_is_no_such_sequence_stays():
    layer = dcnets.DecoupledConv2d(3, 3, 3)
    others = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)),
        nn.Sequential(dcnets.DecoupledConv2d(3, 3, 3, bias=True), nn.BatchNorm2d(3)),
        nn.Sequential(layer, nn.BatchNorm2d(3, affine=False)),
        nn.Sequential(layer, nn.BatchNorm2d(3), nn.PReLU()),
        nn.Sequential(layer, nn.ReLU()),
        nn.Sequential(dcnets.DecoupledConv2d(3, 3, 3, magnitude="inner_product"), nn.BatchNorm2d(3)),
    )
    fuse(others)
    assert not any(isinstance(module, FusedBlock) for module in others.modules())


def test_gradients_can_be_differentiated_again():
    plain = block(dcnets.DecoupledConv2d(3, 4, 3), 4)
    fused = fuse(nn.Sequential(copy.deepcopy(plain)))
    x = torch.randn(3, 3, 6, 6)

    def twice(model, path):
        with functional.backend(path):
            own = x.clone().requires_grad_()
            first = torch.autograd.grad(model(own).square().sum(), [own, *model.parameters()], create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), [own, *model.parameters()])

    for a, b in zip(twice(fused, "fused"), twice(plain, "reference"), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4 * b.abs().max().item())


def test_a_compiled_block_takes_the_same_programs():
    torch._dynamo.reset()
    model = fuse(nn.Sequential(block(dcnets.DecoupledConv2d(3, 4, 3), 4)))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(3, 3, 6, 6)
    eager = results(model, x, "fused")
    model.load_state_dict(state)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    with functional.backend("fused"):
        y = compiled(x)
        y.square().sum().backward()
    torch.testing.assert_close(y, eager["y"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[0][1].running_mean, eager["0.1.running_mean"])
