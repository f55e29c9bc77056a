"""Calibration: running norms, absolute radii and batch-norm statistics from a few batches, and nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from dcnets import DecoupledConv2d, DecoupledLinear, calibrate, convert
from dcnets.functional import patch_norm

BATCHES = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * (1 + seed) for seed in range(3)]


def network(**options):
    """A converted network with batch norm and dropout."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5)
    )
    return convert(model, **options)[0]


def mean_norm(x, layer):
    """The mean patch norm that a layer meets."""
    return patch_norm(x, layer.kernel_size, layer.stride, layer.padding, layer.dilation, eps=layer.operator.eps).mean()


# -- relative radii --------------------------------------------------------------------------------------------------


def test_the_running_norm_becomes_the_plain_average_over_the_batches():
    layer = DecoupledConv2d(3, 4, 3)
    calibrate(layer, BATCHES)
    expected = torch.stack([mean_norm(x, layer) for x in BATCHES]).mean()
    torch.testing.assert_close(layer.running_norm, expected)
    assert layer.num_batches_tracked == len(BATCHES)


def test_what_the_layer_knew_before_does_not_count():
    layer = DecoupledConv2d(3, 4, 3)
    for _ in range(5):
        layer(1000 * BATCHES[0])
    calibrate(layer, BATCHES)
    torch.testing.assert_close(layer.running_norm, torch.stack([mean_norm(x, layer) for x in BATCHES]).mean())


def test_training_goes_on_from_the_calibrated_average():
    layer = DecoupledConv2d(3, 4, 3)
    calibrate(layer, BATCHES)
    layer(BATCHES[0])
    expected = torch.stack([mean_norm(x, layer) for x in (*BATCHES, BATCHES[0])]).mean()
    torch.testing.assert_close(layer.running_norm, expected)


@pytest.mark.parametrize("options", [{}, {"magnitude": "ball", "radius": "absolute"}, {"magnitude": "segmented"}])
def test_the_calibrated_evaluation_is_the_training_pass_on_the_same_data(options):
    model = network(**options)
    model[3].p = 0.0
    calibrate(model, BATCHES[:1])
    evaluated = model.eval()(BATCHES[0])
    trained = model.train()(BATCHES[0])
    # the variance that batch norm keeps is the unbiased one, of 4 · 8 · 8 and 4 · 6 · 6 values
    torch.testing.assert_close(evaluated, trained, rtol=0.02, atol=0.02)


def test_an_uncalibrated_evaluation_is_far_from_the_training_pass():
    """What the test above would not notice if calibration did nothing."""
    model = network()
    model[3].p = 0.0
    assert (model.eval()(BATCHES[0]) - model.train()(BATCHES[0])).abs().max() > 0.2


# -- absolute radii --------------------------------------------------------------------------------------------------


def test_an_absolute_radius_becomes_the_mean_norm_over_the_batches_for_every_filter():
    layer = DecoupledConv2d(3, 4, 3, radius="absolute")
    calibrate(layer, BATCHES)
    expected = torch.stack([mean_norm(x, layer) for x in BATCHES]).mean()
    torch.testing.assert_close(layer.rho.detach(), expected.expand(4))


def test_a_radius_of_the_whole_layer_is_set_too():
    layer = DecoupledLinear(5, 4, radius="absolute", radius_per="layer", radius_init=7.0)
    x = torch.randn(6, 5)
    calibrate(layer, [x])
    torch.testing.assert_close(layer.rho.item(), (x.square().sum(1) + 1e-4).sqrt().mean().item(), rtol=1e-6, atol=0)


def test_an_absolute_radius_is_set_in_the_precision_of_the_layer():
    layer = DecoupledConv2d(3, 4, 3, radius="absolute", dtype=torch.float64)
    x = BATCHES[0].double()
    calibrate(layer, [x])
    torch.testing.assert_close(layer.rho.detach(), mean_norm(x, layer).expand(4), rtol=1e-14, atol=0)


def test_the_second_layer_meets_the_output_of_the_calibrated_first():
    model = nn.Sequential(DecoupledConv2d(3, 4, 3, radius="absolute"), DecoupledConv2d(4, 4, 3, radius="absolute"))
    calibrate(model, BATCHES[:1])
    with torch.no_grad():
        between = model[0](BATCHES[0])  # by now the radius is the calibrated one
    torch.testing.assert_close(model[1].rho.detach(), mean_norm(between, model[1]).expand(4))
    with torch.no_grad():
        model[0].set_radius(1.0)
        assert (mean_norm(model[0](BATCHES[0]), model[1]) - model[1].rho[0]).abs() > 0.1


def test_the_running_mean_of_radii_goes_on_batch_by_batch():
    """While the second batch passes, the first layer's radius is the mean over two batches."""
    model = nn.Sequential(DecoupledConv2d(3, 4, 3, radius="absolute"), DecoupledConv2d(4, 4, 3, radius="absolute"))
    expected, norms, met = copy.deepcopy(model), [], []
    with torch.no_grad():
        for x in BATCHES:
            norms.append(mean_norm(x, expected[0]).item())
            expected[0].set_radius(sum(norms) / len(norms))
            met.append(mean_norm(expected[0](x), expected[1]).item())
    calibrate(model, BATCHES)
    torch.testing.assert_close(model[1].rho.detach(), torch.full((4,), sum(met) / len(met)))


def test_a_learned_radius_stays_a_parameter_and_hooks_of_the_calibration_are_gone():
    layer = DecoupledConv2d(3, 4, 3, radius="absolute")
    radius = layer.raw_radius
    calibrate(layer, BATCHES)
    assert layer.raw_radius is radius
    assert radius.requires_grad
    assert radius.grad is None
    assert not layer._forward_pre_hooks


def test_an_empty_batch_does_not_move_a_radius():
    layers = DecoupledConv2d(3, 4, 3, radius="absolute"), DecoupledConv2d(3, 4, 3)
    for layer in layers:
        calibrate(layer, [BATCHES[0], BATCHES[0][:0]])
    torch.testing.assert_close(layers[0].rho.detach(), mean_norm(BATCHES[0], layers[0]).expand(4))
    torch.testing.assert_close(layers[1].running_norm, mean_norm(BATCHES[0], layers[1]))


# -- batch norm, and what stays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"magnitude": "linear"}])
def test_batch_norm_is_estimated_anew_as_the_plain_average_over_the_batches(options):
    model = network(**options)
    model(BATCHES[0])  # what was known before does not count
    with torch.no_grad():
        model[1].running_mean.fill_(100.0)
        model[5].running_var.fill_(100.0)
    expected = copy.deepcopy(model)
    calibrate(model, BATCHES)
    means, variances = [], []
    with torch.no_grad():
        for x in BATCHES:
            y = expected[0](x)  # in training: by the norm of this batch
            means.append(y.mean((0, 2, 3)))
            variances.append(y.var((0, 2, 3)))
    torch.testing.assert_close(model[1].running_mean, torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model[1].running_var, torch.stack(variances).mean(0), rtol=1e-4, atol=1e-5)
    assert model[1].num_batches_tracked == model[5].num_batches_tracked == len(BATCHES)
    assert model[5].running_var.max() < 10


def test_instance_norm_and_batch_norm_without_statistics_are_left_alone():
    model = nn.Sequential(
        DecoupledConv2d(3, 4, 3),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.BatchNorm2d(4, track_running_stats=False),
    )
    model(BATCHES[0])
    before = copy.deepcopy(model[1].state_dict())
    calibrate(model, BATCHES)
    assert model[1].state_dict().keys() == before.keys()
    assert all(torch.equal(model[1].state_dict()[name], tensor) for name, tensor in before.items())


def test_weights_alpha_and_everything_else_stay_as_they_are():
    model = network(magnitude="segmented", angular="sigmoid", radius="absolute", learn=("radius", "alpha", "beta", "k"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    calibrate(model, BATCHES)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    statistics = {f"{index}.{name}" for index in (1, 5) for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert changed == {"0.raw_radius", "4.raw_radius", *statistics}


def test_with_a_relative_radius_the_radius_itself_stays():
    model = network()
    before = model[0].raw_radius.detach().clone()
    calibrate(model, BATCHES)
    assert torch.equal(model[0].raw_radius, before)


def test_dropout_is_off():
    seen = []
    model = network()
    model[4].register_forward_pre_hook(lambda module, inputs: seen.append((inputs[0] == 0).float().mean().item()))
    before = torch.get_rng_state()
    calibrate(model, BATCHES)
    assert torch.equal(torch.get_rng_state(), before)
    after_relu = [seen[-1]]
    model[3].train()
    model[4](model[3](model[2](model[1](model[0](BATCHES[-1])))))
    assert seen[-1] > after_relu[0] + 0.1


def test_no_graph_is_kept():
    kept = []
    layer = DecoupledConv2d(3, 4, 3)
    layer.register_forward_hook(lambda module, inputs, y: kept.append(y))
    calibrate(layer, BATCHES)
    assert [y.requires_grad for y in kept] == [False] * len(BATCHES)


def test_a_layer_that_is_used_twice_averages_over_both_uses():
    layer = DecoupledConv2d(3, 3, 3, padding=1, radius="absolute")
    met = []
    layer.register_forward_pre_hook(lambda module, inputs: met.append(mean_norm(inputs[0], module).item()))
    calibrate(nn.Sequential(layer, layer), BATCHES[:1])
    assert len(met) == 2
    torch.testing.assert_close(layer.rho.detach(), torch.full((3,), sum(met) / 2))


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_modes_and_momenta_are_restored(training):
    model = network().train(training)
    model[1].train(not training)
    model[5].momentum = 0.3
    modes = {name: module.training for name, module in model.named_modules()}
    assert calibrate(model, BATCHES) is model
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert (model[1].momentum, model[5].momentum) == (0.1, 0.3)


def test_modes_momenta_and_hooks_are_restored_after_an_error_too():
    model = network(radius="absolute")
    model[5].momentum = None
    model[2].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    handle = model[4].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no more"):
        calibrate(model, BATCHES)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert (model[1].momentum, model[5].momentum) == (0.1, None)
    assert not model[0]._forward_pre_hooks
    handle.remove()
    assert not model[4]._forward_pre_hooks


def fail(module, inputs):
    raise RuntimeError("no more")


def test_an_error_of_the_loader_is_handed_on_with_modes_restored():
    def loader():
        yield BATCHES[0]
        raise OSError("disk")

    model = network().eval()
    with pytest.raises(OSError, match="disk"):
        calibrate(model, loader())
    assert not any(module.training for module in model.modules())
    assert model[1].momentum == 0.1


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        lambda: BATCHES,
        lambda: [(x, torch.zeros(4)) for x in BATCHES],
        lambda: [[x, torch.zeros(4), "name"] for x in BATCHES],
        lambda: (x for x in BATCHES),
        lambda: torch.stack(BATCHES),
        lambda: torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.cat(BATCHES), torch.zeros(12)), batch_size=4
        ),
    ],
    ids=["tensors", "tuples", "lists", "generator", "stacked", "loader"],
)
def test_batches_come_in_every_usual_form(given):
    model, expected = network(), network()
    calibrate(model, given())
    calibrate(expected, BATCHES)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("none", [[], (), iter([])])
def test_no_batches_are_refused_and_the_model_is_left_as_it_was(none):
    model = network(radius="absolute")
    model(BATCHES[0])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="calibrate got no batches; pass at least one, in a list or from a loader"):
        calibrate(model, none)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training


def test_a_network_without_decoupled_layers_has_its_batch_norm_estimated():
    model = nn.Sequential(nn.BatchNorm2d(3))
    calibrate(model, BATCHES)
    torch.testing.assert_close(model[0].running_mean, torch.stack(BATCHES).mean((0, 1, 3, 4)), rtol=1e-4, atol=1e-6)


class Naming(nn.Module):
    """A network that calls its layer by keyword."""

    def __init__(self):
        super().__init__()
        self.layer = DecoupledConv2d(3, 4, 3, radius="absolute")

    def forward(self, x):
        return self.layer(input=x)


def test_a_layer_that_is_called_by_keyword_is_calibrated_too():
    model, x = Naming(), torch.randn(4, 3, 6, 6)
    calibrate(model, [x])
    torch.testing.assert_close(model.layer.rho, model.layer.mean_patch_norm(x).expand(4))


# -- what no batch reaches, and batches that fail -----------------------------------------------------------------------


class WithAuxiliary(nn.Module):
    """A network with a head that evaluation does not reach, as googlenet has."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(DecoupledConv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.Sequential(DecoupledConv2d(4, 4, 3), nn.BatchNorm2d(4), DecoupledConv2d(4, 2, 1, radius="absolute"))

    def forward(self, x):
        x = self.body(x)
        return self.head(x) if self.training else x


def test_what_no_batch_reaches_keeps_its_statistics():
    model = WithAuxiliary()
    model(BATCHES[0])
    before = copy.deepcopy(model.head.state_dict())
    calibrate(model, BATCHES)
    torch.testing.assert_close(model.head.state_dict(), before, rtol=0, atol=0)
    assert model.body[1].num_batches_tracked == len(BATCHES)


def test_a_batch_that_fails_leaves_everything_as_it_was():
    model = nn.Sequential(DecoupledConv2d(3, 4, 3), nn.BatchNorm2d(4), DecoupledConv2d(4, 2, 1, radius="absolute"))
    model(BATCHES[0])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="expected x of shape"):
        calibrate(model, [BATCHES[1], torch.randn(2, 5, 8, 8)])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert model[1].momentum == 0.1


def test_a_parametrised_radius_is_refused_rather_than_left_alone():
    layer = DecoupledConv2d(3, 4, 3, radius="absolute")
    parametrize.register_parametrization(layer, "raw_radius", nn.Identity())
    with pytest.raises(ValueError, match="raw_radius is computed from other parameters; remove the parametrisation"):
        layer.set_radius(2.0)
    with pytest.raises(ValueError, match="raw_radius is computed"):
        calibrate(layer, BATCHES)
