"""The hand-written path in channels last: the same numbers, and no product of tensors that are laid out differently."""

from itertools import combinations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcnets import DecoupledConv2d, freeze
from dcnets.functional import backend

CASES = [
    ("ball-cosine", {}), ("tanh-cosine", {"bias": True}), ("tanh-linear", {}), ("sphere-cosine", {}),
    ("segmented-square_cosine", {"learn": ("radius", "alpha", "beta")}), ("log-sigmoid", {"learn": ("alpha", "k")}),
    ("mixed-cosine-linear", {}), ("tanh-cosine-product", {}), ("segmented-cosine-separate", {}),
]  # fmt: skip
WIDTH = 5
"""That of images and of responses, and of nothing else."""


class Mixed(TorchDispatchMode):
    """Collects the operations that meet responses, or images, of which one has its channels side by side and one not."""

    def __init__(self):
        super().__init__()
        self.seen, self.found = 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.Tensor)]
        result = function(*args, **(kwargs or {}))
        tensors += [result] if isinstance(result, torch.Tensor) else []
        full = [each for each in tensors if each.dim() == 5 and each.shape[2] > 1 and each.shape[-1] == WIDTH]
        for one, other in combinations(full, 2):
            self.seen += 1
            if (one.stride(2) == 1) != (other.stride(2) == 1):
                self.found.append((str(function), one.shape, one.stride(), other.stride()))
        return result


def layer_and_images(operator, options, groups, dtype):
    torch.manual_seed(0)
    layer = DecoupledConv2d(4, 6, 3, padding=1, groups=groups, operator=operator, **options)
    layer.to(memory_format=torch.channels_last)
    for name, parameter in layer.named_parameters():
        if name != "weight":
            torch.nn.init.uniform_(parameter, 0.6, 1.3)  # every filter its own
    x = torch.randn(3, 4, 7, WIDTH, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    return layer.to(dtype), x, torch.randn(3, 6, 7, WIDTH, dtype=dtype).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("operator", "options"), CASES, ids=[name for name, _ in CASES])
def test_no_operation_meets_two_layouts(operator, options, groups, dtype, monkeypatch):
    layer, x, dy = layer_and_images(operator, options, groups, dtype)
    for budget in (1 << 20, 64):  # in one block, and in blocks of a few rows
        monkeypatch.setattr("dcnets.kernels.blocks.BLOCK", budget)
        with backend("fused"), Mixed() as mixed:
            layer(x).backward(dy)
            with torch.no_grad():
                layer(x)
        assert mixed.seen > 20
        assert mixed.found == []


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("operator", "options"), CASES, ids=[name for name, _ in CASES])
def test_both_layouts_give_the_same(operator, options, groups):
    layer, x, dy = layer_and_images(operator, options, groups, torch.float64)
    wanted = [x, *layer.parameters()]
    with backend("fused"):
        y = layer(x)
        last = [y, *torch.autograd.grad(y, wanted, dy)]
        layer.to(memory_format=torch.contiguous_format)
        usual = layer(x.contiguous())
        usual = [usual, *torch.autograd.grad(usual, wanted, dy.contiguous())]
    for one, other in zip(last, usual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("path", ["reference", "fused"])
@pytest.mark.parametrize("operator", ["tanh-cosine", "segmented-linear-separate", "linear-cosine"])
def test_a_single_filter_trains_as_several_do(operator, path):
    layer = DecoupledConv2d(4, 1, 3, padding=1, operator=operator).double().to(memory_format=torch.channels_last)
    x = torch.randn(3, 4, 7, WIDTH, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    wanted = [x, layer.weight]
    found = []
    with backend(path):
        for form in (torch.channels_last, torch.contiguous_format):
            y = layer.to(memory_format=form)(x.contiguous(memory_format=form))
            first = torch.autograd.grad(y.square().sum(), wanted, create_graph=True)
            second = torch.autograd.grad(sum(t.square().sum() for t in first), wanted)
            found.append([y, *first, *second])
    assert freeze(layer.to(memory_format=torch.channels_last)).weight.stride() == layer.weight.stride()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
