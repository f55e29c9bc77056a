"""The paper's networks: their parameters, shapes and decoupled layers, with and without batch norm and ReLU."""

import copy
import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import dcnets
from dcnets import models
from dcnets.decoupled import Decoupled
from dcnets.fusing import fuse
from dcnets.losses import NormalisedClassifier
from dcnets.models.catalogue import NETWORKS

SIDES = dict.fromkeys(models.names(), 32) | {"features2d": 28}
PAPER_SIDES = SIDES | dict.fromkeys(("resnet18", "resnet18_modified", "vgg16", "googlenet"), 224)
NARROW = {
    "cnn9": {"width": 4}, "cnn9_attack": {"width": 2}, "resnet32": {"width": 4}, "resnet18": {"width": 4},
    "resnet18_modified": {"width": 4}, "features2d": {"width": 4}, "vgg16": {"head": "small"}, "googlenet": {},
}  # fmt: skip
"""What makes a network small enough to compute with here."""


def narrow(name, **more):
    return models.create(name, num_classes=5, **{**NARROW[name], **more})


def images(name, batch=4, channels=None):
    return torch.randn(batch, channels or NETWORKS[name].in_channels, SIDES[name], SIDES[name])


def on_meta(name, **more):
    """A network of full size without its numbers."""
    with torch.device("meta"):
        return models.create(name, **more)


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def decoupled(network):
    return [name for name, module in network.named_modules() if isinstance(module, Decoupled)]


def of_kind(network, *kinds):
    return [name for name, module in network.named_modules() if isinstance(module, kinds)]


# -- parameters ------------------------------------------------------------------------------------------------------

# Written as the tables of the papers have them: (kernel's side, filters before, filters) a convolution, and how often.
CONVOLUTIONS = {
    "cnn9": [
        *[(3, 3, 64), (3, 64, 64), (3, 64, 64)], *[(3, 64, 128), (3, 128, 128), (3, 128, 128)],
        *[(3, 128, 256), (3, 256, 256), (3, 256, 256)], (4, 256, 512),
    ],
    "cnn9_attack": [
        *[(3, 3, 32), (3, 32, 32), (3, 32, 32)], *[(3, 32, 64), (3, 64, 64), (3, 64, 64)],
        *[(3, 64, 128), (3, 128, 128), (3, 128, 128)], (4, 128, 256),
    ],
    "resnet32": [
        (3, 3, 96), *[(3, 96, 96)] * 10, (3, 96, 192), *[(3, 192, 192)] * 9, (1, 96, 192), (3, 192, 384),
        *[(3, 384, 384)] * 9, (1, 192, 384),
    ],
    "resnet18": [
        (7, 3, 64), *[(3, 64, 64)] * 4, (3, 64, 128), *[(3, 128, 128)] * 3, (1, 64, 128), (3, 128, 256),
        *[(3, 256, 256)] * 3, (1, 128, 256), (3, 256, 512), *[(3, 512, 512)] * 3, (1, 256, 512),
    ],
    "resnet18_modified": [
        (7, 3, 128), (3, 128, 128), *[(3, 128, 128)] * 2, (3, 128, 256), *[(3, 256, 256)] * 4, (3, 256, 512),
        *[(3, 512, 512)] * 6, (3, 512, 1024),
    ],
    "features2d": [(3, 1, 16), (3, 16, 16), (3, 16, 32), (3, 32, 32), (3, 32, 64), (3, 64, 64), (3, 64, 128)],
    "vgg16": [
        (3, 3, 64), (3, 64, 64), (3, 64, 128), (3, 128, 128), (3, 128, 256), *[(3, 256, 256)] * 2, (3, 256, 512),
        *[(3, 512, 512)] * 5,
    ],
}  # fmt: skip
WITHOUT_BATCH_NORM = {
    "cnn9": 512 * 100, "cnn9_attack": 256 * 10, "resnet32": 384 * 100, "resnet18": 512 * 1000,
    # a slope for each filter of the stem, of four strided convolutions and of the first of six pairs
    "resnet18_modified": 1024 * 1000 + 128 + (128 + 256 + 512 + 1024) + (128 + 2 * 256 + 3 * 512),
    "features2d": 128 * 2 + 2 * 10, "vgg16": 7 * 7 * 512 * 4096 + 4096 * 4096 + 4096 * 1000,
}  # fmt: skip
"""The classifier and whatever else is neither convolution nor batch norm."""


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_parameters_are_those_of_the_architecture_table(name):
    filters = sum(side**2 * before * after for side, before, after in CONVOLUTIONS[name])
    batch_norm = sum(2 * after for _, _, after in CONVOLUTIONS[name])
    assert count(on_meta(name, batch_norm=False)) == filters + WITHOUT_BATCH_NORM[name]
    assert count(on_meta(name)) == filters + batch_norm + WITHOUT_BATCH_NORM[name]


def test_the_parameters_are_those_that_others_publish_less_the_biases():
    """torchvision's tables: 11,689,512; 138,365,992 (with batch norm); 6,624,904, whose 5×5 convolutions are 3×3."""
    assert count(on_meta("resnet18")) == 11_689_512 - 1000
    assert count(on_meta("vgg16")) == 138_365_992 - 4224 - 4096 - 4096 - 1000
    reduced = [(16, 32), (32, 96), (16, 48), (24, 64), (24, 64), (32, 64), (32, 128), (32, 128), (48, 128)]
    assert count(on_meta("googlenet")) == 6_624_904 - 1000 + sum((25 - 9) * before * after for before, after in reduced)


def test_the_parameters_of_options():
    assert count(on_meta("resnet18_modified", variant="released")) - count(on_meta("resnet18_modified")) == (
        2 * (9 * 1024**2 + 2 * 1024) + 1024 - (9 * 128**2 + 2 * 128 + 128)  # a unit of 1024 instead of a convolution of 128
    )
    hidden = 7 * 7 * 512 * 4096 + 4096 * 4096
    assert count(on_meta("vgg16")) - count(on_meta("vgg16", head="small")) == hidden + (4096 - 512) * 1000
    heads = [before * 128 + 2 * 128 + 4 * 4 * 128 * 1024 + 1024 * 1000 for before in (512, 528)]
    assert count(on_meta("googlenet", auxiliary=True)) - count(on_meta("googlenet")) == sum(heads)
    mnist = on_meta("cnn9", image_size=28, in_channels=1, num_classes=10)  # 28 → 14 → 7 → 3
    assert count(on_meta("cnn9")) - count(mnist) == (16 - 9) * 256 * 512 + 9 * 2 * 64 + 512 * 90


def test_a_decoupled_network_has_a_radius_for_each_filter_beside():
    filters = 3 * (64 + 128 + 256) + 512
    assert count(on_meta("cnn9", operator="tanh-cosine")) - count(on_meta("cnn9")) == filters
    assert count(on_meta("cnn9", operator="tanh-cosine", radius_per="layer")) - count(on_meta("cnn9")) == 10
    assert count(on_meta("cnn9", operator="sphere-cosine")) == count(on_meta("cnn9"))


# -- shapes ----------------------------------------------------------------------------------------------------------

FEATURES = {
    "cnn9": 512, "cnn9_attack": 256, "resnet32": 384, "resnet18": 512, "resnet18_modified": 1024, "features2d": 2,
    "vgg16": 4096, "googlenet": 1024,
}  # fmt: skip
CLASSES = {"cnn9": 100, "cnn9_attack": 10, "resnet32": 100, "features2d": 10}
LAST_MAPS = {  # 224 → 112 → 56 → 56, 28, 14, 7; the modified one has stride 2 in every stage, VGG in none but its pools
    "resnet18": ("stage4", (512, 7, 7)), "resnet18_modified": ("stage4", (1024, 4, 4)), "vgg16": ("stage5", (512, 7, 7)),
    "googlenet": ("inception5b", (1024, 7, 7)), "resnet32": ("stage3", (384, 8, 8)), "cnn9": ("stage3", (256, 4, 4)),
    "cnn9_attack": ("stage3", (128, 4, 4)), "features2d": ("stage3", (64, 3, 3)),
}  # fmt: skip


def test_the_names():
    assert models.names() == [
        "cnn9", "cnn9_attack", "resnet32", "resnet18", "resnet18_modified", "features2d", "vgg16", "googlenet",
    ]  # fmt: skip
    assert dcnets.models is models


@pytest.mark.parametrize("name", models.names())
def test_shapes_at_full_size(name):
    network, side = on_meta(name), PAPER_SIDES[name]
    x = torch.empty(2, NETWORKS[name].in_channels, side, side, device="meta")
    assert network.features(x).shape == (2, FEATURES[name])
    assert network(x).shape == (2, CLASSES.get(name, 1000))
    layer, shape = LAST_MAPS[name]
    for part in network.order[: network.order.index(layer) + 1]:
        x = getattr(network, part)(x)
    assert x.shape[1:] == shape


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("operator", [None, "tanh-cosine"])
def test_other_classes_and_channels_and_the_classifier_on_the_features(name, operator):
    network = narrow(name, in_channels=2, operator=operator).eval()
    x = images(name, channels=2)
    logits = network(x)
    assert logits.shape == (4, 5)
    torch.testing.assert_close(logits, network.classifier(network.features(x)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["resnet32", "resnet18", "resnet18_modified", "vgg16", "googlenet"])
def test_any_image_size_will_do_where_the_head_pools(name):
    network = narrow(name).eval()
    assert network(torch.randn(2, 3, 41, 64)).shape == (2, 5)


def test_the_large_head_takes_small_images_too():
    assert on_meta("vgg16")(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize(("size", "side"), [(28, 3), (32, 4), (16, 2), (64, 8), (39, 4)])
@pytest.mark.parametrize("name", ["cnn9", "features2d"])
def test_the_fully_connected_layer_follows_the_image_size(name, size, side):
    network = narrow(name, image_size=size, in_channels=1)
    weight = network.get_parameter("fc.conv.weight")
    assert weight.shape[2:] == (side, side)
    assert network(torch.randn(2, 1, size, size)).shape == (2, 5)


# -- which layers are decoupled --------------------------------------------------------------------------------------

STAGES_OF_THREE = [f"stage{stage}.conv{i}.conv" for stage in (1, 2, 3) for i in (1, 2, 3)]
UNITS = lambda stage, count: [
    f"stage{stage}.unit{u}.{part}.conv" for u in range(1, count + 1) for part in ("first", "second")
]
REDUCTIONS = ("branch1", "branch3.reduce", "branch5.reduce", "branch_pool.project")
INCEPTIONS = ["3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"]
SPATIAL = {
    "cnn9": [*STAGES_OF_THREE, "fc.conv"],
    "cnn9_attack": [*STAGES_OF_THREE, "fc.conv"],
    "resnet32": ["stem.conv", *UNITS(1, 5), *UNITS(2, 5), *UNITS(3, 5)],
    "resnet18": ["stem.conv", *UNITS(1, 2), *UNITS(2, 2), *UNITS(3, 2), *UNITS(4, 2)],
    "resnet18_modified": [
        "stem.conv", "stage1.down.conv", *UNITS(1, 1), "stage2.down.conv", *UNITS(2, 2), "stage3.down.conv", *UNITS(3, 3),
        "stage4.down.conv",
    ],
    "features2d": [f"stage{stage}.conv{i}.conv" for stage in (1, 2, 3) for i in (1, 2)] + ["fc.conv"],
    "vgg16": [f"stage{s}.conv{i}.conv" for s, n in enumerate((2, 2, 3, 3, 3), 1) for i in range(1, n + 1)],
    "googlenet": [
        "stem.conv1.conv", "stem.conv3.conv",
        *[f"inception{i}.branch{side}.spatial.conv" for i in INCEPTIONS for side in (3, 5)],
    ],
}  # fmt: skip
OTHER_CONVOLUTIONS = {
    "resnet32": ["stage2.unit1.shortcut.conv", "stage3.unit1.shortcut.conv"],
    "resnet18": [f"stage{stage}.unit1.shortcut.conv" for stage in (2, 3, 4)],
    "googlenet": [
        "stem.conv2.conv",
        *[f"inception{i}.{part}.conv" for i in INCEPTIONS for part in REDUCTIONS],
    ],
}  # fmt: skip
LINEAR = {"vgg16": ["fc1.linear", "fc2.linear"], "features2d": ["embedding"]}


@pytest.mark.parametrize("name", models.names())
def test_the_layers_that_are_decoupled(name):
    others, linear = OTHER_CONVOLUTIONS.get(name, []), LINEAR.get(name, [])
    assert decoupled(on_meta(name)) == []
    assert decoupled(on_meta(name, operator="tanh-cosine")) == SPATIAL[name]
    assert sorted(decoupled(on_meta(name, operator="tanh-cosine", decouple="convolutions"))) == sorted(
        SPATIAL[name] + others
    )
    everything = decoupled(on_meta(name, operator="tanh-cosine", decouple="all"))
    assert sorted(everything) == sorted([*SPATIAL[name], *others, *linear, "classifier"])


def test_a_function_says_which_layers_are_decoupled():
    network = narrow("cnn9", operator="tanh-cosine", decouple=lambda name, module: name.startswith("stage1"))
    assert decoupled(network) == STAGES_OF_THREE[:3]


def test_the_auxiliary_classifiers_are_like_the_classifier():
    for decouple in ("spatial", "all"):
        network = on_meta("googlenet", auxiliary=True, operator="tanh-cosine", decouple=decouple)
        found = {name for name in decoupled(network) if name.startswith("auxiliary")}
        parts = ("conv.conv", "fc.linear", "classifier")
        assert found == ({f"auxiliary{i}.{part}" for i in (1, 2) for part in parts} if decouple == "all" else set())


def test_operator_and_options_reach_every_layer():
    operator = dcnets.Operator("segmented", "sigmoid", alpha=0.7, beta=0.3, radius="absolute", eps=1e-3)
    for given in (operator, str(operator)):
        network = narrow("resnet32", operator=given, learn=("radius", "k"), radius_init=2.0, radius_per="layer")
        for layer in network.modules():
            if isinstance(layer, Decoupled):
                assert layer.operator == operator
                assert layer.rho.tolist() == [pytest.approx(2.0)]
                assert layer.learn == ("radius", "k")


# -- batch norm, ReLU, classifier ------------------------------------------------------------------------------------

ACTIVATIONS = {
    "cnn9": 10, "cnn9_attack": 10, "resnet32": 15 + 15, "resnet18": 1 + 8 + 8, "resnet18_modified": 1 + 4 + 6,
    "features2d": 7, "vgg16": 13, "googlenet": 3 + 9 * 6,
}  # fmt: skip


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize(("batch_norm", "relu"), list(itertools.product([True, False], repeat=2)))
def test_with_and_without_batch_norm_and_relu(name, batch_norm, relu):
    network = narrow(name, batch_norm=batch_norm, relu=relu, operator="tanh-cosine")
    convolutions = of_kind(network, nn.Conv2d, dcnets.DecoupledConv2d)
    expected = [found.removesuffix("conv") + "bn" for found in convolutions] if batch_norm else []
    assert of_kind(network, nn.modules.batchnorm._BatchNorm) == expected
    kind = nn.PReLU if name == "resnet18_modified" else nn.ReLU
    assert len(of_kind(network, kind)) == (ACTIVATIONS[name] if relu else 0)
    assert of_kind(network, nn.ReLU, nn.PReLU) == of_kind(network, kind)
    assert not [key for key in network.state_dict() if key.endswith("conv.bias") or key == "classifier.bias"]
    assert network(images(name)).isfinite().all()


@pytest.mark.parametrize("name", models.names())
def test_batch_norm_is_as_the_authors_have_it(name):
    usual = 0.1 if name == "features2d" else 0.001
    for given, momentum in ((None, usual), (0.05, 0.05)):
        norms = [m for m in on_meta(name, bn_momentum=given).modules() if isinstance(m, nn.BatchNorm2d)]
        assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, momentum)}


def test_both_readings_of_without_relu():
    assert "fc.relu" not in of_kind(narrow("cnn9", relu=False), nn.ReLU)
    assert of_kind(narrow("cnn9", relu=False, fc_relu=True), nn.ReLU) == ["fc.relu"]
    assert len(of_kind(narrow("cnn9", fc_relu=False), nn.ReLU)) == 9


def test_where_the_relus_of_the_residual_networks_are():
    network = narrow("resnet32")
    assert "relu" not in dict(network.stem.named_children())
    for unit in (*network.stage1, *network.stage2, *network.stage3):
        assert "relu" in dict(unit.first.named_children())
        assert "relu" not in {*dict(unit.second.named_children()), *dict(unit.shortcut.named_children())}
        assert isinstance(unit.relu, nn.ReLU)
    assert isinstance(narrow("resnet18").stem.relu, nn.ReLU)
    modified = narrow("resnet18_modified", variant="released")
    assert "down" not in dict(modified.stage1.named_children())
    slopes = [m for m in modified.modules() if isinstance(m, nn.PReLU)]
    assert len(slopes) == 1 + 3 + 7
    assert all(not slope.weight.any() for slope in slopes)
    assert (modified.features(images("resnet18_modified")) < 0).any()


def test_a_residual_unit_adds_its_shortcut():
    for name, stage in (("resnet32", "stage2"), ("resnet18_modified", "stage2")):
        network = narrow(name).eval()
        unit = network.get_submodule(f"{stage}.unit1")
        nn.init.zeros_(unit.second.conv.weight)
        x = torch.randn(2, unit.first.conv.in_channels, 8, 8)
        torch.testing.assert_close(unit(x), unit.relu(unit.shortcut(x)), rtol=0, atol=0)
        assert isinstance(unit.shortcut, nn.Identity) == (name == "resnet18_modified")


def test_stride_two_is_padded_on_both_sides():
    network = narrow("resnet32")
    assert network.stage2.unit1.first.conv.padding == (1, 1)
    assert network.stage2.unit1.first.conv.stride == network.stage2.unit1.shortcut.conv.stride == (2, 2)
    assert narrow("resnet18").stem.conv.padding == (3, 3)


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("decouple", ["spatial", "all"])
def test_weight_normalised_softmax(name, decouple):
    network = narrow(name, normalised_classifier=True, operator="tanh-cosine", decouple=decouple).eval()
    assert type(network.classifier) is NormalisedClassifier
    x = images(name)
    weight, features = network.classifier.weight, network.features(x)
    torch.testing.assert_close(network(x), features @ (weight / (weight.square().sum(1, keepdim=True) + 1e-4).sqrt()).T)


def test_weight_normalised_softmax_has_the_plain_classifiers_weight_and_draws_no_random_numbers():
    torch.manual_seed(3)
    plain, after_plain = narrow("googlenet", auxiliary=True), torch.get_rng_state()
    torch.manual_seed(3)
    normalised, after_normalised = narrow("googlenet", auxiliary=True, normalised_classifier=True), torch.get_rng_state()
    assert torch.equal(after_plain, after_normalised)
    assert_same_tensors(normalised.state_dict(), plain.state_dict())
    assert of_kind(normalised, NormalisedClassifier) == ["classifier", "auxiliary1.classifier", "auxiliary2.classifier"]


# -- weights ---------------------------------------------------------------------------------------------------------


def assert_same_tensors(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("name", models.names())
def test_a_seed_gives_the_plain_network_and_its_decoupled_twin_the_same_weights(name):
    torch.manual_seed(7)
    plain = narrow(name).state_dict()
    torch.manual_seed(7)
    twin = narrow(name, operator="segmented-square_cosine", decouple="all").state_dict()
    assert_same_tensors({key: twin[key] for key in plain}, plain)
    assert twin.keys() > plain.keys()


def test_filters_are_drawn_with_the_authors_deviation():
    network = models.create("resnet32", width=64)
    checked = 0
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight
            deviation = (2 / weight[0].numel()) ** 0.5
            # the sample's deviation lies within 5 of its own standard errors, its mean too
            spread = 5 / (2 * weight.numel()) ** 0.5
            assert weight.std().item() == pytest.approx(deviation, rel=spread)
            assert abs(weight.mean().item()) < 5 * deviation / weight.numel() ** 0.5
            assert weight.abs().max() > 2 * deviation  # a normal distribution goes beyond a uniform one's √3
            checked += 1
    assert checked == 31 + 2 + 1


def test_the_classes_of_the_planar_network_start_evenly_around_the_circle():
    weight = models.create("features2d", num_classes=8, normalised_classifier=True).classifier.weight.detach()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(8))
    torch.testing.assert_close((weight * weight.roll(1, 0)).sum(1), torch.full((8,), 0.5**0.5))


@pytest.mark.parametrize("name", models.names())
def test_a_plain_checkpoint_loads_strictly_into_the_decoupled_network_and_a_decoupled_one_comes_back(name):
    plain, twin = narrow(name), narrow(name, operator="tanh-cosine")
    twin.load_state_dict(plain.state_dict(), strict=True)
    assert_same_tensors({key: twin.state_dict()[key] for key in plain.state_dict()}, plain.state_dict())
    twin(images(name))
    other = narrow(name, operator="tanh-cosine")
    other.load_state_dict(twin.state_dict(), strict=True)
    assert_same_tensors(other.state_dict(), twin.state_dict())
    x = images(name)
    torch.testing.assert_close(other.eval()(x), twin.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("options", [{}, {"operator": "tanh-cosine"}, {"operator": "tanh-cosine", "batch_norm": False}])
def test_a_gradient_reaches_every_parameter(name, options):
    network = narrow(name, **options)
    F.cross_entropy(network(images(name)), torch.arange(4)).backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("magnitude", ["linear", "tanh", "segmented"])
@pytest.mark.parametrize("angular", ["linear", "cosine", "square_cosine"])
def test_without_batch_norm_the_signal_dies_just_where_the_paper_does_not_converge(magnitude, angular):
    """Table 2: cos² of a random patch is near 0, and a magnitude in proportion to ‖x‖ hands that on, layer by layer."""
    torch.manual_seed(0)
    network = models.create("cnn9", num_classes=100, operator=f"{magnitude}-{angular}", batch_norm=False)
    logits = network(images("cnn9"))
    F.cross_entropy(logits, torch.arange(4)).backward()
    dies = angular == "square_cosine" and magnitude != "tanh"
    assert dies == (not logits.any())
    assert dies == (not any(parameter.grad.any() for parameter in network.parameters()))


def test_the_auxiliary_logits_come_in_training_only_and_reach_their_classifiers():
    network = narrow("googlenet", auxiliary=True)
    x = images("googlenet")
    logits = network(x)
    assert [part.shape for part in logits] == [(4, 5)] * 3
    sum(F.cross_entropy(part, torch.arange(4)) for part in logits).backward()
    assert all(parameter.grad.any() for parameter in network.parameters())
    assert network.eval()(x).shape == (4, 5)
    torch.testing.assert_close(network(x), network.classifier(network.features(x)), rtol=0, atol=0)


# -- how they are used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "operator"), [("cnn9", "tanh-cosine"), ("resnet18_modified", None), ("googlenet", None)])
def test_it_compiles_in_one_graph(name, operator):
    network = narrow(name, operator=operator).eval()
    x = images(name, batch=2)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("name", models.names())
def test_a_symbolic_trace_has_every_layer_under_its_name(name, fuses):
    network = narrow(name, operator="tanh-cosine").eval()
    network = fuse(network) if fuses else network
    traced = torch.fx.symbolic_trace(network)
    called = {node.target for node in traced.graph.nodes if node.op == "call_module"}
    assert {path for path, module in network.named_modules() if isinstance(module, Decoupled)} <= called
    x = images(name, batch=2)
    assert torch.equal(traced(x), network(x))


@pytest.mark.parametrize("name", models.names())
def test_channels_last_goes_through(name):
    network = narrow(name, operator="tanh-cosine").eval()
    x = images(name)
    expected = network(x)
    twin = copy.deepcopy(network).to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(twin(x), expected, rtol=1e-4, atol=1e-5)
    first = getattr(twin, twin.order[0])(x)
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_the_two_dimensional_features_separate_classes_within_a_few_steps():
    patterns = torch.randn(4, 1, 28, 28)
    targets = torch.arange(32) % 4
    for operator in (None, "tanh-cosine"):
        torch.manual_seed(1)
        # so few steps that batch norm has to forget its initial variance fast, far above that of a bounded operator
        network = models.create("features2d", num_classes=4, width=4, operator=operator, bn_momentum=0.3)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(40):
            loss = F.cross_entropy(network(patterns[targets] + 0.5 * torch.randn(32, 1, 28, 28)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()
        x = patterns[targets] + 0.5 * torch.randn(32, 1, 28, 28)
        assert network.features(x).shape == (32, 2)
        assert (network(x).argmax(1) == targets).float().mean() > 0.9, operator


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "kind", "said"),
    [
        ("cnn99", {}, ValueError, "unknown network 'cnn99'; did you mean 'cnn9'"),
        (9, {}, TypeError, "network is a name, got int"),
        ("cnn9", {"num_clases": 10}, TypeError, r"^create\('cnn9'\) got an .* 'num_clases'; did you mean 'num_classes'"),
        ("cnn9", {"variant": "table"}, TypeError, "unknown keyword 'variant'"),
        ("cnn9", {"widht": 8}, TypeError, "unknown keyword 'widht'; did you mean 'width'"),
        ("cnn9", {"magnitude": "tanh"}, TypeError, "unknown keyword 'magnitude'"),
        ("cnn9", {"operator": "tanhh-cosine"}, ValueError, "unknown magnitude 'tanhh'; did you mean 'tanh'"),
        ("cnn9", {"operator": 3}, TypeError, "operator is a dcnets.Operator or its text, such as 'tanh-cosine', got int"),
        ("cnn9", {"operator": "tanh-cosine", "lern": ()}, TypeError, "unknown keyword 'lern'; did you mean 'learn'"),
        ("cnn9", {"operator": "tanh-cosine", "learn": ("k",)}, ValueError, "has no k to learn"),
        ("cnn9", {"operator": "sphere-cosine", "radius_init": 2.0}, ValueError, "sphere has no radius"),
        ("cnn9", {"learn": ()}, TypeError, "learn is for decoupled layers; name an operator too"),
        ("cnn9", {"decouple": "spatail"}, ValueError, "unknown decouple 'spatail'; did you mean 'spatial'"),
        ("cnn9", {"decouple": None}, TypeError, "decouple is a name, got NoneType"),
        ("cnn9", {"num_classes": 0}, ValueError, "num_classes must be 1 or more, got 0"),
        ("cnn9", {"num_classes": 10.0}, TypeError, "num_classes is a whole number, got 10.0"),
        ("cnn9", {"in_channels": True}, TypeError, "in_channels is a whole number, got True"),
        ("cnn9", {"batch_norm": "no"}, TypeError, "batch_norm is True or False, got 'no'"),
        ("cnn9", {"relu": None}, TypeError, "relu is True or False, got None"),
        ("cnn9", {"fc_relu": 1}, TypeError, "fc_relu is True or False, got 1"),
        ("cnn9", {"normalised_classifier": 1}, TypeError, "normalised_classifier is True or False, got 1"),
        ("cnn9", {"bn_momentum": 1.5}, ValueError, "bn_momentum must be from 0 to 1, got 1.5"),
        ("cnn9", {"bn_momentum": "0.1"}, TypeError, "bn_momentum is a number from 0 to 1, got '0.1'"),
        ("cnn9", {"image_size": 8}, ValueError, "image_size must be 16 or more, got 8"),
        ("cnn9", {"width": 0}, ValueError, "width must be 1 or more"),
        ("features2d", {"image_size": 12}, ValueError, "image_size must be 16 or more"),
        ("resnet18_modified", {"variant": "tabel"}, ValueError, "unknown variant 'tabel'; did you mean 'table'"),
        ("vgg16", {"head": "big"}, ValueError, "unknown head 'big'; choose one of large, small"),
        ("vgg16", {"dropout": -0.1}, ValueError, "dropout must be from 0 to 1"),
        ("googlenet", {"auxiliary": "yes"}, TypeError, "auxiliary is True or False"),
    ],
)  # fmt: skip
def test_errors_say_what_came_and_what_to_do(name, options, kind, said):
    with torch.device("meta"), pytest.raises(kind, match=said):
        models.create(name, **options)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("cnn9", (2, 3, 28, 28), "expected 32×32 images, got 28×28; resize them, or .* with their image_size"),
        ("cnn9", (2, 3, 64, 64), "expected 32×32 images, got 64×64"),
        ("features2d", (2, 1, 32, 32), "expected 28×28 images, got 32×32"),
        ("cnn9", (2, 1, 32, 32), "expected 3-channel images, got 1-channel ones; create the network with in_channels=1"),
        ("resnet32", (3, 32, 32), r"images \(batch, 3, height, width\), .* \(3, 32, 32\); add the batch with x\[None\]"),
        ("resnet18", (2, 3), r"got a tensor of shape \(2, 3\)$"),
        ("vgg16", (2, 3, 40, 16), "expected images of 32×32 or more, got 40×16; enlarge them"),
        ("googlenet", (2, 1, 64, 64), "expected 3-channel images, got 1-channel ones"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit_are_refused_in_plain_words(name, shape, said):
    with pytest.raises(ValueError, match=said):
        narrow(name, **({"auxiliary": True} if name == "googlenet" else {}))(torch.randn(shape))


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_table_of_the_page_is_what_the_networks_have():
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", page.split("Contents:")[0], re.M))
    assert list(rows) == models.names()
    for name, row in rows.items():
        network, side = on_meta(name), PAPER_SIDES[name]
        shape = (1, NETWORKS[name].in_channels, side, side)
        with FlopCounterMode(display=False) as counter:
            network.eval()(torch.empty(shape, device="meta"))
        total = len(of_kind(network, nn.Conv2d, nn.Linear))
        chosen = len(SPATIAL[name])
        cells = [cell.strip() for cell in row.split("|")]
        figures = [f"{count(network):,}", f"{counter.get_total_flops() / 2e6:,.0f} M", f"{chosen} of {total}"]
        assert cells[1] == " × ".join(map(str, shape[1:]))
        assert cells[2:5] == figures, name
