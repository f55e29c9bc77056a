"""The penalties against a loop over filters, their derivatives, their batching and what they must not disturb."""

from itertools import pairwise

import pytest
import torch
from tolerances import EXACT, error
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

import dcnets
from dcnets import DecoupledConv1d, DecoupledConv2d, DecoupledConv3d, DecoupledConvTranspose2d, DecoupledLinear
from dcnets.penalties import orthogonal_penalty, orthonormal_penalty

PENALTIES = {"orthonormal": orthonormal_penalty, "orthogonal": orthogonal_penalty}
both_penalties = pytest.mark.parametrize("name", PENALTIES)
raw_or_normalised = pytest.mark.parametrize("normalised", [True, False])


class Launches(TorchDispatchMode):
    """Counts operations that compute: views of a tensor are free."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returns = func._schema.returns
        is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.count += not is_view
        return func(*args, **(kwargs or {}))


def network(dtype=torch.float64):
    """Every kind of layer, with repeated shapes, groups, another ε and filters that outnumber their elements."""
    return nn.Sequential(
        DecoupledConv2d(4, 6, 3, groups=2),
        DecoupledConv2d(4, 6, 3, groups=2, magnitude="sphere"),
        DecoupledConv2d(4, 6, 3, groups=2, eps=0.3),
        DecoupledConv2d(4, 6, 3, groups=2).to(memory_format=torch.channels_last),
        DecoupledConv2d(4, 3, (2, 3)),
        nn.ModuleList([DecoupledConvTranspose2d(6, 4, 3, groups=2, weighting="linear"), nn.Conv2d(4, 4, 3)]),
        DecoupledConvTranspose2d(3, 5, 2).to(memory_format=torch.channels_last),
        DecoupledConv1d(2, 9, 3, magnitude="inner_product"),
        DecoupledConv3d(2, 3, 2),
        DecoupledLinear(5, 7),
        DecoupledLinear(5, 7),
    ).to(dtype)


def filters_of(layer):
    """Each group's filters as lists of vectors, straight from the definition of each layer."""
    weight, groups = layer.weight, getattr(layer, "groups", 1)
    if isinstance(layer, DecoupledConvTranspose2d):  # (in, out/groups, …): a filter is a column of its group's block
        return [[block[:, i].reshape(-1) for i in range(weight.shape[1])] for block in weight.chunk(groups)]
    return [[filter_.reshape(-1) for filter_ in block] for block in weight.chunk(groups)]


def naive(model, name, normalised):
    total = 0.0
    for layer in model.modules():
        if not hasattr(layer, "operator"):
            continue
        for group in filters_of(layer):
            if normalised:
                group = [w / (w.square().sum() + layer.operator.eps).sqrt() for w in group]
            for i, left in enumerate(group):
                for j, right in enumerate(group):
                    if i != j:
                        total = total + (left @ right) ** 2
                    elif name == "orthonormal":
                        total = total + (left @ right - 1) ** 2
    return total


@both_penalties
@raw_or_normalised
def test_value_and_gradient_are_those_of_a_loop_over_pairs_of_filters(name, normalised):
    model = network()
    weights = [layer.weight for layer in model.modules() if hasattr(layer, "operator")]
    expected, found = naive(model, name, normalised), PENALTIES[name](model, normalised)
    assert expected > 1
    assert error(found, expected) < EXACT
    for gradient, wanted in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        assert error(gradient, wanted, least_scale=1e-3) < EXACT


@both_penalties
def test_normalised_is_the_default(name):
    model = network()
    assert PENALTIES[name](model) == PENALTIES[name](model, normalised=True)
    assert PENALTIES[name](model) != PENALTIES[name](model, normalised=False)


def test_orthonormal_filters_cost_nothing_and_orthogonal_ones_only_what_their_norms_cost():
    model = DecoupledConv2d(3, 5, 2, eps=1e-12, dtype=torch.float64)
    nn.init.orthogonal_(model.weight)
    assert orthonormal_penalty(model, normalised=False) < 1e-20
    with torch.no_grad():
        model.weight.mul_(2)
    assert orthogonal_penalty(model, normalised=False) < 1e-20
    assert orthonormal_penalty(model) < 1e-20
    assert orthonormal_penalty(model, normalised=False).item() == pytest.approx(5 * (4 - 1) ** 2)


def test_filters_of_different_groups_may_be_equal():
    model = DecoupledConv2d(4, 2, 3, groups=2)
    with torch.no_grad():
        model.weight[1] = model.weight[0]
    assert orthogonal_penalty(model) == 0


@both_penalties
@raw_or_normalised
@pytest.mark.parametrize(
    "make",
    [lambda: DecoupledConv2d(2, 4, 2, groups=2), lambda: DecoupledConvTranspose2d(2, 3, 2), lambda: DecoupledLinear(3, 4)],
)
def test_first_and_second_derivatives_are_the_numerical_ones(make, name, normalised):
    model = nn.ModuleList([make().double(), make().double()])
    with torch.no_grad():
        for layer in model:
            layer.weight.normal_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *_: PENALTIES[name](model, normalised), tuple(layer.weight for layer in model))


@both_penalties
@raw_or_normalised
def test_compiled_without_graph_breaks_it_gives_the_same_value_and_gradients(name, normalised):
    model = network(torch.float32)
    weights = [layer.weight for layer in model.modules() if hasattr(layer, "operator")]
    compiled = torch.compile(lambda: PENALTIES[name](model, normalised), fullgraph=True, backend="aot_eager")
    found, expected = compiled(), PENALTIES[name](model, normalised)
    assert error(found, expected) < 1e-5
    for gradient, wanted in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        assert error(gradient, wanted, least_scale=1e-3) < 1e-5


@both_penalties
def test_functional_transforms_see_the_same_gradient(name):
    model = DecoupledConv2d(3, 4, 2, dtype=torch.float64)
    found = torch.func.grad(lambda state: torch.func.functional_call(Value(model, name), state, ()))(
        {"model.weight": model.weight.detach()}
    )
    (expected,) = torch.autograd.grad(PENALTIES[name](model), model.weight)
    assert error(found["model.weight"], expected) < EXACT


class Value(nn.Module):
    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def forward(self):
        return PENALTIES[self.name](self.model)


@both_penalties
def test_a_bfloat16_model_is_computed_in_float32(name):
    model = network(torch.bfloat16)
    wide = network(torch.float32)
    wide.load_state_dict(model.state_dict())
    found, expected = PENALTIES[name](model), PENALTIES[name](wide)
    assert found.dtype == torch.float32
    assert error(found, expected) < 1e-6
    found.backward()
    expected.backward()
    assert model[0].weight.grad.dtype == torch.bfloat16
    assert torch.equal(model[0].weight.grad, wide[0].weight.grad.bfloat16())


@both_penalties
def test_autocast_does_not_touch_its_precision(name):
    model = network(torch.float32)
    expected = PENALTIES[name](model)
    (wanted,) = torch.autograd.grad(PENALTIES[name](model), model[0].weight, create_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = PENALTIES[name](model)
        (gradient,) = torch.autograd.grad(found, model[0].weight, create_graph=True)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(gradient, wanted)


@both_penalties
def test_the_gradient_keeps_the_memory_format_of_the_weight(name):
    model = DecoupledConv2d(4, 6, 3).to(memory_format=torch.channels_last)
    PENALTIES[name](model).backward()
    assert model.weight.grad.stride() == model.weight.stride()


def stages(depth):
    """Three widths, `depth` layers each and the layers between them: the shapes of a ResNet."""
    widths = [3] + [width for width in (4, 6, 8) for _ in range(depth)]
    return nn.Sequential(*(DecoupledConv2d(a, b, 3) for a, b in pairwise(widths)))


@both_penalties
def test_a_network_twice_as_deep_takes_as_many_launches(name):
    counts = []
    for depth in (11, 22):
        model = stages(depth)
        with Launches() as launches:
            torch.autograd.grad(PENALTIES[name](model), [layer.weight for layer in model])
        counts.append(launches.count)
    assert counts[0] == counts[1]
    assert counts[0] <= 80


@both_penalties
def test_without_gradients_no_gradient_is_computed(name):
    model = stages(3)
    with Launches() as launches:
        value = PENALTIES[name](model)
    with torch.no_grad(), Launches() as fewer:
        assert torch.equal(PENALTIES[name](model), value)
    assert fewer.count < launches.count


@both_penalties
def test_shared_filters_count_once(name):
    layer, twin = DecoupledConv2d(3, 4, 2), DecoupledConv2d(3, 4, 2, padding=1)
    twin.weight = layer.weight
    assert torch.equal(PENALTIES[name](nn.ModuleList([layer, layer, twin])), PENALTIES[name](layer))


def test_one_weight_read_as_two_sets_of_filters_counts_as_both():
    down, up = DecoupledConv2d(3, 4, 2), DecoupledConvTranspose2d(4, 3, 2)
    apart = orthogonal_penalty(down) + torch.zeros(())
    up.weight = down.weight
    assert orthogonal_penalty(nn.ModuleList([down, up])).item() == pytest.approx((apart + orthogonal_penalty(up)).item())


@both_penalties
def test_frozen_layers_count_but_get_no_gradient(name):
    model = network()
    model[0].weight.requires_grad_(False)
    value = PENALTIES[name](model)
    value.backward()
    assert error(value, naive(model, name, True)) < EXACT
    assert model[0].weight.grad is None
    assert model[1].weight.grad.abs().max() > 0


@both_penalties
def test_a_model_without_decoupled_layers_is_refused(name):
    with pytest.raises(ValueError, match="no decoupled filters in Conv2d"):
        PENALTIES[name](nn.Conv2d(3, 4, 2))


@both_penalties
def test_descending_it_turns_filters_apart(name):
    model = dcnets.DecoupledLinear(8, 6)
    before = PENALTIES[name](model).item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        PENALTIES[name](model).backward()
        optimizer.step()
    assert PENALTIES[name](model) < 1e-3 * before


@both_penalties
def test_frozen_filters_need_no_gradient_and_many_directions_go_at_once(name):
    model = network()
    model[0].weight.requires_grad_(False)
    learned = [weight for weight in model.parameters() if weight.requires_grad and weight.dim() > 1]
    value, directions = PENALTIES[name](model), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    single = torch.autograd.grad(value, learned, retain_graph=True, allow_unused=True)
    twice = torch.autograd.grad(value, learned, create_graph=True, allow_unused=True)
    many = torch.autograd.grad(value, learned, directions, is_grads_batched=True, allow_unused=True)
    reached = 0
    for one, again, all_of_them in zip(single, twice, many, strict=True):
        if one is not None:
            reached += 1
            torch.testing.assert_close(again, one)
            torch.testing.assert_close(all_of_them, torch.stack([one * d for d in directions]))
    assert reached == 10  # of 11 decoupled layers, one being frozen


@both_penalties
def test_every_parametrised_layer_counts_though_its_weight_is_made_at_each_reading(name):
    layers = [parametrizations.weight_norm(DecoupledConv2d(4, 8, 3)) for _ in range(16)]
    expected = sum(PENALTIES[name](layer) for layer in layers)
    torch.testing.assert_close(PENALTIES[name](nn.Sequential(*layers)), expected)
