"""`fuse`: blocks, residual units and chains of them, through Triton's interpreter, against the float64 definition."""

import copy
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from functorch.compile import make_boxed_func
from fused_cases import (
    CHAINS,
    ERRORS,
    LAYERS,
    MAGNITUDES,
    UNITS,
    assert_close,
    block,
    conv_block,
    results,
    small_network,
    unit_of,
    varied,
)
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import dcnets
from dcnets import dispatch, functional, models
from dcnets.fusing import fuse
from dcnets.fusing.blocks import FusedBlock, FusedSequence
from dcnets.fusing.units import FusedUnit

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these programs as they are")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


@pytest.fixture
def counted(monkeypatch):
    """How often sums of squares were computed, and how often the Triton path was taken."""
    from dcnets.kernels.gpu import edges, ops

    seen = {"sums": 0, "layers": 0}

    def count(module, name, what):
        function = getattr(module, name)

        def within(*arguments, **more):
            seen[what] += 1
            return function(*arguments, **more)

        monkeypatch.setattr(module, name, within)

    monkeypatch.setattr(ops, "taped_forward", ops.forward)  # a tape does not call it again
    count(edges, "square_sums", "sums")
    count(ops, "answer", "layers")
    return seen


def check(model, x, kind=FusedBlock):
    """Output, gradients and running statistics against those of the float64 model."""
    twin = copy.deepcopy(model).double()
    fused = fuse(nn.Sequential(model))[0]
    assert isinstance(fused, kind)
    deep = kind is not FusedBlock
    assert_close(results(fused, x, "fused"), results(twin, x.double(), "reference"), deep=deep)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("angular", ["cosine", "square_cosine", "sigmoid"])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_every_magnitude_and_each_gradient(magnitude, angular, relu):
    layer = dcnets.DecoupledConv2d(4, 6, 3, padding=1, magnitude=magnitude, angular=angular)
    if not fits_alone(layer):
        pytest.skip("an ordinary convolution, which fuse leaves alone")
    check(block(layer, relu), torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last))


def fits_alone(layer):
    return (layer.operator.magnitude, layer.operator.angular) != ("inner_product", "cosine")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("linear", "linear, three axes", "1x1")])
def test_every_layer(name, training):
    layer, shape = LAYERS[name]()
    check(block(layer).train(training), torch.randn(shape))


@pytest.mark.parametrize("training", [True, False])
def test_a_bias_before_a_batch_norm(training):
    """Twice, as the second call in eager mode goes another way."""
    torch.manual_seed(0)
    model = nn.Sequential(dcnets.DecoupledConv2d(3, 4, 3, padding=1, bias=True), nn.BatchNorm2d(4), nn.ReLU())
    with torch.no_grad():
        for t in (model[0].bias, model[1].weight, model[1].bias, model[1].running_mean):
            t.uniform_(-2, 2)
        model[1].running_var.uniform_(0.1, 2)
    twin, x = copy.deepcopy(model.train(training)).double(), torch.randn(3, 3, 5, 6)
    fused = fuse(nn.Sequential(model))[0]
    assert isinstance(fused, FusedBlock)
    for _ in range(2):
        found = results(fused, x, "fused")
        assert_close(found, results(twin, x.double(), "reference"))
        assert found["0.bias"].any().item() is not training
    deployed, wanted = fuse(dcnets.freeze(nn.Sequential(model))), twin.eval()(x.double())
    assert isinstance(deployed[0], FusedBlock)
    with functional.backend("fused"):
        torch.testing.assert_close(deployed(x).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_rows_of_a_matrix(training):
    model = nn.Sequential(block(dcnets.DecoupledLinear(7, 5)), block(dcnets.DecoupledLinear(5, 4)))
    check(model.train(training), torch.randn(9, 7), FusedSequence)


def test_an_image_without_a_batch():
    model = nn.Sequential(dcnets.DecoupledConv2d(3, 4, 3), nn.ReLU())
    check(model, torch.randn(3, 6, 5))


@pytest.mark.parametrize("weighting", ["linear", "product", "separate"])
def test_weightings(weighting):
    layer = dcnets.DecoupledConv2d(4, 6, 3, magnitude="segmented", angular="linear", weighting=weighting)
    check(block(layer), torch.randn(3, 4, 6, 6))


def test_many_rows_share_their_statistics_exactly():
    layer = dcnets.DecoupledConv2d(3, 5, 1, magnitude="linear", angular="cosine")
    x = torch.randn(9, 3, 40, 41) + 1  # at + 3 the weight's gradient is 2.6e-5 off, at + 30 5.9e-3 (torch's own: 1.0e-3)
    check(block(layer), x)


def test_evaluation_is_that_of_the_sequence():
    model = block(dcnets.DecoupledConv2d(4, 6, 3)).eval()
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
        nn.Sequential(layer, nn.BatchNorm2d(3, affine=False)),
        nn.Sequential(layer, nn.BatchNorm2d(3), nn.PReLU()),
        nn.Sequential(dcnets.DecoupledConv2d(3, 3, 3, magnitude="inner_product"), nn.BatchNorm2d(3)),
    )
    fuse(others)
    assert not any(isinstance(module, FusedBlock) for module in others.modules())


def test_a_compiled_block_takes_the_same_programs():
    torch._dynamo.reset()
    model = fuse(nn.Sequential(block(dcnets.DecoupledConv2d(3, 4, 3))))
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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", UNITS)
def test_every_residual_unit(name, training):
    unit, shape = UNITS[name]()
    check(unit.train(training), torch.randn(shape).to(memory_format=torch.channels_last), FusedUnit)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_hands_on_its_sums_of_squares(name, training, counted):
    chain, shape, alone = CHAINS[name]()
    check(chain.train(training), torch.randn(shape), FusedSequence)
    assert counted["sums"] == alone


def test_a_residual_network_hands_on_its_sums_of_squares(counted):
    network = small_network(units=2)
    twin = copy.deepcopy(network).double()
    x = torch.randn(3, 3, 6, 6)
    assert_close(results(fuse(network), x, "fused"), results(twin, x.double(), "reference"), deep=True)
    assert counted == {"sums": 1, "layers": 9}


def test_sums_of_squares_are_handed_on_in_the_layout_of_the_data_whatever_it_is(counted):
    chain, shape, _ = CHAINS["two blocks"]()
    x = torch.randn(shape)
    for own in (x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        check(copy.deepcopy(chain), own, FusedSequence)
    assert counted["sums"] == 2


PLACES = (
    "0", "0.0", "0.1", "0.2", "1", "1.first", "1.first.bn", "1.second.conv", "1.shortcut", "1.relu", "2.first", "2.shortcut",
)  # fmt: skip


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_are_called_and_change_nothing(where, register):
    model = nn.Sequential(conv_block(3, 4), unit_of(4, 4), unit_of(4, 4))
    twin = copy.deepcopy(model).double()
    fused, x, seen = fuse(model), torch.randn(2, 3, 4, 5), []
    getattr(fused.get_submodule(where), register)(lambda *_: seen.append(where))
    assert_close(results(fused, x, "fused"), results(twin, x.double(), "reference"), deep=True)
    assert seen == [where]


@pytest.mark.parametrize("where", PLACES)
def test_what_a_hook_returns_goes_on(where):
    model = nn.Sequential(conv_block(3, 4), unit_of(4, 4), unit_of(4, 4))
    twin = copy.deepcopy(model).double()
    fused, x = fuse(model), torch.randn(2, 3, 4, 5)
    for own in (twin, fused):
        own.get_submodule(where).register_forward_hook(lambda module, inputs, y: 2 * y + 1)
    assert_close(results(fused, x, "fused"), results(twin, x.double(), "reference"), deep=True)


@pytest.mark.parametrize("kind", ["block", "unit"])
def test_what_follows_may_change_the_output_in_place(kind):
    part = conv_block(3, 3, relu=False) if kind == "block" else unit_of(3, 3, relu_after=False)
    check(nn.Sequential(part, nn.ReLU(inplace=True)), torch.randn(3, 3, 5, 6), FusedSequence)


def test_a_sequence_that_is_a_block_itself_becomes_one():
    model = conv_block(3, 4)
    fused = fuse(copy.deepcopy(model))
    assert type(fused) is FusedBlock
    x = torch.randn(2, 3, 5, 5)
    assert_close(results(fused, x, "fused"), results(model.double(), x.double(), "reference"))


def flat():
    return nn.Sequential(*conv_block(3, 4), nn.MaxPool2d(2), *conv_block(4, 3, relu=False))


def test_rows_of_modules_in_a_flat_sequence_are_blocks_under_their_names(counted):
    plain = flat()
    model = fuse(copy.deepcopy(plain))
    assert type(model) is FusedSequence
    assert [type(part) for part in model.parts()] == [FusedBlock, nn.MaxPool2d, FusedBlock]
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    x = torch.randn(2, 3, 6, 6)
    for twin in (model, copy.deepcopy(model), through_pickle(model)):
        assert_close(results(twin, x, "fused"), results(copy.deepcopy(plain).double(), x.double(), "reference"), deep=True)
    assert counted["layers"] == 3 * 2


def test_a_module_of_a_flat_sequence_can_be_exchanged(counted):
    model = fuse(flat())
    x = torch.randn(2, 3, 6, 6)
    results(model, x, "fused")
    model[4] = dcnets.DecoupledConv2d(4, 3, 1, magnitude="ball")
    model.append(nn.ReLU())
    twin = copy.deepcopy(nn.Sequential(*model)).double()
    assert [type(part) for part in model.parts()] == [FusedBlock, nn.MaxPool2d, FusedBlock]
    assert_close(results(model, x, "fused"), results(twin, x.double(), "reference"), deep=True)
    model[1].register_forward_hook(lambda module, given, y: 2 * y)
    assert torch.allclose(results(model, x, "fused")["y"], results(nn.Sequential(*model), x, "reference")["y"], atol=1e-4)


def test_a_compiled_flat_sequence_is_one_graph(counted):
    torch._dynamo.reset()
    model, x = fuse(flat()), torch.randn(2, 3, 6, 6)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with functional.backend("fused"):
        torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)


def test_fusing_twice_is_fusing_once(counted):
    model = nn.Sequential(conv_block(3, 4), unit_of(4, 4))
    twin = copy.deepcopy(model).double()
    once = fuse(model)
    kinds = [type(module) for module in once.modules()]
    assert kinds.count(FusedBlock) == 3
    assert [type(module) for module in fuse(once).modules()] == kinds
    x = torch.randn(2, 3, 4, 5)
    assert_close(results(once, x, "fused"), results(twin, x.double(), "reference"), deep=True)
    assert counted == {"sums": 1, "layers": 3}


def through_pickle(model):
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    return torch.load(stored, weights_only=False)


def through_a_checkpoint(model):
    torch.manual_seed(1)
    fresh = fuse(small_network())
    fresh.load_state_dict(model.state_dict())
    return fresh


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_a_checkpoint])
def test_a_copy_of_a_fused_network_is_one(copied, counted):
    plain = small_network()
    fused = fuse(copy.deepcopy(plain))
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in fused.named_modules()] == [name for name, _ in plain.named_modules()]
    x = torch.randn(2, 3, 4, 4)
    twin = copied(fused)
    found = results(twin, x, "fused")
    assert counted["sums"] == 1
    for name, value in results(fused, x, "fused").items():
        assert torch.equal(found[name], value), name


def test_a_plain_checkpoint_goes_into_a_fused_network_and_back():
    plain = small_network()
    fused = fuse(copy.deepcopy(plain))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1)
    assert str(fused.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
    assert str(plain.load_state_dict(fused.state_dict())) == "<All keys matched successfully>"
    x = torch.randn(2, 3, 4, 4)
    assert_close(results(fused, x, "fused"), results(plain.double(), x.double(), "reference"), deep=True)


@pytest.mark.parametrize("whole", [True, False], ids=["all of it", "autocast"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [lambda: conv_block(3, 4), lambda: unit_of(3, 4, 2)], ids=["block", "unit"])
def test_float16(make, training, whole):
    model, x = make().half().train(training), torch.randn(3, 3, 7, 6).half()
    if not whole:
        model, x = model.float(), x.float()
    wanted = results(copy.deepcopy(model).double(), x.double(), "reference")
    with torch.autocast("cpu", torch.float16, enabled=not whole):
        found = results(fuse(model), x, "fused")
    for name, value in wanted.items():
        error = (found[name].double() - value).abs().max() / value.abs().max()
        assert error < ERRORS[torch.float16], (name, error)


@pytest.mark.parametrize("still", ["1", "0", "0.1"])
def test_a_part_in_evaluation_uses_its_running_statistics(still):
    model = nn.Sequential(conv_block(3, 4), conv_block(4, 4))
    model.get_submodule(still).eval()
    before = copy.deepcopy(model.get_submodule(still).state_dict())
    check(model, torch.randn(3, 3, 5, 6), FusedSequence)
    for name, value in model.get_submodule(still).state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_layer_in_evaluation_before_a_batch_norm_in_training():
    model = conv_block(3, 4)
    model[0].eval()
    check(model, torch.randn(3, 3, 5, 6))


def test_running_statistics_after_several_steps_are_those_of_the_sequence():
    plain = nn.Sequential(conv_block(3, 4, momentum=None), conv_block(4, 4, momentum=0.2), conv_block(4, 3, momentum=None))
    fused = fuse(copy.deepcopy(plain))
    for step in range(3):
        x = torch.randn(3, 3, 4, 5) * (1 + step)
        with functional.backend("fused"):
            fused(x)
        plain(x)
    for (name, found), wanted in zip(fused.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, msg=name)
    assert fused[0][0].num_batches_tracked == fused[0][1].num_batches_tracked == 3


def test_running_statistics_of_a_block_that_is_used_twice_are_those_of_the_sequence():
    part = conv_block(3, 3, momentum=None)
    plain = nn.Sequential(part, part)
    fused, x = fuse(copy.deepcopy(plain)), torch.randn(3, 3, 4, 5)
    with functional.backend("fused"):
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-5, atol=1e-5)
    for (name, found), wanted in zip(fused.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, msg=name)


def test_a_batch_norm_without_running_statistics_is_left_alone():
    model = nn.Sequential(dcnets.DecoupledConv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU())
    check(model, torch.randn(3, 3, 5, 6), FusedSequence)


def test_a_batch_norm_without_bias():
    model = conv_block(3, 4)
    model[1].register_parameter("bias", None)
    check(model, torch.randn(3, 3, 5, 6))


def test_one_value_for_a_filter_is_refused_in_training_as_batch_norm_refuses_it():
    fused = fuse(nn.Sequential(conv_block(3, 4, padding=0)))
    with functional.backend("fused"), pytest.raises(ValueError, match="more than 1 value per channel"):
        fused(torch.randn(1, 3, 3, 3))


@pytest.mark.parametrize("name", ["two blocks", "units", "a grouped consumer", "bias and no batch norm"])
def test_a_frozen_network_can_be_fused(name, counted):
    model, shape, _ = CHAINS[name]()
    frozen = dcnets.freeze(model)
    fused, x = fuse(copy.deepcopy(frozen)), torch.randn(shape)

    def both(model, path):
        with functional.backend(path):
            own = x.clone().requires_grad_()
            y = model(own)
            return y, *torch.autograd.grad(y.square().sum(), own)

    for found, wanted in zip(both(fused, "fused"), both(frozen, "reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())
    assert counted["layers"] == sum(isinstance(module, dcnets.freezing.Frozen) for module in frozen.modules())
    assert counted["sums"] == (2 if name == "a grouped consumer" else 1)


@pytest.mark.parametrize("magnitude", ["tanh", "linear"])
def test_a_fused_network_can_be_frozen(magnitude):
    model = nn.Sequential(conv_block(3, 4, magnitude=magnitude), conv_block(4, 3, magnitude=magnitude))
    wanted = dcnets.freeze(model)
    frozen, x = dcnets.freeze(fuse(model)), torch.randn(2, 3, 5, 5)
    for path in ("auto", "fused"):
        with functional.backend(path):
            torch.testing.assert_close(frozen(x), wanted(x), rtol=1e-5, atol=1e-5)


class Doubled(dcnets.DecoupledConv2d):
    """A user's own layer."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_layer_with_a_forward_of_its_own_keeps_it():
    model = varied(nn.Sequential(Doubled(3, 4, 3), nn.BatchNorm2d(4))).eval()
    fused, x = fuse(nn.Sequential(copy.deepcopy(model))), torch.randn(2, 3, 5, 5)
    with functional.backend("fused"):
        torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_parametrised_weight_is_used_and_gets_its_gradients():
    model = nn.Sequential(conv_block(3, 4), conv_block(4, 3))
    nn.utils.parametrizations.weight_norm(model[1][0])
    check(model, torch.randn(3, 3, 5, 6), FusedSequence)


class Halved(nn.Identity):
    """A shortcut of a user's own."""

    def forward(self, x):
        return x / 2


CHANGES = {
    "0.0": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "0.1": lambda: nn.GroupNorm(2, 4),
    "0.2": nn.GELU,
    "1.first.conv": lambda: dcnets.DecoupledConv2d(4, 4, 3, padding=1, bias=True),
    "1.first.bn": nn.Identity,
    "1.second": lambda: nn.Conv2d(4, 4, 1),
    "1.shortcut": Halved,
    "1.relu": nn.GELU,
    "2.shortcut": Halved,
    "2.second": lambda: nn.Conv2d(4, 4, 1),
}


@pytest.mark.parametrize("where", CHANGES)
@pytest.mark.parametrize("path", ["auto", "fused"])
def test_parts_that_were_changed_later_are_those_that_compute(where, path):
    plain = nn.Sequential(conv_block(3, 4), unit_of(4, 4), unit_of(4, 4)).eval()
    fused, part = fuse(copy.deepcopy(plain)), CHANGES[where]()
    for model in (plain, fused):
        model.set_submodule(where, copy.deepcopy(part).eval())
    x = torch.randn(2, 3, 5, 5)
    assert_close(results(fused, x, path), results(plain.double(), x.double(), "reference"), deep=True)


def test_a_batch_norm_of_all_processes_is_not_left_out():
    plain = nn.Sequential(conv_block(3, 4)).eval()
    fused, x = nn.SyncBatchNorm.convert_sync_batchnorm(fuse(copy.deepcopy(plain))), torch.randn(2, 3, 5, 5)
    with functional.backend("fused"):
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("still", ["x", "0.0.weight", "0.0.raw_radius", "0.1.weight", "0.1.bias", "1.second.bn.weight"])
@pytest.mark.parametrize("training", [True, False])
def test_what_needs_no_gradient_leaves_those_of_the_rest_alone(still, training):
    fused = fuse(nn.Sequential(conv_block(3, 4), unit_of(4, 4))).train(training)
    tensors = {"x": torch.randn(2, 3, 4, 5, requires_grad=True), **dict(fused.named_parameters())}

    def found():
        own = {name: t for name, t in tensors.items() if t.requires_grad}
        with functional.backend("fused"):
            loss = fused(tensors["x"]).square().sum()
        return dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))

    everything = found()
    tensors[still].requires_grad_(False)
    rest = found()
    assert everything.keys() - rest.keys() == {still}
    for name, value in rest.items():
        torch.testing.assert_close(value, everything[name], rtol=1e-5, atol=1e-6, msg=name)


def twice(model, x, path):
    """Gradients of a sum of squared gradients."""
    with functional.backend(path):
        own = x.clone().requires_grad_()
        first = torch.autograd.grad(model(own).square().sum(), [own, *model.parameters()], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), [own, *model.parameters()])


TWICE = {
    "block": lambda: conv_block(3, 4),
    "unit": lambda: unit_of(3, 4, 2),
    "chain": lambda: nn.Sequential(conv_block(3, 4), conv_block(4, 3)),
    "units": lambda: nn.Sequential(unit_of(3, 3), unit_of(3, 3)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", TWICE)
def test_gradients_can_be_differentiated_again(name, training):
    plain = TWICE[name]().train(training)
    fused, x = fuse(copy.deepcopy(plain)), torch.randn(3, 3, 6, 5)
    for found, wanted in zip(twice(fused, x, "fused"), twice(plain.double(), x.double(), "reference"), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=2e-4 * wanted.abs().max().item())


def decouplings(graph, name="decouple"):
    """The nodes of a graph that call an operator of the Triton path."""
    return [node for node in graph.graph.nodes if str(node.target) == f"dcnets.{name}.default"]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_compiled_resnet_takes_the_triton_operator_for_every_layer_and_hands_on_the_sums(autocast):
    torch._dynamo.reset()
    fused, graphs = fuse(models.create("resnet32", num_classes=3, operator="tanh-cosine", width=2)), []

    def look(graph, inputs):
        """Keep the graph, and compute nothing: the interpreter's bfloat16 is not the GPU's."""
        graphs.append(graph)
        (outputs,) = next(node for node in graph.graph.nodes if node.op == "output").args
        shapes = [node.meta["example_value"].shape for node in outputs]
        return lambda *_: [torch.zeros(shape) for shape in shapes]

    with functional.backend("fused"), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.compile(fused, backend=look, fullgraph=True, dynamic=False)(torch.randn(2, 3, 4, 4))
    (graph,) = graphs
    nodes = decouplings(graph)
    assert len(nodes) == 31
    assert [node.args[1] is None for node in nodes] == [True] + [False] * 30
    assert {node.args[0].meta["example_value"].dtype for node in nodes} == {torch.bfloat16 if autocast else torch.float32}


def test_a_compiled_network_has_the_gradients_and_statistics_of_eager_mode():
    torch._dynamo.reset()
    fused, x, graphs = fuse(nn.Sequential(conv_block(3, 4), unit_of(4, 4), unit_of(4, 4))), torch.randn(2, 3, 4, 4), {}

    def keep(name):
        return lambda graph, inputs: graphs.update({name: graph}) or make_boxed_func(graph.forward)

    twin = copy.deepcopy(fused)
    backend = aot_autograd(fw_compiler=keep("forward"), bw_compiler=keep("backward"))
    found = results(torch.compile(fused, backend=backend, fullgraph=True, dynamic=False), x, "fused")
    assert len(decouplings(graphs["forward"])) == 5
    assert len(decouplings(graphs["backward"], "decouple_backward")) == 5
    wanted = results(twin, x, "fused")
    assert {name.removeprefix("_orig_mod.") for name in found} == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name.removeprefix("_orig_mod.")], rtol=1e-5, atol=1e-5, msg=name)


# -- what torch.compile sees for a GPU ---------------------------------------------------------------------------------


def traced(*options):
    script = Path(__file__).parent / "scripts/traced_programs.py"
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script, *options], env=compiling, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_graph_has_the_launches_themselves_which_write_what_they_give_and_compute_in_float32():
    found = traced("compiled")
    assert found["nodes"] == {
        "square_sums": 1, "prepare": 2, "statistics": 2, "combine": 2, "respond": 2, "gradient_sums": 2,
        "respond_backward": 2, "add_up": 4, "finish": 2, "add_norm_gradient": 1,
    }  # fmt: skip
    assert found["written"] == {
        "square_sums": ["sums"], "prepare": ["norms", "partials", "unit"], "statistics": ["mean", "moments"],
        "combine": ["results"], "respond": ["sums", "y"], "gradient_sums": ["shares"],
        "respond_backward": ["dnorms", "dz", "shares"], "add_up": ["totals"],
        "finish": ["dmean", "dradius", "dsums", "dweight"], "add_norm_gradient": ["dx"],
    }  # fmt: skip
    assert found["in_float64"] == {name: [] for name in found["nodes"]}


def test_a_graph_with_open_sizes_keeps_the_operator():
    assert traced("dynamic")["nodes"] == {"dcnets.decouple.default": 2, "dcnets.decouple_backward.default": 2}
