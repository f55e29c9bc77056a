"""Routes: a block's second call goes straight to the operator, and finds the way anew where anything has changed."""

import copy
import gc
import weakref

import pytest
import torch
from fused_cases import CHAINS, UNITS, assert_close, conv_block, results
from torch import nn

from dcnets import dispatch, functional
from dcnets.fusing import fuse, routes
from dcnets.fusing.blocks import FusedBlock

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these programs as they are")

CASES = {f"{kind}: {name}": make for kind, all_of in (("unit", UNITS), ("chain", CHAINS)) for name, make in all_of.items()}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


@pytest.fixture
def found_anew(monkeypatch):
    """How often a block looked for its way."""
    seen, respond = [], FusedBlock.respond

    def counted(self, *given):
        seen.append(self)
        return respond(self, *given)

    monkeypatch.setattr(FusedBlock, "respond", counted)
    return seen


def small(**options):
    return fuse(nn.Sequential(conv_block(3, 4, **options), conv_block(4, 5, **options)))


def run(model, seed=0):
    torch.manual_seed(seed)
    return results(model, torch.randn(3, 3, 5, 6), "fused")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_every_later_call_gives_what_the_definition_gives(name, training):
    model, shape, *_ = CASES[name]()
    twin = copy.deepcopy(model).double().train(training)
    fused = fuse(nn.Sequential(model)).train(training)[0]
    for _ in range(3):
        x = torch.randn(shape)
        assert_close(results(fused, x, "fused"), results(twin, x.double(), "reference"), deep=True)


def test_a_way_is_found_once_for_each_mode(found_anew):
    model = small()
    for mode in (True, False, True, False):
        model.train(mode)
        for seed in range(2):
            run(model, seed)
    assert len(found_anew) == 4


CHANGES = {
    "epsilon": lambda model: setattr(model[0][1], "eps", 0.5),
    "another weight": lambda model: setattr(model[0][0], "weight", nn.Parameter(torch.randn(4, 3, 3, 3))),
    "another layer": lambda model: model[0].__setitem__(0, conv_block(3, 4)[0]),
    "another operator": lambda model: model[0].__setitem__(0, conv_block(3, 4, magnitude="ball")[0]),
    "weights that do not learn": lambda model: model[0][0].weight.requires_grad_(False),
    "another alpha": lambda model: setattr(model[0][0], "alpha", 3.0),
    "another stride": lambda model: setattr(model[0][0], "stride", (2, 2)),
    "another padding": lambda model: setattr(model[0][0], "padding", (0, 1)),
    "half of it evaluates": lambda model: model[0][1].eval(),
    "patched forward": lambda model: setattr(model[0][0], "forward", lambda x: 2 * x[:, :1].expand(-1, 4, -1, -1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_is_seen(change):
    model = small()
    run(model)
    CHANGES[change](model)
    plain = nn.Sequential(*(nn.Sequential(*block) for block in model))
    twin = copy.deepcopy(plain).double()
    torch.manual_seed(1)
    x = torch.randn(3, 3, 5, 6)
    with functional.backend("fused"):
        y = model(x)
    with functional.backend("reference"):
        other = twin(x.double())
    torch.testing.assert_close(y.double(), other, rtol=2e-5, atol=2e-5)
    for one, two in zip(gradients(y, model), gradients(other, twin), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-3)


def gradients(y, model):
    learned = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(y.square().sum(), learned, materialize_grads=True)


def test_who_looks_on_later_sees_every_call():
    model, seen = small(), []
    run(model)
    handle = model[0][0].register_forward_hook(lambda *_: seen.append(1))
    run(model)
    assert seen == [1]
    handle.remove()
    run(model)
    assert seen == [1]


def test_the_switch_between_paths_is_asked_each_time(found_anew):
    model, x = small().eval(), torch.randn(3, 3, 5, 6)
    with functional.backend("fused"):
        fused = model(x)
    with functional.backend("reference"):
        plain = model(x)
    assert len(found_anew) == 4
    assert not torch.equal(fused, plain)
    torch.testing.assert_close(fused, plain, rtol=2e-5, atol=2e-5)


def test_autocast_is_asked_each_time():
    model, x = small().eval(), torch.randn(3, 3, 5, 6)
    with functional.backend("fused"):
        for _ in range(2):
            assert model(x).dtype is torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert model(x).dtype is torch.bfloat16


def test_channels_that_do_not_fit_are_refused_as_at_first():
    model = small()
    run(model)
    with functional.backend("fused"), pytest.raises(ValueError, match="expected x of shape"):
        model(torch.randn(3, 4, 5, 6))


def test_a_block_is_not_kept():
    model = small()
    run(model)
    block = weakref.ref(model[0])
    assert block() in routes.ROUTES
    del model
    gc.collect()
    assert block() is None
