"""Conversion of a network that exists, and back: what is replaced, what is left alone, and what survives."""

import copy
import gc
import warnings

import pytest
import torch
from tolerances import EXACT, error
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing._internal.two_tensor import TwoTensor

import dcnets
from dcnets import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
    convert,
    pretrained_select,
    to_plain,
)
from dcnets.decoupled import Decoupled
from dcnets.twins import OPERATORS_OWN

TWINS = {
    nn.Conv1d: DecoupledConv1d,
    nn.Conv2d: DecoupledConv2d,
    nn.Conv3d: DecoupledConv3d,
    nn.ConvTranspose2d: DecoupledConvTranspose2d,
    nn.Linear: DecoupledLinear,
}
MODES = ("zeros", "reflect", "replicate", "circular")
EVERY = lambda name, module: True
PLAIN = [
    *[(lambda m=m: nn.Conv1d(4, 6, 3, 2, 2, 2, 2, padding_mode=m), (2, 4, 9)) for m in MODES],
    *[(lambda m=m: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), 2, padding_mode=m), (2, 4, 7, 8)) for m in MODES],
    *[(lambda m=m: nn.Conv3d(4, 6, (1, 3, 2), 1, (0, 2, 1), padding_mode=m), (2, 4, 5, 6, 4)) for m in MODES],
    (lambda: nn.Conv2d(4, 6, 3, padding="same", bias=False), (2, 4, 6, 5)),
    (lambda: nn.Conv2d(4, 6, 3, padding="valid"), (2, 4, 6, 5)),
    (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 6, 5)),
    (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, True, 1), (2, 4, 4, 5)),
    (lambda: nn.ConvTranspose2d(4, 6, (2, 3), (3, 2), (0, 1), (2, 1), 2, False, (1, 2)), (2, 4, 4, 5)),
    (lambda: nn.Linear(4, 6), (3, 5, 4)),
    (lambda: nn.Linear(4, 6, bias=False), (3, 4)),
]
LINEAR = [
    *[{"magnitude": "linear", "weighting": weighting} for weighting in ("none", "linear", "product", "separate")],
    *[{"magnitude": "linear", "weighting": w, "learn": ("alpha",)} for w in ("none", "linear", "product", "separate")],
    {"magnitude": "inner_product", "learn": ("alpha",)},
]


class Block(nn.Module):
    """A residual block with everything that a tree can hold."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.branches = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1))])
        self.named = nn.ModuleDict({"same": nn.Conv2d(4, 4, 3, padding=1, groups=2), "rest": nn.Identity()})
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.first(x)
        x = sum(branch(x) for branch in self.branches) + self.named["rest"](self.named["same"](x))
        return self.head(self.up(x).mean((2, 3)))


class Wider(nn.Conv2d):
    """A user's own convolution."""

    def forward(self, x):
        return 2 * super().forward(x)


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=False))


def reason(report, name):
    """Why a layer was skipped."""
    (found,) = [reason for skipped, _, reason in report.skipped if skipped == name]
    return found


# -- the tree --------------------------------------------------------------------------------------------------------


def test_every_convolution_of_any_tree_is_replaced_in_place_and_the_model_still_runs():
    model = Block()
    converted, report = convert(model)
    assert converted is model
    assert [name for name, _ in report.replaced] == ["first", "branches.0", "branches.1.1", "named.same"]
    for name, module in model.named_modules():
        assert (type(module) is DecoupledConv2d) == (name in dict(report.replaced)), name
    assert type(model.branches) is nn.ModuleList
    assert type(model.named) is nn.ModuleDict
    assert [(name, kind) for name, kind, _ in report.skipped] == [("up", "ConvTranspose2d"), ("head", "Linear")]
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_a_model_that_is_itself_a_layer_comes_back_as_the_decoupled_one(make, shape):
    plain = make()
    layer, report = convert(plain, select=EVERY)
    assert type(layer) is TWINS[type(plain)]
    assert report.replaced == [("(the model)", f"{type(plain).__name__} → {type(layer).__name__}")]
    assert layer.weight is plain.weight
    assert layer.bias is plain.bias
    x = torch.randn(shape)
    assert layer(x).shape == plain(x).shape
    names = [name for name in vars(plain) if not name.startswith("_")]
    assert {name: getattr(layer, name) for name in names} == {name: getattr(plain, name) for name in names}


@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_a_converted_layer_computes_what_a_decoupled_layer_with_that_weight_computes(make, shape):
    plain = make()
    weight, bias = plain.weight.detach(), plain.bias
    x = torch.randn(shape)
    layer, _ = convert(plain, select=EVERY, magnitude="sphere", angular="square_cosine")
    with torch.no_grad():
        plain.bias = None
        products = plain(x).double()
        plain.weight = nn.Parameter(torch.ones_like(weight))
        norms = (plain(x.square()).double() + 1e-4).sqrt()
    filters = weight.transpose(0, 1) if isinstance(plain, nn.ConvTranspose2d) else weight
    if isinstance(plain, nn.ConvTranspose2d) and plain.groups > 1:
        filters = weight.unflatten(0, (plain.groups, -1)).transpose(1, 2).flatten(0, 1)
    lengths = (filters.flatten(1).double().square().sum(1) + 1e-4).sqrt()
    shaped = (lambda t: t) if isinstance(plain, nn.Linear) else (lambda t: t.view(-1, *(1,) * (x.dim() - 2)))
    c = products / (norms * shaped(lengths))
    truth = c * c.abs() + (0 if bias is None else shaped(bias.double()))
    torch.testing.assert_close(layer(x).double(), truth, rtol=1e-5, atol=1e-6)


def test_select_decides_alone_and_gets_names_and_modules():
    asked = {}

    def select(name, module):
        asked[name] = module
        return name in ("branches.0", "up", "head")

    model = Block()
    before = dict(model.named_modules())
    _, report = convert(model, select=select)
    assert asked.keys() == {"first", "branches.0", "branches.1.1", "named.same", "up", "head"}
    assert all(asked[name] is before[name] for name in asked)
    assert [name for name, _ in report.replaced] == ["branches.0", "up", "head"]
    assert type(model.up) is DecoupledConvTranspose2d
    assert type(model.head) is DecoupledLinear
    assert type(model.first) is nn.Conv2d
    assert reason(report, "first") == "not selected"
    assert model(torch.randn(2, 3, 6, 6)).shape == (2, 5)


def test_without_select_transposed_and_linear_layers_are_named_as_waiting_for_it():
    _, report = convert(nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.Linear(4, 5)))
    assert report.replaced == []
    assert {why for _, _, why in report.skipped} == {"converted only when select asks for it"}


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose3d])
def test_a_convolution_without_a_decoupled_counterpart_is_skipped_and_named(kind):
    model, report = convert(nn.Sequential(kind(3, 4, 3)), select=EVERY)
    assert type(model[0]) is kind
    assert report.skipped == [("0", kind.__name__, "has no decoupled counterpart")]


def test_options_reach_every_layer():
    model, _ = convert(
        small(), magnitude="segmented", angular="sigmoid", weighting="linear", alpha=0.7, beta=0.2, eps=1e-3,
        radius="absolute", radius_init=2.0, radius_per="layer", learn=("radius", "k"),
    )  # fmt: skip
    for layer in (model[0], model[3]):
        operator = dcnets.Operator("segmented", "sigmoid", "linear", "absolute", alpha=0.7, beta=0.2, eps=1e-3)
        assert layer.operator == operator
        assert layer.raw_radius.shape == (1,)
        assert layer.rho.item() == pytest.approx(2.0)
        assert layer.raw_k.shape == layer.weight.shape[:1]


OPERATORS = [
    "tanh-cosine", "sphere-linear", "linear-square_cosine", "inner_product-cosine", "segmented(beta=0.3)-sigmoid(k=0.4)",
    "tanh(alpha=0.5,radius=absolute,eps=0.001)-power_cosine(p=3.0)-separate", "tanh+0.5*linear-cosine",
    "piecewise(init=tanh, knots=5)-cosine", "mixed(beta=0.0)-relu_cosine-linear",
]  # fmt: skip


@pytest.mark.parametrize("form", OPERATORS)
def test_an_operator_or_its_text_names_its_parts_at_once(form):
    operator = dcnets.Operator.parse(form)
    for given in (operator, form):
        model, report = convert(small(), operator=given)
        assert len(report.replaced) == 2
        assert model[0].operator == model[3].operator == operator
        assert model(torch.randn(2, 3, 6, 6)).isfinite().all()


def test_an_operator_goes_with_the_options_that_are_not_its_own():
    model, _ = convert(small(), operator="ball-sigmoid", learn=("radius", "k"), radius_init=2.0, radius_per="layer")
    parts, _ = convert(
        small(), magnitude="ball", angular="sigmoid", learn=("radius", "k"), radius_init=2.0, radius_per="layer"
    )
    assert model[0].rho.tolist() == [pytest.approx(2.0)]
    assert torch.equal(model[0].raw_k, parts[0].raw_k)  # a learned k starts where it does without an operator
    assert model[0].extra_repr() == parts[0].extra_repr()


@pytest.mark.parametrize(
    "part",
    [
        {"magnitude": "tanh"}, {"angular": "cosine"}, {"weighting": "none"}, {"alpha": 1.0}, {"beta": None}, {"k": 0.3},
        {"p": 2.0}, {"eps": 1e-4}, {"radius": "relative"},
    ],
)  # fmt: skip
def test_naming_an_operator_and_one_of_its_parts_is_refused(part):
    (name,) = part
    model = small()
    before = list(model)
    with pytest.raises(TypeError, match=f"got operator='tanh-cosine' and {name} as well; name {name} in the operator"):
        convert(model, operator="tanh-cosine", **part)
    assert list(model) == before


def test_a_network_without_any_layer_is_left_alone():
    model = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3))
    converted, report = convert(model)
    assert converted is model
    assert (report.replaced, report.skipped) == ([], [])


# -- what is shared stays shared -------------------------------------------------------------------------------------


def test_a_layer_in_several_places_stays_one_layer_and_is_reported_once():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(conv, nn.Sequential(nn.ReLU(), conv), conv)
    _, report = convert(model)
    assert type(model[0]) is DecoupledConv2d
    assert model[0] is model[1][1] is model[2]
    assert [name for name, _ in report.replaced] == ["0"]
    model(torch.randn(2, 3, 5, 5))
    assert model[0].num_batches_tracked == 3


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    model[1].weight, model[1].bias = model[0].weight, model[0].bias
    convert(model)
    assert model[0] is not model[1]
    assert model[0].weight is model[1].weight
    assert model[0].bias is model[1].bias
    assert len(list(model.parameters())) == 4  # weight and bias once, and two radii


def test_a_weight_tied_to_another_kind_of_module_stays_tied():
    model = nn.Module()
    model.embed, model.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    model.head.weight = model.embed.weight
    convert(model, select=EVERY)
    assert type(model.head) is DecoupledLinear
    assert model.head.weight is model.embed.weight


# -- what survives ---------------------------------------------------------------------------------------------------


def test_weights_and_biases_are_the_same_parameters_so_an_optimizer_goes_on():
    model = small()
    before = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 3, 6, 6)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    convert(model)
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert after.keys() - before.keys() == {"0.raw_radius", "3.raw_radius"}
    model(x).square().sum().backward()
    momenta = {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in before.items()}
    expected = {name: p.detach() - 0.1 * (0.9 * momenta[name] + p.grad) for name, p in before.items()}
    optimizer.step()
    for name, parameter in before.items():
        assert parameter.grad.abs().sum() > 0 or name == "0.bias", name  # batch norm takes the first bias out
        torch.testing.assert_close(parameter.detach(), expected[name])


def test_the_checkpoint_of_the_original_loads_strictly():
    model, other = small(), small()
    checkpoint = other.state_dict()
    convert(model)
    assert not any(model.load_state_dict(checkpoint, strict=True))
    for name, tensor in checkpoint.items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_survives(dtype):
    model, _ = convert(small().to(dtype), magnitude="segmented", learn=("radius", "beta"))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model[0].running_norm.dtype == torch.promote_types(dtype, torch.float32)
    assert model(torch.randn(2, 3, 6, 6, dtype=dtype)).dtype == dtype


def test_the_device_survives():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3))
    model[1].to_empty(device="cpu")
    convert(model, magnitude="piecewise", angular="piecewise")
    assert {tensor.device.type for tensor in model[0].state_dict().values()} == {"meta"}
    assert {tensor.device.type for tensor in model[1].state_dict().values()} == {"cpu"}
    assert model[1].raw_radius.tolist() == [pytest.approx(1.0, abs=1e-4)] * 5


def test_a_default_device_of_the_moment_makes_no_difference():
    model = small()
    with torch.device("meta"):
        convert(model)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert model(torch.randn(2, 3, 6, 6)).isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_each_layer_survives(training):
    model = small().train(training)
    model[0].train(not training)
    convert(model, magnitude="piecewise")
    assert model.training is model[3].training is model[3].h.training is training
    assert model[0].training is model[0].h.training is not training


def test_a_frozen_layer_stays_frozen_with_all_that_is_new_in_it():
    model = small()
    model[0].requires_grad_(False)
    model[3].weight.requires_grad_(True)
    convert(model, magnitude="piecewise", learn=("radius", "alpha"))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"0.weight", "0.bias", "0.raw_radius", "0.alpha", "0.h.values"}


def test_a_bias_that_alone_is_trained_goes_on_being_so():
    conv = nn.Conv2d(3, 4, 3)
    conv.weight.requires_grad_(False)
    layer, _ = convert(conv)
    assert {name: p.requires_grad for name, p in layer.named_parameters()} == {
        "weight": False, "bias": True, "raw_radius": False,
    }  # fmt: skip


def test_a_channels_last_weight_stays_so():
    model, _ = convert(small().to(memory_format=torch.channels_last))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    assert model(x).is_contiguous(memory_format=torch.channels_last)


def test_attributes_tensors_and_modules_that_a_user_added_survive():
    model = small()
    model[0].note = {"pruned": False}
    model[0].register_buffer("mask", torch.ones(4))
    model[0].register_buffer("scratch", torch.zeros(2), persistent=False)
    model[0].gain = nn.Parameter(torch.ones(1))
    model[0].after = nn.Conv2d(4, 4, 1)
    mask, gain = model[0].mask, model[0].gain
    _, report = convert(model)
    assert model[0].note == {"pruned": False}
    assert model[0].mask is mask
    assert model[0].gain is gain
    assert "0.mask" in model.state_dict()
    assert "0.scratch" not in model.state_dict()
    assert [name for name, _ in report.replaced] == ["0", "0.after", "3"]
    assert type(model[0].after) is DecoupledConv2d


def test_a_layer_whose_own_attribute_has_a_name_of_the_operators_is_left_as_it_is():
    model = small()
    model[0].alpha = "mine"
    model[3].register_buffer("h", torch.ones(1))
    _, report = convert(model)
    assert [(name, reason.split(",")[0]) for name, _, reason in report.skipped if name in "03"] == [
        ("0", "has an attribute 'alpha' of its own"),
        ("3", "has an attribute 'h' of its own"),
    ]
    assert type(model[0]) is nn.Conv2d
    assert model[0].alpha == "mine"


@pytest.mark.parametrize("options", [{}, {"learn": ("radius", "alpha")}, {"magnitude": "piecewise", "angular": "piecewise"},
    {"magnitude": "segmented", "angular": "sigmoid", "learn": ("radius", "alpha", "beta", "k"), "sync": True},
    {"magnitude": "sphere", "angular": "power_cosine", "learn": ("p",)}])  # fmt: skip
def test_all_that_a_decoupled_layer_has_beside_an_ordinary_one_is_known_as_the_operators_own(options):
    ordinary, ours = (
        {*vars(layer), *layer._parameters, *layer._buffers, *layer._modules}
        for layer in (nn.Conv2d(3, 4, 3), DecoupledConv2d(3, 4, 3, bias=True, **options))
    )
    assert ours - ordinary <= OPERATORS_OWN


def test_the_random_numbers_that_follow_are_the_same_as_without_conversion():
    model = Block()
    before = torch.get_rng_state()
    convert(model, select=EVERY, magnitude="piecewise", angular="piecewise")
    assert torch.equal(torch.get_rng_state(), before)


# -- hooks -----------------------------------------------------------------------------------------------------------


def add_hooks(layer, calls):
    """Every hook that torch has, each of which says that it was called, and with which module."""

    def say(name):
        return lambda module, *_, **__: calls.append((name, module))

    return [
        layer.register_forward_pre_hook(say("forward_pre")),
        layer.register_forward_pre_hook(say("forward_pre_kwargs"), with_kwargs=True),
        layer.register_forward_hook(say("forward")),
        layer.register_forward_hook(say("forward_kwargs"), with_kwargs=True),
        layer.register_forward_hook(say("forward_always"), always_call=True),
        layer.register_full_backward_pre_hook(say("backward_pre")),
        layer.register_full_backward_hook(say("backward")),
        layer.register_state_dict_pre_hook(say("state_dict_pre")),
        layer.register_state_dict_post_hook(say("state_dict_post")),
        layer.register_load_state_dict_pre_hook(say("load_state_dict_pre")),
        layer.register_load_state_dict_post_hook(say("load_state_dict_post")),
    ]


def use(model):
    """Call, differentiate, save and load."""
    model(torch.randn(2, 3, 6, 6, requires_grad=True)).sum().backward()
    model.load_state_dict(model.state_dict())


def test_every_kind_of_hook_survives_with_its_handle():
    calls = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    handles = add_hooks(model[0], calls)
    convert(model)
    gc.collect()  # the ordinary layer is gone for good
    use(model)
    called = [name for name, _ in calls]
    assert len(called) == len(handles)
    assert set(called) == {
        "forward_pre", "forward_pre_kwargs", "forward", "forward_kwargs", "forward_always", "backward_pre", "backward",
        "state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post",
    }  # fmt: skip
    assert all(module is model[0] for _, module in calls)
    for handle in handles:
        handle.remove()
    calls.clear()
    use(model)
    assert calls == []


def test_a_hook_that_changes_the_output_goes_on_changing_it():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    handle = model[0].register_forward_hook(lambda module, inputs, y: 3 * y)
    convert(model)
    model.eval()
    x = torch.randn(2, 3, 5, 5)
    tripled = model(x)
    handle.remove()
    torch.testing.assert_close(tripled, 3 * model(x))


def test_hooks_survive_there_and_back():
    calls = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    handles = add_hooks(model[0], calls)
    convert(model, magnitude="inner_product")
    to_plain(model)
    gc.collect()
    use(model)
    assert len(calls) == len(handles)
    for handle in handles:
        handle.remove()
    use(model)
    assert len(calls) == len(handles)


# -- layers that are left alone --------------------------------------------------------------------------------------


def test_a_subclass_is_skipped_and_named():
    model = nn.Sequential(Wider(3, 4, 3), nn.Conv2d(4, 4, 3))
    _, report = convert(model, select=EVERY)
    assert type(model[0]) is Wider
    assert report.skipped == [("0", "Wider", "a subclass of Conv2d, which may compute something else")]


def test_a_patched_forward_is_skipped_and_named():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    model[0].forward = lambda x: x
    _, report = convert(model)
    assert type(model[0]) is nn.Conv2d
    assert reason(report, "0") == "its forward is patched, which may compute something else"


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_layer_is_skipped_until_it_has_seen_a_batch():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyLinear(4))
    _, report = convert(model, select=EVERY)
    assert [name for name, _, _ in report.skipped] == ["0", "1"]
    assert reason(report, "0") == "lazy; send one batch through the model first"
    model(torch.randn(2, 3, 5, 5))
    _, report = convert(model, select=EVERY)
    assert [name for name, _ in report.replaced] == ["0", "1"]


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.nn.utils.weight_norm` is deprecated", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    "parametrise",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        old_weight_norm,
        torch.nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
    ],
    ids=["weight_norm", "spectral_norm", "old_weight_norm", "old_spectral_norm", "pruned_weight", "pruned_bias"],
)
def test_a_parametrised_layer_is_skipped_and_named(parametrise):
    model = nn.Sequential(parametrise(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3)).eval()
    before, x = model[0], torch.randn(2, 3, 6, 6)
    expected = before(x)
    _, report = convert(model)
    assert [name for name, _ in report.replaced] == ["1"]
    assert reason(report, "0") == "parametrised; remove weight_norm, spectral_norm or the like first"
    assert model[0] is before
    torch.testing.assert_close(before(x), expected, rtol=0, atol=0)


def test_a_parametrisation_that_was_removed_is_no_hindrance():
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    parametrize.remove_parametrizations(model[0], "weight")
    _, report = convert(model)
    assert [name for name, _ in report.replaced] == ["0"]


def test_a_decoupled_layer_is_skipped_with_its_operator_and_a_second_conversion_changes_nothing():
    model = small()
    convert(model, magnitude="ball", angular="square_cosine")
    layers = list(model)
    _, report = convert(model, magnitude="tanh")
    assert list(model) == layers
    assert report.replaced == []
    assert reason(report, "0") == "already decoupled (ball-square_cosine)"


def test_a_linear_layer_that_torch_reads_without_calling_it_is_skipped_and_named():
    """In evaluation nn.TransformerEncoderLayer hands the weights to one kernel, whatever stands in the layers' place."""
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3))
    _, report = convert(model, select=EVERY)
    assert [name for name, _ in report.replaced] == ["1"]
    for name in ("0.linear1", "0.linear2"):
        assert "fast path of nn.TransformerEncoderLayer" in reason(report, name)
    assert reason(report, "0.self_attn.out_proj") == "a subclass of Linear, which may compute something else"


# -- models that are refused -----------------------------------------------------------------------------------------


def assert_refused(model, said, before):
    with pytest.raises(TypeError, match=said):
        convert(model)
    assert list(model.modules()) == before
    assert not any(isinstance(module, Decoupled) for module in model.modules())


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, :UserWarning")
def test_a_dynamically_quantised_model_is_refused():
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 5)), {nn.Linear})
    assert_refused(model, r"1 \(Linear\) is quantised; convert the float model first", list(model.modules()))


def test_a_weight_of_a_tensor_subclass_is_refused():
    model = small()
    weight = model[3].weight.detach()
    model[3].weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    assert_refused(model, r"3 \(Conv2d\) holds its weight as a TwoTensor", list(model.modules()))


def test_a_users_own_module_whose_path_resembles_a_quantised_one_is_not_refused(monkeypatch):
    monkeypatch.setattr(Block, "__module__", "shop.qatar.quantizedlike")
    _, report = convert(Block())
    assert len(report.replaced) == 4


@pytest.mark.parametrize(
    "compiled", [lambda m: torch.compile(m, backend="eager"), lambda m: m.compile(backend="eager") or m]
)
def test_a_compiled_model_is_refused(compiled):
    model = compiled(small())
    assert_refused(model, "is compiled; convert the model first, then compile it", list(model.modules()))


def test_a_compiled_part_is_refused_by_its_name():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), small())
    model[1].compile(backend="eager")
    assert_refused(model, r"^1 \(Sequential\) is compiled", list(model.modules()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_script_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), torch.jit.script(nn.Conv2d(4, 5, 3)))
    assert_refused(model, r"^1 \(.*ScriptModule\) is a script; convert the Python model", list(model.modules()))


def test_a_model_wrapped_for_data_parallel_training_is_refused(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3)))
        assert_refused(model, "wrapped for data-parallel training; convert the model first", list(model.modules()))
    finally:
        torch.distributed.destroy_process_group()


def test_bringing_back_a_compiled_model_is_refused():
    model = torch.compile(convert(small(), magnitude="linear")[0], backend="eager")
    with pytest.raises(TypeError, match="is compiled; bring back the model first"):
        to_plain(model)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"magnitude": "tanhh"}, ValueError, "unknown magnitude 'tanhh'; did you mean 'tanh'"),
        ({"angular": "cosin"}, ValueError, "unknown angular 'cosin'; did you mean 'cosine'"),
        ({"magnitud": "tanh"}, TypeError, "convert got an unknown keyword 'magnitud'; did you mean 'magnitude'"),
        ({"operatr": "tanh-cosine"}, TypeError, "convert got an unknown keyword 'operatr'; did you mean 'operator'"),
        ({"operator": ("tanh", "cosine")}, TypeError, "operator is a dcnets.Operator or its text, .*, got tuple"),
        ({"operator": "tanh"}, ValueError, "cannot read operator 'tanh'; expected magnitude-angular"),
        ({"operator": "sphere-cosine", "radius_init": 2.0}, ValueError, "sphere has no radius"),
        ({"selct": None}, TypeError, "convert got an unknown keyword 'selct'; did you mean 'select'"),
        ({"bias": True}, TypeError, "convert got an unknown keyword 'bias'"),
        ({"device": "cpu"}, TypeError, "convert got an unknown keyword 'device'"),
        ({"dtype": torch.float64}, TypeError, "convert got an unknown keyword 'dtype'"),
        ({"magnitude": "sphere", "radius_init": 2.0}, ValueError, "sphere has no radius"),
        ({"learn": ("k",)}, ValueError, "no k to learn"),
        ({"radius_init": -1.0}, ValueError, "radius_init must be above"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_touched(options, kind, said):
    model = small()
    before, state = list(model.modules()), copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=said):
        convert(model, **options)
    assert list(model.modules()) == before
    assert model.state_dict().keys() == state.keys()


def test_wrong_options_are_refused_where_there_is_nothing_to_convert():
    with pytest.raises(ValueError, match="unknown magnitude"):
        convert(nn.ReLU(), magnitude="tanhh")


def test_an_error_in_select_leaves_the_model_as_it_was():
    model = small()
    before = list(model.modules())

    def select(name, module):
        if name == "3":
            raise RuntimeError("no opinion")
        return True

    with pytest.raises(RuntimeError, match="no opinion"):
        convert(model, select=select)
    assert list(model.modules()) == before


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_report_prints_as_a_table_of_what_was_replaced_and_what_was_skipped_and_why():
    _, report = convert(nn.ModuleDict({"a_long_name": nn.Conv2d(3, 4, 3), "head": nn.Linear(4, 5), "own": Wider(3, 4, 3)}))
    assert str(report).splitlines() == [
        "layer        kind",
        "a_long_name  Conv2d → DecoupledConv2d  replaced",
        "head         Linear                    skipped: converted only when select asks for it",
        "own          Wider                     skipped: a subclass of Conv2d, which may compute something else",
        "1 replaced, 2 skipped",
    ]


def test_the_report_of_nothing_says_so():
    _, report = convert(nn.ReLU())
    assert str(report).splitlines()[-1] == "0 replaced, 0 skipped"


# -- and back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_the_inner_product_leaves_outputs_as_they_were_and_comes_back_exactly(make, shape):
    """Bit for bit; some of torch's convolutions begin their sums with the bias, which rounds once more or less."""
    plain = make()
    plain.note = "mine"
    original = copy.deepcopy(plain)
    x = torch.randn(shape)
    layer, _ = convert(plain, select=EVERY, magnitude="inner_product")
    rounding = 0.0 if plain.bias is None else 2 * torch.finfo(torch.float32).eps
    assert error(layer(x), original(x)) <= rounding
    back, report = to_plain(layer)
    assert len(report.replaced) == 1
    assert type(back) is type(original)
    assert back.weight is plain.weight
    assert back.bias is plain.bias
    assert vars(back).keys() == vars(original).keys()
    assert back.extra_repr() == original.extra_repr()
    assert back.state_dict().keys() == original.state_dict().keys()
    assert torch.equal(back(x), original(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", LINEAR)
@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_what_is_linear_in_x_comes_back_as_an_ordinary_layer_that_computes_the_same(make, shape, options, dtype):
    layer, _ = convert(make().to(dtype), select=EVERY, **options)
    if isinstance(layer.alpha, nn.Parameter):
        nn.init.uniform_(layer.alpha, -1.5, 1.5)
    x = torch.randn(shape, dtype=dtype)
    expected = layer(x)
    plain, report = to_plain(layer)
    assert type(plain) in TWINS
    assert plain.weight.dtype == dtype
    assert not report.skipped
    assert error(plain(x), expected) < {torch.float32: 1e-6, torch.float64: EXACT}[dtype]
    assert not {name for name in vars(plain) if hasattr(Decoupled, name)}
    assert plain.state_dict().keys() <= {"weight", "bias"}


@pytest.mark.parametrize("weighting", ["none", "linear"])
def test_an_alpha_that_is_a_number_is_folded_in_full_precision(weighting):
    layer, _ = convert(nn.Conv2d(3, 4, 3).double(), magnitude="linear", weighting=weighting, alpha=0.3)
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    expected = layer(x)
    assert error(to_plain(layer)[0](x), expected) < EXACT


def test_coming_back_preserves_mode_and_requires_grad_and_memory_format():
    model = small().to(memory_format=torch.channels_last).eval()
    model[0].weight.requires_grad_(False)
    convert(model, magnitude="linear")
    to_plain(model)
    assert not model[0].training
    assert not model[0].weight.requires_grad
    assert model[3].weight.requires_grad
    assert model[3].weight.is_contiguous(memory_format=torch.channels_last)


def test_what_is_not_linear_in_x_is_skipped_with_its_operator():
    model = nn.Sequential(
        DecoupledConv2d(3, 4, 3), DecoupledConv2d(4, 4, 3, magnitude="linear", angular="square_cosine"),
        DecoupledConv2d(4, 4, 3, magnitude="linear"),
    )  # fmt: skip
    before = list(model)
    _, report = to_plain(model)
    assert list(model)[:2] == before[:2]
    assert type(model[2]) is nn.Conv2d
    assert report.skipped == [
        ("0", "DecoupledConv2d tanh-cosine", "not linear in x"),
        ("1", "DecoupledConv2d linear-square_cosine", "not linear in x"),
    ]
    assert report.replaced == [("2", "DecoupledConv2d linear-cosine")]


def test_a_decoupled_subclass_or_a_parametrised_layer_is_not_brought_back():
    class Own(DecoupledConv2d):
        pass

    model = nn.Sequential(Own(3, 4, 3, magnitude="linear"), DecoupledConv2d(4, 4, 3, magnitude="linear"))
    old_weight_norm(model[1])
    before = list(model)
    _, report = to_plain(model)
    assert list(model) == before
    assert {why for _, _, why in report.skipped} == {"parametrised, patched or a subclass, which may compute something else"}


def test_a_shared_layer_comes_back_shared():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model, _ = to_plain(convert(nn.Sequential(conv, nn.ReLU(), conv), magnitude="linear")[0])
    assert type(model[0]) is nn.Conv2d
    assert model[0] is model[2]


def tied(*layers):
    """Layers in a row that have the first one's weight."""
    for layer in layers[1:]:
        layer.weight = layers[0].weight
    return nn.Sequential(*layers)


@pytest.mark.parametrize("options", LINEAR)
def test_tied_weights_come_back_tied(options):
    first, second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, 2, bias=False)
    model, _ = convert(tied(first, second), **options)
    x = torch.randn(2, 3, 6, 6)
    expected = model(x)
    _, report = to_plain(model)
    assert [name for name, _ in report.replaced] == ["0", "1"]
    assert model[0].weight is model[1].weight
    assert len(list(model.parameters())) == 2
    assert error(model(x), expected) < 1e-6


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (DecoupledLinear(4, 4, magnitude="linear", alpha=2.0), ["0", "1"]),
        (DecoupledLinear(4, 4, magnitude="inner_product"), ["0"]),  # it becomes an ordinary layer with the weight as it is
        (DecoupledLinear(4, 4, magnitude="tanh"), ["0", "1"]),
        (nn.Linear(4, 4), ["0"]),
        (nn.Embedding(4, 4), ["0"]),
    ],
    ids=["alpha", "inner_product", "tanh", "Linear", "Embedding"],
)
def test_a_layer_that_could_not_stay_tied_is_skipped_and_named(other, told):
    model = tied(DecoupledLinear(4, 4, magnitude="linear"), copy.deepcopy(other))
    first = model[0]
    _, report = to_plain(model)
    assert model[0] is first
    assert model[0].weight is model[1].weight
    assert [name for name, _, _ in report.skipped] == told
    assert reason(report, "0") == "shares its weight with 1.weight, as an ordinary layer could not; give each its own first"


def test_a_weight_that_stays_as_it_is_stays_tied_to_another_kind_of_module():
    model = tied(nn.Embedding(6, 4), DecoupledLinear(4, 6, bias=False, magnitude="inner_product"))
    _, report = to_plain(model)
    assert [name for name, _ in report.replaced] == ["1"]
    assert model[1].weight is model[0].weight


def test_tied_weights_without_values_stay_tied():
    with torch.device("meta"):
        layers = [DecoupledLinear(4, 4, magnitude="linear", alpha=alpha) for alpha in (1.0, 2.0)]
    model, report = to_plain(tied(*layers))
    assert [name for name, _, _ in report.skipped] == ["0", "1"]
    assert model[0].weight is model[1].weight


def test_a_checkpoint_of_the_network_brought_back_loads_into_the_original():
    model, original = small(), small()
    convert(model, magnitude="linear")
    to_plain(model)
    original.load_state_dict(model.state_dict(), strict=True)
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(original.eval()(x), model.eval()(x))


# -- timm's description of a model -----------------------------------------------------------------------------------


def described(**cfg):
    model = nn.Sequential()
    model.stem, model.body = nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3), nn.Linear(4, 4))
    model.head, model.aux = nn.Linear(4, 5), nn.Linear(4, 5)
    model.pretrained_cfg = cfg
    return model


@pytest.mark.parametrize("classifier", ["head", ("head", "aux"), ["head", "aux"]])
@pytest.mark.parametrize("first_conv", ["stem", ("stem",)])
def test_the_first_convolution_and_the_classifier_are_left_alone_unless_asked_for(first_conv, classifier):
    model = described(first_conv=first_conv, classifier=classifier)
    _, report = convert(model, select=pretrained_select(model))
    assert [name for name, _ in report.replaced] == ["body.0"]


def test_the_first_convolution_and_the_classifier_are_converted_where_asked_for():
    model = described(first_conv="stem", classifier=("head", "aux"))
    _, report = convert(model, select=pretrained_select(model, first_conv=True, classifier=True))
    assert [name for name, _ in report.replaced] == ["stem", "body.0", "head", "aux"]
    model = described(first_conv="stem", classifier="head")
    _, report = convert(model, select=pretrained_select(model, first_conv=True))
    assert [name for name, _ in report.replaced] == ["stem", "body.0"]


def test_a_description_without_a_classifier_selects_the_convolutions():
    model = described(first_conv="stem", classifier=None)
    _, report = convert(model, select=pretrained_select(model))
    assert [name for name, _ in report.replaced] == ["body.0"]


def test_a_model_without_a_description_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="Sequential has no pretrained_cfg; pass a function select"):
        pretrained_select(small())


@pytest.mark.parametrize("name", ["rho", "k", "p"])
@pytest.mark.parametrize("kind", ["parameter", "buffer", "attribute"])
def test_a_tensor_of_a_users_with_the_name_of_a_property_is_not_lost(name, kind):
    conv, own = nn.Conv2d(3, 4, 3), torch.ones(2)
    if kind == "buffer":
        conv.register_buffer(name, own)
    else:
        setattr(conv, name, nn.Parameter(own) if kind == "parameter" else own)
    model, report = convert(nn.Sequential(conv))
    assert model[0] is conv
    assert f"has an attribute {name!r} of its own" in report.skipped[0][2]


@pytest.mark.parametrize("name", ["tensors", "respond", "geometry", "dims"])
def test_an_attribute_of_a_users_with_the_name_of_a_method_breaks_no_layer(name):
    conv = nn.Conv2d(3, 4, 3)
    setattr(conv, name, [1])
    model, report = convert(nn.Sequential(conv))
    assert f"has an attribute {name!r} of its own" in report.skipped[0][2]
    assert model(torch.randn(1, 3, 5, 5)).shape == (1, 4, 3, 3)


def test_a_method_of_torchs_that_a_user_replaced_goes_along():
    conv = nn.Conv2d(3, 4, 3)
    conv.extra_repr = lambda: "mine"
    model, report = convert(nn.Sequential(conv))
    assert report.replaced
    assert "mine" in repr(model)
