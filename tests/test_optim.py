"""Weight projection, weighted gradients and parameter groups: each against its formula, and what each must leave alone."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from test_penalties import Launches, filters_of, network, stages
from tolerances import AUTHORS, EXACT, error
from torch import nn
from torch.nn.utils import prune

from dcnets import DecoupledConv2d, DecoupledConvTranspose2d, DecoupledLinear, Operator
from dcnets.losses import NormalisedClassifier
from dcnets.margins import MarginHead
from dcnets.optim import parameter_groups, project_every, project_weights, weighted_gradients
from dcnets.penalties import orthonormal_penalty

with np.load(Path(__file__).parent / "data" / "authors.npz") as stored:
    RECORDED = {key: torch.from_numpy(stored[key]) for key in stored}
PROJECTED = sorted(key for key in RECORDED if key.endswith("/projected_weight"))


def unweighted(dtype=torch.float64):
    """The layers of `network` whose norm does not act."""
    model = network(dtype)
    return nn.Sequential(
        *(layer for layer in model if hasattr(layer, "operator") and layer.operator.h.name != "inner_product")
    )


def norms(layer):
    return torch.stack([w.norm() for group in filters_of(layer) for w in group])


# -- weight projection ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", PROJECTED)
def test_projection_gives_the_authors_projected_weights(key):
    operator = Operator.parse(key.split("/")[0])
    layer = DecoupledConv2d(5, 7, 3, magnitude=operator.magnitude, angular=operator.angular)
    with torch.no_grad():
        layer.weight.copy_(RECORDED["weight"])
    project_weights(layer)
    assert error(layer.weight.detach(), RECORDED[key]) < AUTHORS


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_each_filter_becomes_its_direction_times_the_scale(scale):
    model = unweighted()
    before = copy.deepcopy(model)
    project_weights(model, scale)
    for layer, old in zip(model, before, strict=True):
        for group, old_group in zip(filters_of(layer), filters_of(old), strict=True):
            for w, old_w in zip(group, old_group, strict=True):
                assert error(w, scale * old_w / (old_w.square().sum() + old.operator.eps).sqrt()) < EXACT


@pytest.mark.parametrize("angular", ["cosine", "square_cosine", "sigmoid"])
@pytest.mark.parametrize("magnitude", ["sphere", "tanh", "segmented", "linear"])
def test_outputs_are_unchanged_where_epsilon_vanishes(magnitude, angular):
    options = {"magnitude": magnitude, "angular": angular, "eps": 1e-12, "dtype": torch.float64}
    model = nn.Sequential(
        DecoupledConv2d(3, 4, 3, groups=1, **options), DecoupledConvTranspose2d(4, 6, 2, groups=2, **options)
    )
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    expected = model(x)
    weight = model[0].weight.detach().clone()
    project_weights(model, scale=3.0)
    assert error(model(x), expected) < 1e-9
    assert error(model[0].weight, weight) > 0.1


@pytest.mark.parametrize("layer", ["conv", "transposed", "linear"])
def test_gradients_are_inverse_to_the_norm_of_the_filter_as_in_equation_17(layer):
    options = {"eps": 1e-12, "dtype": torch.float64}
    make = {
        "conv": lambda: (DecoupledConv2d(4, 6, 3, groups=2, **options), torch.randn(2, 4, 5, 5, dtype=torch.float64)),
        "transposed": lambda: (DecoupledConvTranspose2d(4, 6, 3, groups=2, **options), torch.randn(2, 4, 5, 5).double()),
        "linear": lambda: (DecoupledLinear(5, 7, **options), torch.randn(3, 5, dtype=torch.float64)),
    }
    model, x = make[layer]()
    gradients = []
    for scale in (1.0, 8.0):
        project_weights(model, scale)
        gradients.append(torch.autograd.grad(model(x).sin().sum(), model.weight)[0])
    assert error(gradients[0], 8 * gradients[1]) < 1e-9


def test_a_sphere_convolutions_gradient_is_equation_17_itself():
    layer = DecoupledLinear(5, 1, magnitude="sphere", eps=1e-12, dtype=torch.float64)
    x = torch.randn(1, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    unit_w, unit_x = layer.weight / layer.weight.norm(), x / x.norm()
    assert error(gradient, (unit_x - (unit_w * unit_x).sum() * unit_w) / layer.weight.norm()) < 1e-9


def test_projection_keeps_storage_strides_and_gradients_and_leaves_no_graph():
    model = unweighted()
    for layer in model:
        layer.weight.grad = torch.ones_like(layer.weight)
    known = [(layer.weight, layer.weight.data_ptr(), layer.weight.stride()) for layer in model]
    project_weights(model)
    for layer, (weight, pointer, stride) in zip(model, known, strict=True):
        assert layer.weight is weight
        assert (weight.data_ptr(), weight.stride()) == (pointer, stride)
        assert weight.grad_fn is None
        assert weight.requires_grad
        assert torch.equal(weight.grad, torch.ones_like(weight))


def test_projection_touches_neither_ordinary_layers_nor_other_tensors():
    model = nn.Sequential(
        DecoupledConv2d(3, 4, 3, bias=True), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(4, 2)
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    project_weights(model)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"0.weight"}


def test_a_network_twice_as_deep_is_projected_in_as_many_launches():
    counts = []
    for model in (stages(11), stages(22)):
        assert len(model) > 31
        with Launches() as launches:
            project_weights(model)
        counts.append(launches.count)
    assert counts[0] == counts[1]
    assert counts[0] <= 60


def test_projection_reads_no_value_back():
    with torch.device("meta"):  # a tensor without values: reading one would raise
        project_weights(stages(2))


def test_bfloat16_weights_are_projected_in_float32():
    model, wide = unweighted(torch.bfloat16), unweighted(torch.float32)
    wide.load_state_dict(model.state_dict())
    project_weights(model)
    project_weights(wide)
    for layer, other in zip(model, wide, strict=True):
        assert torch.equal(layer.weight, other.weight.bfloat16())


def test_a_shared_weight_is_projected_once():
    layer, twin = (DecoupledConv2d(3, 4, 2, eps=0.5) for _ in range(2))
    twin.weight = layer.weight
    once = copy.deepcopy(layer)
    project_weights(once)
    project_weights(nn.ModuleList([layer, layer, twin]))
    assert torch.equal(layer.weight, once.weight)


WEIGHTED = {
    "linear weighting": {"weighting": "linear"},
    "product weighting": {"weighting": "product"},
    "separate weighting": {"weighting": "separate"},
    "inner product": {"magnitude": "inner_product"},
}
REFUSERS = {
    "project_weights": project_weights,
    "project_every": lambda model: project_every(torch.optim.SGD(model.parameters(), lr=0.1), model),
    "weighted_gradients": weighted_gradients,
}
every_refuser = pytest.mark.parametrize("refuser", REFUSERS)


@every_refuser
@pytest.mark.parametrize("case", WEIGHTED)
def test_a_layer_whose_norm_acts_is_refused_by_name_and_nothing_is_done(refuser, case):
    model = nn.Sequential()
    model.add_module("plain", DecoupledConv2d(3, 4, 3))
    model.add_module("heavy", nn.Sequential(DecoupledConv2d(4, 4, 3, **WEIGHTED[case])))
    before = model.plain.weight.detach().clone()
    with pytest.raises(ValueError, match=r"^heavy\.0 computes .*‖w‖ acts in the forward pass"):
        REFUSERS[refuser](model)
    assert torch.equal(model.plain.weight, before)
    assert not model.plain.weight._backward_hooks


@every_refuser
def test_a_model_without_decoupled_layers_is_refused(refuser):
    with pytest.raises(ValueError, match="no decoupled filters in Linear"):
        REFUSERS[refuser](nn.Linear(3, 2))


@every_refuser
def test_one_weight_read_as_two_sets_of_filters_is_refused(refuser):
    model = nn.ModuleDict({"down": DecoupledConv2d(3, 4, 2), "up": DecoupledConvTranspose2d(4, 3, 2)})
    model["up"].weight = model["down"].weight
    with pytest.raises(ValueError, match="down and up share one weight"):
        REFUSERS[refuser](model)


@every_refuser
def test_a_parametrised_weight_is_refused(refuser):
    model = nn.Sequential(DecoupledConv2d(3, 4, 2))
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(ValueError, match="the weight of 0 is computed"):
        REFUSERS[refuser](model)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_is_refused(scale):
    layer = DecoupledLinear(3, 2)
    with pytest.raises(ValueError, match="scale must be a positive number"):
        project_weights(layer, scale)
    with pytest.raises(ValueError, match="scale must be a positive number"):
        project_every(torch.optim.SGD(layer.parameters(), lr=0.1), layer, scale=scale)


@pytest.mark.parametrize("head", [NormalisedClassifier, MarginHead])
def test_a_classifier_is_no_filter(head):
    model = nn.Sequential(DecoupledLinear(3, 4), head(4, 5))
    before = model[1].weight.detach().clone()
    project_weights(model)
    assert torch.equal(model[1].weight, before)
    torch.testing.assert_close(model[0].weight.norm(dim=1), torch.ones(4), rtol=1e-3, atol=0)
    torch.testing.assert_close(orthonormal_penalty(model), orthonormal_penalty(model[0]))
    with weighted_gradients(model):
        assert not model[1].weight._backward_hooks
    with pytest.raises(ValueError, match=f"no decoupled filters in {head.__name__}"):
        project_weights(model[1])


# -- projection every so many steps -----------------------------------------------------------------------------------


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()


def test_the_hook_projects_after_every_nth_step_until_it_is_removed():
    model = DecoupledLinear(5, 3, eps=1e-12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handle = project_every(optimizer, model, every=3, scale=2.0)
    unit = []
    for step in range(12):
        if step == 9:
            handle.remove()
        train(model, optimizer)
        unit.append(bool((norms(model) - 2).abs().max() < 1e-5))
    assert unit == [False, False, True] * 3 + [False] * 3


def test_adams_state_is_left_alone_by_the_hook():
    models = [DecoupledLinear(5, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]
    project_every(optimizers[0], models[0], every=1)
    x = torch.randn(4, 5)
    for model, optimizer in zip(models, optimizers, strict=True):
        model(x).square().sum().backward()
        optimizer.step()
    assert error(models[0].weight, models[1].weight) > 1e-2
    for (name, state), (_, other) in zip(optimizers[0].state.items(), optimizers[1].state.items(), strict=True):
        assert state.keys() == other.keys() == {"step", "exp_avg", "exp_avg_sq"}, name
        assert all(torch.equal(state[key], other[key]) for key in state)


@pytest.mark.parametrize("every", [0, -5, 2.5, True])
def test_a_number_of_steps_that_is_none_is_refused(every):
    model = DecoupledLinear(5, 3)
    with pytest.raises(ValueError, match="every must be a whole number of steps"):
        project_every(torch.optim.SGD(model.parameters(), lr=0.1), model, every=every)


def test_the_hook_refuses_to_be_captured(monkeypatch):
    model = DecoupledLinear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    project_every(optimizer, model)
    for question in ("is_available", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, question, lambda: True)
    with pytest.raises(RuntimeError, match="between the replays"):
        train(model, optimizer)


# -- weighted gradients -----------------------------------------------------------------------------------------------


def gradients_of(model, passes=1):
    torch.manual_seed(1)
    for layer in model:
        layer.weight.grad = None
    for _ in range(passes):
        for layer in model:
            spread = torch.randn_like(layer.weight)
            unit = [w / (w.square().sum() + layer.operator.eps).sqrt() for group in filters_of(layer) for w in group]
            probe = [s for group in filters_of(WithWeight(layer, spread)) for s in group]
            sum((u * p).sum() for u, p in zip(unit, probe, strict=True)).sin().backward()
    return [layer.weight.grad.clone() for layer in model]


class WithWeight:
    """Another tensor in a layer's place."""

    def __new__(cls, layer, weight):
        other = copy.copy(layer)
        other._parameters = {**layer._parameters, "weight": nn.Parameter(weight, requires_grad=False)}
        return other


@pytest.mark.parametrize("passes", [1, 3])
def test_the_optimiser_receives_the_norm_times_the_gradient_however_many_passes_accumulate(passes):
    model = unweighted()
    plain = gradients_of(model, passes)
    with weighted_gradients(model):
        weighted = gradients_of(model, passes)
    for layer, expected, found in zip(model, plain, weighted, strict=True):
        pairs = zip(
            *(filters_of(WithWeight(layer, gradient)) for gradient in (expected, found)), filters_of(layer), strict=True
        )
        for expected_group, found_group, group in pairs:
            for before, after, w in zip(expected_group, found_group, group, strict=True):
                assert error(after, (w.square().sum() + layer.operator.eps).sqrt() * before) < EXACT


def test_a_sphere_convolutions_weighted_gradient_is_equation_18_itself():
    layer = DecoupledLinear(5, 1, magnitude="sphere", eps=1e-12, dtype=torch.float64)
    x = torch.randn(1, 5, dtype=torch.float64)
    weighted_gradients(layer)
    layer(x).sum().backward()
    unit_w, unit_x = layer.weight / layer.weight.norm(), x / x.norm()
    assert error(layer.weight.grad, unit_x - (unit_w * unit_x).sum() * unit_w) < 1e-9


def test_the_weighted_gradient_does_not_depend_on_the_norm():
    layer = DecoupledConv2d(4, 6, 3, groups=2, eps=1e-12, dtype=torch.float64)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    found = []
    with weighted_gradients(layer):
        for scale in (1.0, 50.0):
            project_weights(layer, scale)
            found.append(torch.autograd.grad(layer(x).sin().sum(), layer.weight)[0])
    assert error(found[1], found[0]) < 1e-9


def test_removed_hooks_give_the_plain_gradients_back_and_other_hooks_stay():
    model = unweighted()
    seen = []
    model[0].weight.register_hook(lambda gradient: seen.append(gradient))
    plain = gradients_of(model)
    handle = weighted_gradients(model)
    assert error(gradients_of(model)[0], plain[0]) > 1e-2
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(model), plain, strict=True))
    assert len(seen) == 3


def test_only_filters_are_weighted():
    model = nn.Sequential(DecoupledLinear(5, 3, bias=True), nn.Linear(3, 2))
    x = torch.randn(4, 5)
    parameters = dict(model.named_parameters())

    def gradients():
        return dict(zip(parameters, torch.autograd.grad(model(x).sin().sum(), list(parameters.values())), strict=True))

    plain = gradients()
    with weighted_gradients(model):
        weighted = gradients()
    assert {name for name in plain if not torch.equal(plain[name], weighted[name])} == {"0.weight"}


def test_a_shared_weight_is_weighted_once():
    layer, twin = (DecoupledLinear(5, 3, eps=1e-2) for _ in range(2))
    twin.weight = layer.weight
    model, x = nn.ModuleList([layer, layer, twin]), torch.randn(2, 5)
    (plain,) = torch.autograd.grad(layer(x).sum() + twin(x).sum(), layer.weight)
    with weighted_gradients(model):
        (weighted,) = torch.autograd.grad(layer(x).sum() + twin(x).sum(), layer.weight)
    assert error(weighted, plain * (layer.weight.square().sum(1, keepdim=True) + 1e-2).sqrt()) < 1e-6


def test_weighting_twice_is_refused_and_weighting_again_after_removal_is_not():
    layer = DecoupledLinear(5, 3)
    with weighted_gradients(layer), pytest.raises(ValueError, match="weighted already"):
        weighted_gradients(layer)
    weighted_gradients(layer).remove()


def test_frozen_filters_are_passed_over():
    model = nn.Sequential(DecoupledLinear(5, 3), DecoupledLinear(3, 2))
    model[0].weight.requires_grad_(False)
    weighted_gradients(model)
    assert not model[0].weight._backward_hooks
    assert len(model[1].weight._backward_hooks) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_weighted_gradient_keeps_dtype_and_memory_format(dtype):
    layer = DecoupledConv2d(4, 6, 3, dtype=dtype).to(memory_format=torch.channels_last)
    weighted_gradients(layer)
    layer(torch.randn(1, 4, 5, 5, dtype=dtype)).sum().backward()
    assert layer.weight.grad.dtype == dtype
    assert layer.weight.grad.stride() == layer.weight.stride()


def test_gradients_of_a_compiled_model_are_weighted_too():
    layer, x = DecoupledLinear(5, 3), torch.randn(2, 5)
    weighted_gradients(layer)
    (expected,) = torch.autograd.grad(layer(x).sin().sum(), layer.weight)
    torch.compile(layer, backend="aot_eager")(x).sin().sum().backward()
    assert error(layer.weight.grad, expected) < 1e-5


# -- parameter groups -------------------------------------------------------------------------------------------------


def decayed(model, weight_decay=0.1):
    """The names that decay, after a check that every trainable parameter is in one group and no group is empty."""
    groups = parameter_groups(model, weight_decay=weight_decay)
    names = {parameter: name for name, parameter in model.named_parameters()}
    everything = [names[p] for group in groups for p in group["params"]]
    assert sorted(everything) == sorted(names[p] for p in names if p.requires_grad)
    assert all(group["params"] for group in groups)
    assert {group["weight_decay"] for group in groups} <= {weight_decay, 0.0}
    return {names[p] for group in groups if group["weight_decay"] for p in group["params"]}


def test_filters_and_the_operators_own_tensors_do_not_decay_and_everything_else_does():
    model = nn.Sequential(
        DecoupledConv2d(
            3, 4, 3, bias=True, magnitude="segmented", angular="sigmoid", learn=("radius", "alpha", "beta", "k")
        ),
        DecoupledLinear(4, 4, magnitude="piecewise", angular="power_cosine", learn=("radius", "p")),
        DecoupledLinear(4, 4, angular="piecewise"),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2),
    )
    assert {name.split(".", 1)[1] for name, _ in model.named_parameters()} >= {
        "raw_radius",
        "alpha",
        "beta",
        "raw_k",
        "raw_p",
    }
    assert {"1.h.values", "2.g.values"} <= set(dict(model.named_parameters()))
    assert decayed(model) == {"0.bias", "3.weight", "3.bias", "4.weight", "4.bias"}


@pytest.mark.parametrize("case", WEIGHTED)
def test_filters_whose_norm_acts_decay(case):
    assert decayed(nn.Sequential(DecoupledConv2d(3, 4, 3, **WEIGHTED[case]))) == {"0.weight"}


def test_the_root_may_be_a_layer_and_an_empty_group_is_left_out():
    assert decayed(DecoupledLinear(3, 2)) == set()
    assert decayed(DecoupledLinear(3, 2, bias=True)) == {"bias"}
    assert decayed(nn.Linear(3, 2)) == {"weight", "bias"}
    assert len(parameter_groups(nn.Linear(3, 2), weight_decay=0.1)) == 1
    assert parameter_groups(nn.ReLU(), weight_decay=0.1) == []


def test_shared_parameters_appear_once_and_decay_where_one_use_does():
    free, again, plain = DecoupledLinear(4, 4), DecoupledLinear(4, 4), nn.Linear(4, 4, bias=False)
    again.weight = free.weight
    assert decayed(nn.ModuleList([free, free, again])) == set()
    plain.weight = free.weight
    assert decayed(nn.ModuleList([free, plain])) == {"0.weight"}
    assert decayed(nn.ModuleList([plain, free])) == {"0.weight"}


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(DecoupledLinear(3, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    assert decayed(model) == {"1.weight"}


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("none", {"0.bias"}), ("linear", {"0.bias", *(f"0.parametrizations.weight.original{i}" for i in (0, 1))})],
)
def test_parametrised_filters_follow_the_rule_of_filters(weighting, expected):
    model = nn.Sequential(DecoupledLinear(3, 2, bias=True, weighting=weighting))
    nn.utils.parametrizations.weight_norm(model[0])
    assert decayed(model) == expected


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_torchs_optimisers_take_the_groups_and_decay_by_them_alone(optimizer):
    model = nn.Sequential(DecoupledLinear(5, 3), nn.Linear(3, 2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer(parameter_groups(model, weight_decay=0.1), lr=0.1).step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"1.weight", "1.bias"}


@pytest.mark.parametrize("weight_decay", [-1e-4, float("nan"), float("inf")])
def test_a_decay_that_is_none_is_refused(weight_decay):
    with pytest.raises(ValueError, match="weight_decay must be a number, 0 or more"):
        parameter_groups(nn.Linear(3, 2), weight_decay=weight_decay)


# -- the documentation ------------------------------------------------------------------------------------------------


def test_every_snippet_of_the_documentation_runs():
    page = (Path(__file__).parent.parent / "docs" / "optimisation.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) >= 4
    names = {}
    for snippet in snippets:
        exec(snippet, names)


@pytest.mark.parametrize("change", [project_weights, weighted_gradients])
def test_a_weight_that_an_ordinary_layer_has_too_is_refused(change):
    model = nn.ModuleDict({"ours": DecoupledLinear(4, 4), "theirs": nn.Linear(4, 4, bias=False)})
    model["theirs"].weight = model["ours"].weight
    with pytest.raises(ValueError, match=r"the weight of ours is theirs.weight too, where its norm acts"):
        change(model)


@pytest.mark.parametrize("magnitude", ["inner_product", "tanh"])
@pytest.mark.parametrize(
    "rework", [lambda layer: prune.random_unstructured(layer, "weight", 0.5), nn.utils.spectral_norm], ids=["prune", "norm"]
)
def test_the_original_of_a_pruned_or_spectrally_normed_weight_decays_as_the_weight_does(rework, magnitude):
    layer = rework(DecoupledConv2d(3, 4, 3, bias=True, magnitude=magnitude))
    prune.random_unstructured(layer, "bias", 0.5)
    decaying = {id(p) for g in parameter_groups(layer, 0.1) if g["weight_decay"] for p in g["params"]}
    assert (id(layer.weight_orig) in decaying) is (magnitude == "inner_product")
    assert id(layer.bias_orig) in decaying
