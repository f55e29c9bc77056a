"""The Triton programs on the CPU, through Triton's interpreter, against the float64 definition."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fused_cases import CHAINS, ERRORS, LAYERS, UNITS, conv_block, errors, gradients, layer_of, operators
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import dcnets
from dcnets import Operator, dispatch, functional
from dcnets.fusing import fuse

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
    monkeypatch.setattr(ops, "respond", lambda *arguments, **more: seen.append(1) or respond(*arguments, **more))
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


def test_no_program_over_windows_is_unrolled_beyond_what_compiles_in_seconds(monkeypatch):
    from dcnets.kernels.gpu import edge_programs, edges, launch, ops

    ops.taped_backward.tapes.clear()  # a tape would not ask again
    unrolled = []
    run = launch.run

    def counted(program, grid, tensors, numbers, constants, *warps):
        if program is edge_programs.finish:
            unrolled.append(math.prod(constants[name] for name in ("TAPS0", "TAPS1", "TAPS2", "CHUNKS")))
        run(program, grid, tensors, numbers, constants, *warps)

    monkeypatch.setattr(launch, "run", counted)
    for name in ("odd", "7x7, two tiles of filters"):
        layer, shape = LAYERS[name]()
        gradients(layer, torch.randn(shape), "fused")
    assert unrolled == [9, 49]
    assert max(unrolled) <= edges.UNROLLED


layer_and_block = pytest.mark.parametrize(
    "make", [lambda: dcnets.DecoupledConv2d(3, 4, 3), lambda: fuse(nn.Sequential(conv_block(3, 4)))], ids=["layer", "block"]
)


@layer_and_block
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit:DeprecationWarning")
def test_who_writes_calls_down_sees_torchs_path(make):
    """A launch would be missing from their graphs, and fake tensors have no memory to launch on."""
    model = make().eval()
    x, other = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6)
    with functional.backend("fused"), torch.no_grad():
        expected = [model(other), model(other)][1]  # a block would remember its way
        for graph in (torch.jit.trace(model, x, check_trace=False), make_fx(model)(x)):
            torch.testing.assert_close(graph(other), expected)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            imagined = mode.from_tensor(x)
            assert model(imagined).shape == expected.shape
        assert model(imagined).shape == expected.shape  # without the mode too
        torch.testing.assert_close(model(other), expected, rtol=0, atol=0)


@layer_and_block
def test_a_network_may_be_asked_in_inference_mode_before_it_trains(make):
    model, x = make().eval(), torch.randn(3, 3, 5, 6)
    with functional.backend("fused"):
        with torch.inference_mode():
            expected = [model(x), model(x)][1].clone()
        y = model(x.requires_grad_())
        y.sum().backward()
    torch.testing.assert_close(y.detach(), expected, rtol=0, atol=0)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("path", ["auto", "fused"])
@layer_and_block
def test_what_is_computed_anew_in_the_backward_pass_is_the_same(make, path):
    model, found = make(), []
    for again in (False, True):
        x = torch.linspace(-2, 2, 216).sin().view(2, 3, 6, 6).requires_grad_()
        with functional.backend(path):
            y = checkpoint(model, x, use_reentrant=False) if again else model(x)
            y.square().sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("path", ["auto", "fused"])
@layer_and_block
def test_many_gradients_at_once_are_those_one_by_one(make, path):
    """Vectorised Jacobians take this way. On a CPU "auto" is the hand-written path."""
    model, x = make(), torch.randn(2, 3, 4, 4, requires_grad=True)
    with functional.backend(path):
        y = model(x)
        directions = torch.randn(3, *y.shape)
        wanted = [x, *model.parameters()]
        many = torch.autograd.grad(y, wanted, directions, is_grads_batched=True, retain_graph=True)
        single = [torch.autograd.grad(y, wanted, each, retain_graph=True) for each in directions]
    for name, found, *expected in zip(["x", *dict(model.named_parameters())], many, *single, strict=True):
        expected = torch.stack(expected)
        assert not found.requires_grad
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * max(1.0, expected.abs().max().item()), msg=name)


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


def test_a_sigmoid_of_small_k_has_its_slope_where_it_is_all_but_one():
    layer = dcnets.DecoupledLinear(3, 1, operator="sphere-sigmoid(k=0.06)")
    near = torch.cat([sign * 2 * layer.weight.detach() + 0.15 * torch.randn(200, 3) for sign in (1, -1)])
    x = near.clone().requires_grad_()
    with functional.backend("fused"):
        layer(x).sum().backward()
    assert x.grad.ne(0).any(1).all()
    found = errors(layer, near)
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("k", [30.0, 1e8])
def test_a_sigmoid_of_large_k_loses_no_digits(k):
    layer = dcnets.DecoupledLinear(3, 4, operator=f"sphere-sigmoid(k={k})")
    found = errors(layer, torch.randn(20, 3))
    assert max(found.values()) < ERRORS[torch.float32], found


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


MODELS = {
    "layer": lambda: LAYERS["bias"](),
    "grouped layer": lambda: LAYERS["groups"](),
    "linear layer": lambda: LAYERS["linear"](),
    "layer with everything learned": lambda: LAYERS["all learned"](),
    "layer with more filters than a tile": lambda: LAYERS["wide"](),
    "block": lambda: (conv_block(3, 4), (2, 3, 5, 6)),
    "unit": lambda: UNITS["identity"](),
    "strided unit": lambda: UNITS["a decoupled shortcut of stride 2"](),
    "chain": lambda: CHAINS["two blocks"]()[:2],
    "wide chain": lambda: CHAINS["more filters than a tile has"]()[:2],
    "chain without batch norm": lambda: CHAINS["bias and no batch norm"]()[:2],
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["layer", "linear layer", "unit", "chain", "chain without batch norm"])
def test_the_operators_are_what_torch_expects_of_them(name, training, monkeypatch):
    from dcnets.kernels.gpu import ops

    model, shape = MODELS[name]()
    seen = {"taped_forward": [], "taped_backward": []}
    for which, taken in seen.items():
        function = getattr(ops, which)
        within = lambda *arguments, to=taken, function=function: to.append(arguments) or function(*arguments)
        monkeypatch.setattr(ops, which, within)
    gradients(fuse(model).train(training), torch.randn(shape), "fused")
    monkeypatch.undo()
    for operator, taken in zip((ops.decouple, ops.decouple_backward), seen.values(), strict=True):
        assert len(taken) == sum(
            isinstance(module, dcnets.DecoupledConv2d | dcnets.DecoupledLinear) for module in model.modules()
        )
        for arguments in taken:
            torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_what_has_no_programs_takes_the_other_path(monkeypatch):
    from dcnets.kernels.gpu import ops

    ops.say_once.cache_clear()
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
        with pytest.warns(UserWarning, match=r"'tanh\+0.5\*linear' has no Triton twin"):
            dcnets.DecoupledConv2d(2, 2, 3, magnitude="tanh+0.5*linear")(torch.randn(1, 2, 5, 5))
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


def test_uninitialised_memory_shows_itself():
    assert torch.empty(1000).isnan().all()
    assert torch.empty_like(torch.zeros(3, 5)).isnan().all()


@pytest.fixture
def untaped(monkeypatch):
    """Nothing is replayed: each call goes through the functions themselves."""
    from dcnets.kernels.gpu import ops

    monkeypatch.setattr(ops, "taped_forward", ops.forward)
    monkeypatch.setattr(ops, "taped_backward", ops.all_gradients)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_every_buffer_is_written_everywhere(name, training, monkeypatch, untaped):
    model, shape = MODELS[name]()
    fused, x, buffers = fuse(model).train(training), torch.randn(shape), []
    for which in ("empty", "empty_like"):
        function = getattr(torch, which)

        def within(*arguments, function=function, **more):
            buffers.append((sys._getframe(1).f_code.co_name, function(*arguments, **more)))
            return buffers[-1][1]

        monkeypatch.setattr(torch, which, within)
    gradients(fused, x, "fused")
    makers = {maker for maker, _ in buffers}
    assert {"square_sums", "respond", "respond_backward"} <= makers
    assert {maker for maker, t in buffers if not t.isfinite().all()} == set()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("filters", [130, 144, 160, 200, 260])
def test_more_filters_than_a_tile_has(filters, training):
    layer = dcnets.DecoupledConv2d(3, filters, 1, magnitude="segmented", angular="square_cosine", bias=True)
    found = errors(layer.train(training), torch.randn(2, 3, 3, 2))
    assert max(found.values()) < ERRORS[torch.float32], found


def test_more_filters_of_a_group_than_a_tile_has():
    found = errors(dcnets.DecoupledConv2d(4, 268, 1, groups=2), torch.randn(2, 4, 2, 3))
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4, 5, 3), (5, 4, 1, 1), (1, 4, 1, 7), (3, 4, 7, 1)])
def test_one_image_and_images_of_one_pixel(shape, layout):
    x = torch.randn(shape)
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    for text in ("tanh-cosine", "segmented-linear-product"):
        found = errors(layer_of(text), x)
        assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("magnitude", ["tanh", "segmented", "mixed", "sphere"])
@pytest.mark.parametrize("weighting", ["none", "linear"])
def test_a_number_other_than_one_as_alpha(magnitude, weighting):
    options = {"magnitude": magnitude, "weighting": weighting, "alpha": -0.37, "angular": "sigmoid", "k": 0.6}
    found = errors(dcnets.DecoupledConv2d(3, 5, 3, **options), torch.randn(2, 3, 5, 6))
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("radius", ["relative", "absolute"])
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"weighting": "separate"}, {"magnitude": "ball"}, {"learn": ()}])
def test_one_radius_for_all_filters(options, radius):
    layer = dcnets.DecoupledConv2d(4, 6, 3, radius_per="layer", radius=radius, radius_init=1.3, **options)
    found = errors(layer, torch.randn(2, 4, 5, 6))
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("rho", [2.0, torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0])])
@pytest.mark.parametrize("mean_norm", [None, 1.7, torch.tensor(1.7)])
def test_a_radius_and_a_mean_norm_may_be_numbers_or_tensors(rho, mean_norm):
    x, weight, operator = torch.randn(2, 4, 5, 5), torch.randn(3, 4, 3, 3), Operator("tanh", "cosine")
    results = []
    for path, dtype in (("fused", torch.float32), ("reference", torch.float64)):
        with functional.backend(path):
            own = [
                t.to(dtype, copy=True).requires_grad_() for t in (x, weight, rho, mean_norm) if isinstance(t, torch.Tensor)
            ]
            of_radius, of_mean = (t if not isinstance(t, torch.Tensor) else None for t in (rho, mean_norm))
            given = {
                "rho": own[2] if of_radius is None else of_radius,
                "mean_norm": own[-1] if isinstance(mean_norm, torch.Tensor) else of_mean,
            }
            y = functional.decoupled_conv2d(*own[:2], operator, **given)
            results.append([y, *torch.autograd.grad(y.sin().sum(), own)])
    for fused, plain in zip(*results, strict=True):
        assert (fused.double() - plain).abs().max() < ERRORS[torch.float32] * plain.abs().max()


@pytest.mark.parametrize("name", ["odd", "stride 2", "groups", "1d", "linear"])
def test_a_compiled_layer_takes_batches_of_any_size(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    layer, shape = LAYERS[name]()
    layer.eval()
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for batch in (2, 5):
        x = torch.randn(batch, *shape[1:])
        wanted, found = gradients(layer, x, "reference"), gradients(compiled, x, "fused")
        for key, value in found.items():
            error = (value - wanted[key.removeprefix("_orig_mod.")]).abs().max() / value.abs().max()
            assert error < ERRORS[torch.float32], (key, error)
    assert [str(node.target) for graph in counter.graphs for node in graph.graph.nodes].count("dcnets.decouple.default") == 1


@pytest.mark.parametrize(
    ("filters", "width"),
    [(1, 1), (3, 4), (16, 16), (20, 32), (48, 16), (96, 32), (128, 128), (130, 128), (160, 32), (192, 64), (384, 128)],
)
def test_a_tile_has_as_many_filters_as_leave_the_least_of_it_empty(filters, width):
    from dcnets.kernels.gpu import plan

    assert plan.width_of(filters) == width


def test_steps_are_those_of_batch_position_and_channel():
    from dcnets.kernels.gpu import layout

    x = torch.randn(2, 3, 4, 5)
    assert layout.steps_of(x) == (60, 1, 20)
    assert layout.steps_of(x.to(memory_format=torch.channels_last)) == (60, 3, 1)
    assert layout.steps_of(x[:, 1:]) == (60, 1, 20)
    assert layout.steps_of(torch.randn(6, 7)) == (7, 1, 1)
    assert layout.steps(x.transpose(2, 3).shape, x.transpose(2, 3).stride()) is None
    assert layout.steps_of(layout.dense(x.transpose(2, 3))) == (60, 1, 20)
    assert layout.steps_of(x[..., :1, :]) == (60, 1, 20)
    assert layout.steps_of(x[..., :1]) == (60, 5, 20), "columns follow each other at the distance of rows"
    kept = x.to(memory_format=torch.channels_last)
    assert layout.dense(kept) is kept


def test_quotients_are_rounded_up_and_so_are_powers_of_two():
    from dcnets.kernels.gpu import launcher

    assert [launcher.ceiling(number, 4) for number in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [launcher.power_of_two(number) for number in (0, 1, 2, 3, 4, 5, 128, 129)] == [1, 1, 2, 4, 4, 8, 128, 256]


def test_a_change_in_any_file_is_another_build(tmp_path):
    from dcnets.kernels.gpu import ops

    own = Path(ops.__file__).parent
    for file in own.glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert ops.checksum(tmp_path) == ops.BUILD
    for name in ("ops.py", "launch.py", "programs.py", "magnitudes.py"):
        before = ops.checksum(tmp_path)
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")
        assert ops.checksum(tmp_path) != before
