"""Residual units of torchvision and timm, fused: classes with their names stand for them, through Triton's interpreter."""

import copy

import pytest
import torch
from fused_cases import assert_close, results, varied
from torch import nn

import dcnets
from dcnets import dispatch, functional
from dcnets.fusing import fuse
from dcnets.fusing.blocks import FusedBlock
from dcnets.fusing.units import LAYOUTS, FusedUnit

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has the units themselves")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


class Unit(nn.Module):
    """A residual unit by a layout, that calls its modules one by one as the libraries' units do."""

    def __init__(self, layout, widths, stride=1):
        super().__init__()
        self.layout_of_test = layout
        before = widths[0]
        for name in layout.way:
            if name.startswith("conv"):
                number = int(name[-1])
                side = 1 if len(widths) == 4 and number != 2 else 3
                own_stride = stride if number == (2 if len(widths) == 4 else 1) else 1
                after = widths[number]
                setattr(self, name, nn.Conv2d(before, after, side, own_stride, side // 2, bias=False))
                before = after
            else:
                setattr(self, name, nn.BatchNorm2d(before) if name.startswith("bn") else nn.ReLU(inplace=True))
        setattr(self, layout.relu, nn.ReLU(inplace=True))
        shortcut = nn.Sequential(nn.Conv2d(widths[0], widths[-1], 1, stride, bias=False), nn.BatchNorm2d(widths[-1]))
        setattr(self, layout.shortcut, shortcut if stride > 1 or widths[0] != widths[-1] else None)
        for name in layout.idle:
            setattr(self, name, nn.Identity() if name in ("drop_block", "aa") else None)

    def forward(self, x):
        y = x
        for name in self.layout_of_test.way:
            y = getattr(self, name)(y)
            if self.layout_of_test.idle and name.startswith("bn"):
                y = self.drop_block(y)
        for name in ("se", "drop_path"):
            y = y if getattr(self, name, None) is None else getattr(self, name)(y)
        shortcut = getattr(self, self.layout_of_test.shortcut)
        y += x if shortcut is None else shortcut(x)
        return getattr(self, self.layout_of_test.relu)(y)


FOREIGN = [key for key in LAYOUTS if key[0].startswith(("torchvision", "timm"))]


def unit_of(key, stride=1, spatial=False):
    """A decoupled unit under the name of a library's class; with `spatial` 1 × 1 convolutions stay ordinary."""
    kind = type(key[1], (Unit,), {"__module__": key[0], "__qualname__": key[1]})
    widths = (4, 4, 4, 6) if key[1] == "Bottleneck" else (4, 5, 4)
    select = (lambda name, module: isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1)) if spatial else None
    return varied(dcnets.convert(kind(LAYOUTS[key], widths, stride), operator="tanh-cosine", select=select)[0])


def count(unit):
    return sum(isinstance(part, FusedBlock) for part in unit.parts())


@pytest.mark.parametrize("spatial", [False, True], ids=["all decoupled", "spatial"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("key", FOREIGN, ids=".".join)
def test_a_foreign_unit_is_fused_and_computes_the_same(key, stride, spatial):
    model = nn.Sequential(unit_of(key, stride, spatial), nn.Conv2d(6 if key[1] == "Bottleneck" else 4, 3, 1))
    twin = copy.deepcopy(model).double()
    fused = fuse(model)
    unit = fused[0]
    assert isinstance(unit, FusedUnit)
    assert isinstance(unit, Unit)
    assert count(unit) == (1 if spatial and key[1] == "Bottleneck" else len(unit.layout.way) // 3 + 1)
    x = torch.randn(3, 4, 6, 5)
    wanted = results(twin, x.double(), "reference")
    assert_close(results(copy.deepcopy(fused), x, "fused"), wanted, deep=True)
    assert_close(results(fused, x, "fused"), wanted, deep=True)
    assert list(fused.state_dict()) == list(twin.state_dict())


@pytest.mark.parametrize("name", ["drop_path", "se", "drop_block"])
def test_a_unit_with_something_between_takes_its_own_way(name):
    key = ("timm.models.resnet", "BasicBlock")
    unit = unit_of(key)
    setattr(unit, name, nn.Dropout(1.0) if name == "drop_block" else nn.Softmax(1))
    twin, fused = copy.deepcopy(unit), fuse(nn.Sequential(unit))[0]
    x = torch.randn(2, 4, 5, 5)
    with functional.backend("fused"):
        found = fused(x)
    with functional.backend("reference"):
        torch.testing.assert_close(found, twin(x), rtol=1e-4, atol=1e-5)


def test_units_hand_on_their_sums_and_a_compiled_chain_is_one_graph(monkeypatch):
    from dcnets.kernels.gpu import edges, ops

    seen = []
    square_sums = edges.square_sums
    monkeypatch.setattr(edges, "square_sums", lambda x, groups: seen.append(1) or square_sums(x, groups))
    monkeypatch.setattr(ops, "taped_forward", ops.forward)
    torch._dynamo.reset()
    model = fuse(nn.Sequential(*(unit_of(("torchvision.models.resnet", "BasicBlock")) for _ in range(2))))
    twin, x = copy.deepcopy(model), torch.randn(2, 4, 5, 5)
    with functional.backend("fused"):
        y = model(x)
        assert len(seen) == 1, "the first layer alone has to find out"
        torch.testing.assert_close(torch.compile(twin, backend="aot_eager", fullgraph=True)(x), y)
