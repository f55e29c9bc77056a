"""Conversion of the networks that others publish: timm's and torchvision's, on whatever device there is."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from decisions import recorded, taken_over
from fused_cases import CANCELLED, far_from, gradients

from dcnets import DecoupledConv2d, convert, freeze, pretrained_select
from dcnets.decoupled import Decoupled
from dcnets.fusing import fuse
from dcnets.fusing.blocks import FusedBlock, FusedSequence
from dcnets.fusing.units import FusedUnit

timm = pytest.importorskip("timm")
models = pytest.importorskip("torchvision").models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TIMM = {  # and the side of the smallest image that each is asked for here
    "resnet18": 64,
    "resnet50": 64,
    "vgg11_bn": 64,
    "vgg16": 64,
    "convnext_tiny": 64,
    "efficientnet_b0": 64,
    "inception_v3": 96,
}
TORCHVISION = {
    "resnet18": (64, {}),
    "vgg16": (64, {}),
    "convnext_tiny": (64, {}),
    "efficientnet_b0": (64, {}),
    "googlenet": (64, {"aux_logits": True, "init_weights": False}),
}


@pytest.fixture(autouse=True)
def _full_precision_without_determinism(monkeypatch):
    """Some of these networks' own layers have no deterministic backward pass on CUDA and would raise."""
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def from_timm(name):
    return timm.create_model(name, pretrained=False, num_classes=10)


def from_torchvision(name):
    return getattr(models, name)(weights=None, num_classes=10, **TORCHVISION[name][1])


def outputs(y):
    """Every output of a network: googlenet and its like have auxiliary ones in training."""
    return [y] if isinstance(y, torch.Tensor) else [part for part in y if part is not None]


def assert_trains(model, side):
    """Forward and backward, after which every parameter has a finite gradient."""
    model.to(DEVICE).train()
    x = torch.randn(2, 3, side, side, device=DEVICE)
    target = torch.tensor([1, 3], device=DEVICE)
    found = outputs(model(x))
    sum(nn.functional.cross_entropy(y, target) for y in found).backward()
    assert all(y.shape == (2, 10) for y in found)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(parameter.grad.abs().sum() > 0 for name, parameter in model.named_parameters() if name.endswith("raw_radius"))


def assert_evaluates(model, side):
    """A finite answer in evaluation, which the frozen copy gives too."""
    x = torch.randn(2, 3, side, side, device=DEVICE)
    with torch.no_grad():
        (y,) = outputs(model.eval()(x))
        (frozen,) = outputs(freeze(model)(x))
    assert y.isfinite().all()
    torch.testing.assert_close(frozen, y, rtol=1e-3, atol=1e-3 * y.abs().max().item())


def assert_all_converted(model, report):
    """Every exact convolution is gone, and only named ones are left."""
    assert report.replaced
    left = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    named = {name for name, _, _ in report.skipped}
    assert left <= named
    assert {type(module) for module in model.modules() if isinstance(module, nn.Conv2d)}.isdisjoint({nn.Conv2d})
    assert sum(type(module) is DecoupledConv2d for module in model.modules()) == len(report.replaced)


@pytest.mark.parametrize("name", TIMM)
def test_every_timm_network_of_the_list_converts_and_trains(name):
    model, report = convert(from_timm(name))
    assert_all_converted(model, report)
    assert_trains(model, TIMM[name])
    assert_evaluates(model, TIMM[name])


@pytest.mark.parametrize("name", TORCHVISION)
def test_every_torchvision_network_of_the_list_converts_and_trains(name):
    model, report = convert(from_torchvision(name))
    assert_all_converted(model, report)
    assert_trains(model, TORCHVISION[name][0])
    assert_evaluates(model, TORCHVISION[name][0])


@pytest.mark.parametrize("name", TIMM)
def test_the_description_of_a_timm_network_leaves_first_convolution_and_classifier_alone(name):
    model = from_timm(name)
    before = dict(model.named_modules())
    first, classifier = model.pretrained_cfg["first_conv"], model.pretrained_cfg["classifier"]
    assert {first, classifier} <= before.keys()
    _, report = convert(model, select=pretrained_select(model))
    after = dict(model.named_modules())
    assert after[first] is before[first]
    assert after[classifier] is before[classifier]
    convolutions = {name for name, module in before.items() if type(module) is nn.Conv2d}
    assert {name for name, _ in report.replaced} == convolutions - {first}


@pytest.mark.parametrize("name", TIMM)
def test_the_description_of_a_timm_network_converts_both_where_asked_for(name):
    model = from_timm(name)
    first, classifier = model.pretrained_cfg["first_conv"], model.pretrained_cfg["classifier"]
    _, report = convert(model, select=pretrained_select(model, first_conv=True, classifier=True))
    assert {first, classifier} <= {name for name, _ in report.replaced}


@pytest.mark.parametrize(("make", "name"), [(from_timm, "resnet18"), (from_torchvision, "resnet18")])
def test_a_published_checkpoint_loads_strictly_into_the_converted_network(make, name):
    model, other = make(name), make(name)
    convert(model)
    assert not any(model.load_state_dict(other.state_dict(), strict=True))


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_with_the_inner_product_a_network_computes_what_it_computed(name):
    model = from_timm(name).to(DEVICE).eval()
    x = torch.randn(2, 3, 64, 64, device=DEVICE)
    with torch.no_grad():
        before = model(x)
        convert(model, magnitude="inner_product")
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4 * before.abs().max().item())


def layers_in_blocks(model):
    """The decoupled layers that `fuse` has put into blocks."""
    blocks = [module for module in model.modules() if isinstance(module, FusedBlock)]
    for module in model.modules():
        if isinstance(module, FusedSequence | FusedUnit):
            blocks += [part for part in module.parts() if isinstance(part, FusedBlock)]
    return {block[0] for block in blocks}


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize(
    ("make", "name"), [(from_timm, "resnet18"), (from_timm, "resnet50"), (from_torchvision, "resnet18"),
                       (from_torchvision, "vgg16"), (from_timm, "vgg11_bn")],
)  # fmt: skip
def test_a_fused_network_of_others_is_the_network(make, name):
    torch.manual_seed(0)
    model = make(name)
    first = next(path for path, module in model.named_modules() if isinstance(module, nn.Conv2d))
    convert(model, select=lambda path, module: isinstance(module, nn.Conv2d) and path != first)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model = model.to(DEVICE).train()
    twin, x = copy.deepcopy(model).double(), torch.randn(4, 3, 64, 64, device=DEVICE)
    model = fuse(model)
    in_sequences = {
        module for name, module in model.named_modules() if "pre_logits" not in name
    }  # timm's VGG calls those itself
    assert layers_in_blocks(model) >= {layer for layer in in_sequences if isinstance(layer, Decoupled)}
    with recorded() as decisions:
        found = gradients(model, x, "fused")
    with taken_over(decisions):
        far = far_from(gradients(twin, x.double(), "reference"), found)
    assert max(far.values()) < CANCELLED, far
