"""Tapes: a second call does what the first did, for other data, and finds out where it cannot."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from dcnets.kernels.gpu import edge_programs, launcher, tapes
from dcnets.kernels.gpu.tapes import Taped


def scaled_convolution(x, weight, bias, scale, stride):
    """Allocations, views, calls with several outputs, changes in place, and constants."""
    z = F.conv2d(x, weight, bias, stride=stride)
    spread, middle = torch.var_mean(z, dim=(0, 2, 3))
    out = torch.empty_like(z)
    out.copy_(z)
    out.mul_(scale).add_(middle[None, :, None, None])
    return out, spread[:2], z.new_empty(0)


def arguments(seed=0, channels_last=False):
    torch.manual_seed(seed)
    x = torch.randn(2, 3, 7, 7)
    return (x.to(memory_format=torch.channels_last) if channels_last else x), torch.randn(4, 3, 3, 3), None, 2.0, (2, 2)


@pytest.fixture
def calls():
    """The number of times that the function itself was called, and the function with tapes."""
    seen = []

    def counted(*given):
        seen.append(1)
        return scaled_convolution(*given)

    return seen, Taped(counted)


def assert_as(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_the_second_call_is_the_tape_s_with_other_data(calls):
    seen, taped = calls
    for seed in range(4):
        assert_as(taped(*arguments(seed)), scaled_convolution(*arguments(seed)))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda x, w, b, scale, stride: (x[:1], w, b, scale, stride),
        lambda x, w, b, scale, stride: (x.double(), w.double(), b, scale, stride),
        lambda x, w, b, scale, stride: (x, w, b, 3.0, stride),
        lambda x, w, b, scale, stride: (x, w, torch.randn(4), scale, stride),
        lambda x, w, b, scale, stride: (x, w, b, scale, (1, 2)),
        lambda x, w, b, scale, stride: (x.transpose(2, 3), w, b, scale, stride),
    ],
    ids=["size", "dtype", "setting", "presence", "stride", "layout"],
)
def test_other_arguments_have_their_own_tape(calls, other):
    seen, taped = calls
    taped(*arguments())
    for _ in range(2):
        torch.manual_seed(5)
        given = other(*arguments(1))
        assert_as(taped(*given), scaled_convolution(*given))
    assert len(seen) == 2


def displaced(t):
    """The same numbers, where no tensor that torch hands out begins."""
    moved = torch.empty(t.numel() + 1)[1:].view(t.shape).copy_(t)
    assert moved.data_ptr() % 16
    return moved


def test_memory_that_begins_elsewhere_is_left_to_the_function(calls):
    seen, taped = calls
    x, *rest = arguments()
    assert_as(taped(displaced(x), *rest), scaled_convolution(x, *rest))
    for _ in range(2):
        assert_as(taped(x, *rest), scaled_convolution(x, *rest))
    assert len(seen) == 2
    assert_as(taped(displaced(x), *rest), scaled_convolution(x, *rest))
    assert len(seen) == 3


def test_a_result_in_another_layout_is_left_to_the_function():
    taped, x = Taped(lambda x: (x + 1,)), torch.randn(4, 4)
    taped(x)
    (tape,) = taped.tapes.values()

    def in_columns(x):
        return (x + 1).t().contiguous().t()

    tape.steps[:] = [tapes.call(in_columns, tapes.picking([0]), {}, [0], [(1, (4, 1))])]
    with pytest.raises(tapes.OtherwiseError):
        tape([x])
    assert torch.equal(taped(x)[0], x + 1)


@pytest.mark.parametrize(
    "function",
    [lambda x: (x,), lambda x: (torch.cat([x, x]),), lambda x: (torch.stack((x, 2 * x)),)],
    ids=["gives back an input", "tensors in a list", "tensors in a tuple"],
)
def test_what_a_tape_cannot_hold_is_done_by_the_function(function):
    taped = Taped(function)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3)
        assert torch.equal(taped(x)[0], function(x)[0])


def test_a_tape_keeps_no_tensor(calls):
    _, taped = calls
    given = arguments()
    outputs = taped(*given)
    watched = [weakref.ref(t) for t in (*outputs, given[0], given[1])]
    del given, outputs
    gc.collect()
    assert not any(ref() is not None for ref in watched)


def test_launches_are_on_the_tape(monkeypatch):
    def squared(x):
        sums = torch.empty(2, 1, 12)
        launcher.run(edge_programs.square_sums, (2, 1, 1), (x, sums), (24, 12, 1, 3, 36, 1, 12), {"ROWS": 16, "CHANNELS": 4})
        return (sums,)

    taped = Taped(squared)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, 12)
        torch.testing.assert_close(taped(x)[0], x.square().sum(1, keepdim=True))
        monkeypatch.setattr(launcher, "run", None)  # the second time it is not asked
    assert launcher.WATCH.recorder is None


def test_tensors_of_another_device_are_worked_on_there(monkeypatch, calls):
    """Triton launches on the current device, whatever device its tensors are on."""
    current, entered = [0], []

    @contextmanager
    def device(wanted):
        entered.append(wanted)
        before, current[0] = current[0], 1
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(launcher, "at_home", lambda t: current[0] == 1)
    seen, taped = calls
    for seed in range(2):
        given = arguments(seed)
        for found, expected in zip(taped(*given), scaled_convolution(*given), strict=True):
            assert torch.equal(found, expected)
    assert entered == [torch.device("cpu")] * 2
    assert (seen, current) == ([1], [0])


def test_all_are_thrown_away_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr(tapes, "MOST", 3)
    taped = Taped(lambda x: (x + 1,))
    for size in range(1, 10):
        assert taped(torch.zeros(size))[0].tolist() == [1.0] * size
        assert len(taped.tapes) <= 3
