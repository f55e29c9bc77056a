"""The Triton programs on a GPU, against the float64 definition."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from fused_cases import CANCELLED, ERRORS, LAYERS, errors, gradients, layer_of, operators

import dcnets
from dcnets.fusing import fuse

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _full_precision():
    """Products in float32 as they are written, for the comparison with float64."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("text", list(operators()))
def test_every_operator_and_each_of_its_gradients(text):
    x = 0.7 * torch.randn(2, 4, 5, 6, device=DEVICE)
    found = errors(layer_of(text).to(DEVICE), x.to(memory_format=torch.channels_last))
    assert max(found.values()) < ERRORS[torch.float32], found


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_in_every_precision(name, training, dtype):
    layer, shape = LAYERS[name]()
    found = errors(layer.to(DEVICE, dtype).train(training), torch.randn(shape, device=DEVICE).to(dtype))
    assert max(found.values()) < ERRORS[dtype], found


def test_repeated_runs_are_the_same_to_the_bit():
    layer, x = layer_of("tanh-sigmoid-product").to(DEVICE).eval(), torch.randn(64, 4, 33, 31, device=DEVICE)
    one, two = (gradients(layer, x, "fused")["raw_radius"] for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_block_is_its_sequence(dtype):
    layer = dcnets.DecoupledConv2d(16, 24, 3, padding=1, magnitude="segmented")
    plain = nn.Sequential(layer, nn.BatchNorm2d(24), nn.ReLU()).to(DEVICE)
    fused = fuse(nn.Sequential(copy.deepcopy(plain)))[0]
    x = torch.randn(32, 16, 15, 17, device=DEVICE).to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        found, wanted = gradients(fused, x, "fused"), gradients(plain, x, "reference")
    for name, value in wanted.items():
        error = (found[name].double() - value.double()).abs().max() / value.double().abs().max()
        assert error < (CANCELLED if dtype is torch.float32 else ERRORS[dtype]), (name, error)
