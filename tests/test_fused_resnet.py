"""ResNet-32 through Triton's interpreter: every gradient on the definition's trajectory, against float64."""

import copy

import pytest
import torch
from decisions import recorded, taken_over
from fused_cases import CANCELLED, far_from
from torch import nn

from dcnets import dispatch, functional, models
from dcnets.fusing import fuse

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it in full width")


def images_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 16, 16, generator=generator), torch.randint(10, (4,), generator=generator)


def loss_of(model, step, path):
    images, labels = images_of(step)
    with functional.backend(path):
        return nn.functional.cross_entropy(model(images.to(model.classifier.weight.dtype)), labels)


def gradients_of(model, step, path):
    found = torch.autograd.grad(loss_of(model, step, path), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


STEPS = 50


@pytest.fixture
def model():
    """The network after some steps of training by the definition."""
    torch.manual_seed(0)
    model = models.create("resnet32", num_classes=10, operator="tanh-cosine", width=8)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimiser.zero_grad()
        loss_of(model, step, "auto").backward()
        optimiser.step()
    return model


def test_gradients_on_the_trajectory_of_the_definition(model, monkeypatch):
    twin = copy.deepcopy(model).double()
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    with recorded() as decisions:
        found = gradients_of(fuse(model), STEPS, "fused")
    assert len(decisions) == 30  # of 31 layers: the stem has no ReLU of its own
    with taken_over(decisions):
        far = far_from(gradients_of(twin, STEPS, "reference"), found)
    assert max(far.values()) < CANCELLED, far


def flipped(decision):
    decision[2, 1] ^= True


def other_maximum(decision):
    decision[2, 1, 0, 0] = 5 - decision[2, 1, 0, 0]  # of 0, 1, 4 and 5, the other on the diagonal


@pytest.mark.parametrize(
    ("model", "shape", "change"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), (5, 3), flipped),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 1)), (5, 3, 4, 4), other_maximum),
    ],
    ids=["ReLU", "max pool"],
)
def test_one_decision_has_gradients_behind_it(model, shape, change):
    torch.manual_seed(0)
    model, x = model.double(), torch.randn(shape, dtype=torch.float64)

    def gradient():
        return torch.autograd.grad(model(x).sum(), model[0].weight)[0]

    with recorded() as decisions:
        own = gradient()
    with taken_over(decisions):
        assert torch.equal(gradient(), own)
    change(decisions[0])
    with taken_over(decisions, near=10):
        assert not torch.allclose(gradient(), own, atol=1e-3)
    with pytest.raises(AssertionError), taken_over(decisions):
        gradient()
