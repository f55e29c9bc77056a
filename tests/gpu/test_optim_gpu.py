"""Projection, weighted gradients and penalties on a GPU; skipped without one."""

import copy

import pytest
import torch
from torch import nn

import dcnets
from dcnets import DecoupledConv2d

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee")
    monkeypatch.setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee")


def network():
    return nn.Sequential(
        DecoupledConv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        DecoupledConv2d(8, 8, 3, padding=1, groups=2),
        nn.ReLU(),
        DecoupledConv2d(8, 8, 3, padding=1, groups=2),
    )


def filter_norms(model):
    return torch.cat([layer.weight.flatten(1).norm(dim=1) for layer in model if isinstance(layer, DecoupledConv2d)])


def test_projection_between_the_replays_of_a_captured_step_projects_what_the_graph_trains():
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3, 8, 8, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
        dcnets.project_weights(model)
        assert filter_norms(model).sub(1).abs().max() < 1e-3  # ε = 1e-4 under the root
    before = model[0].weight.clone()
    graph.replay()
    assert not torch.equal(model[0].weight, before)


def test_projection_itself_can_be_captured():
    model = network().cuda()
    dcnets.project_weights(model)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dcnets.project_weights(model, scale=2.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    graph.replay()
    assert filter_norms(model).sub(2).abs().max() < 1e-3


@pytest.mark.parametrize("penalty", [dcnets.orthonormal_penalty, dcnets.orthogonal_penalty])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_penalty_and_its_gradient_equal_those_in_float64(penalty, normalised):
    model = network().cuda()
    truth = copy.deepcopy(model).cpu().double()
    found, expected = penalty(model, normalised), penalty(truth, normalised)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-6)
    found.backward()
    expected.backward()
    for own, other in zip(model.parameters(), truth.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(own.grad.cpu().double(), other.grad, rtol=1e-4, atol=1e-5)


def test_weighted_gradients_are_the_gradients_times_the_norm():
    model = network().cuda()
    x = torch.randn(4, 3, 8, 8, device="cuda")
    model(x).square().sum().backward()
    plain = [layer.weight.grad.clone() for layer in model if isinstance(layer, DecoupledConv2d)]
    model.zero_grad()
    with dcnets.weighted_gradients(model):
        model(x).square().sum().backward()
    layers = [layer for layer in model if isinstance(layer, DecoupledConv2d)]
    for layer, gradient in zip(layers, plain, strict=True):
        norm = (layer.weight.detach().square().sum((1, 2, 3), keepdim=True) + layer.operator.eps).sqrt()
        torch.testing.assert_close(layer.weight.grad, gradient * norm, rtol=1e-4, atol=1e-5)
