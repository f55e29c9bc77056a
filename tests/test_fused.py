"""The Triton programs on the CPU, through Triton's interpreter, against the float64 definition."""

import os
import subprocess
import sys

import pytest
import torch
from fused_cases import ERRORS, LAYERS, errors, gradients, layer_of, operators
from torch import nn

import dcnets
from dcnets import Operator, dispatch, functional

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these programs as they are")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Let the interpreter stand in for a GPU; in other files "fused" is the hand-written path."""
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


def calls(monkeypatch):
    """Count the calls of the Triton path."""
    from dcnets.kernels.gpu import ops

    seen = []
    respond = ops.respond
    monkeypatch.setattr(ops, "respond", lambda *arguments: seen.append(1) or respond(*arguments))
    return seen


@pytest.mark.parametrize("text", list(operators()))
def test_every_operator_and_each_of_its_gradients(text):
    layer, x = layer_of(text), 0.7 * torch.randn(2, 4, 5, 6)
    found = errors(layer, x.to(memory_format=torch.channels_last))
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_in_every_layout(name, layout, training):
    layer, shape = LAYERS[name]()
    x = torch.randn(shape)
    if layout == "channels_last" and x.dim() > 2:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    found = errors(layer.train(training), x)
    assert max(found.values()) < ERRORS[torch.float32], found


def test_an_input_whose_positions_are_no_row():
    layer = dcnets.DecoupledConv2d(3, 4, 3)
    found = errors(layer, torch.randn(2, 3, 6, 10)[..., ::2])
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("magnitude", ["ball", "segmented", "tanh"])
def test_zero_patches_and_patches_on_the_radius(magnitude):
    operator = Operator(magnitude, "cosine", radius="absolute")
    x = torch.tensor([[0.0, 0, 0, 0], [2.0, 0, 0, 0], [0, 2.0, 0, 0], [1, 1, 1, 1], [3.0, 0, 0, 0]])
    rho = (torch.tensor(4.0) + 1e-4).sqrt()
    assert ((x.square().sum(1) + 1e-4).sqrt() == rho).tolist() == [False, True, True, True, False]
    weight = torch.randn(3, 4)
    results = []
    for path in ("fused", "reference"):
        with functional.backend(path):
            own, radius = x.clone().requires_grad_(), rho.clone().requires_grad_()
            y = functional.decoupled_linear(own, weight, operator, rho=radius)
            results.append([y, *torch.autograd.grad(y.sin().sum(), [own, radius])])
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


def test_the_running_norm_is_tracked_and_used():
    fused, plain = (dcnets.DecoupledConv2d(3, 4, 3) for _ in range(2))
    plain.load_state_dict(fused.state_dict())
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        with functional.backend("fused"):
            fused(x)
        plain(x)
    assert fused.running_norm == pytest.approx(plain.running_norm.item(), rel=1e-6)
    assert fused.num_batches_tracked == 3
    with functional.backend("fused"):
        torch.testing.assert_close(fused.eval()(x), plain.eval()(x), rtol=1e-5, atol=1e-6)


def test_repeated_runs_are_the_same_to_the_bit():
    layer, x = layer_of("tanh-sigmoid-product"), torch.randn(3, 4, 7, 5)
    one, two = (gradients(layer.eval(), x, "fused") for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_gradients_can_be_differentiated_again():
    layer, x = layer_of("tanh-cosine"), torch.randn(2, 4, 5, 5)

    def twice(path):
        with functional.backend(path):
            own = x.clone().requires_grad_()
            first = torch.autograd.grad(layer(own).square().sum(), [own, *layer.parameters()], create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), [own, *layer.parameters()])

    for fused, plain in zip(twice("fused"), twice("reference"), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item())


@pytest.mark.parametrize("mode", ["aot_eager", "inductor"])
def test_a_compiled_network_takes_the_same_programs(mode, monkeypatch):
    torch._dynamo.reset()
    network = nn.Sequential(
        dcnets.DecoupledConv2d(3, 6, 3, padding=1, magnitude="segmented"), nn.BatchNorm2d(6), nn.ReLU(),
        dcnets.DecoupledConv2d(6, 4, 3, stride=2, magnitude="tanh"), nn.Flatten(), nn.Linear(36, 5),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    state = {name: value.clone() for name, value in network.state_dict().items()}
    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    with functional.backend("fused"):
        eager = network(x)
        wanted = torch.autograd.grad(eager.square().sum(), list(network.parameters()))
        network.load_state_dict(state)
        compiled = torch.compile(network, backend=mode, fullgraph=True, dynamic=False)(x)
        found = torch.autograd.grad(compiled.square().sum(), list(network.parameters()))
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_operator_is_what_torch_expects_of_one():
    from dcnets.kernels.gpu import ops

    x, unit, rho = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3), torch.rand(4) + 0.5
    arguments = (
        x.requires_grad_(), unit.requires_grad_(), None, None, rho.requires_grad_(), *[None] * 7, [1.0] * 8,
        [1, 0, 0, 0, 0, 0, 0, 0], "tanh", "cosine", 1e-4, True, [1, 1], [1, 1], [1, 1], 1,
    )  # fmt: skip
    torch.library.opcheck(ops.decouple, arguments, test_utils=("test_schema", "test_faketensor"))


def test_what_has_no_programs_takes_the_other_path(monkeypatch):
    seen = calls(monkeypatch)
    with functional.backend("fused"):
        layer_of("tanh-cosine")(torch.randn(1, 4, 5, 5))
        assert len(seen) == 1
        dcnets.DecoupledConvTranspose2d(4, 3, 3)(torch.randn(1, 4, 5, 5))
        layer_of("tanh-cosine").double()(torch.randn(1, 4, 5, 5).double())
        layer_of("tanh-cosine")(torch.randn(0, 4, 5, 5))
        dcnets.DecoupledConv2d(1, 1, 9)(torch.randn(1, 1, 9, 9))
        torch.func.grad(lambda x: layer_of("sphere-cosine")(x).sum())(torch.randn(1, 4, 5, 5))
        torch.func.vmap(layer_of("sphere-cosine"))(torch.randn(2, 1, 4, 5, 5))
        dcnets.DecoupledConv2d(2, 2, 3, magnitude="tanh+0.5*linear")(torch.randn(1, 2, 5, 5))
    assert len(seen) == 1
    layer_of("tanh-cosine")(torch.randn(1, 4, 5, 5))
    assert len(seen) == 1, "auto takes the measured path"


def test_triton_is_not_imported_before_it_is_asked_for():
    code = (
        "import sys, torch, dcnets; dcnets.DecoupledConv2d(1, 1, 3)(torch.randn(1, 1, 5, 5)).sum().backward(); "
        "assert 'dcnets.kernels.gpu.ops' not in sys.modules"
    )
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=clean)
