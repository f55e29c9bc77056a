"""`backend("auto")` goes by the table of measurements."""

import importlib.util

import pytest
import torch

from dcnets.kernels import measured

GPUS = [(measured.H200, (9, 0)), ("another", (8, 6)), ("old", (7, 5))]


@pytest.fixture(autouse=True)
def _three_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: GPUS[device][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: GPUS[device][1])
    measured.looked_up.cache_clear()
    yield
    measured.looked_up.cache_clear()


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_what_is_in_the_table_and_nothing_else_is_faster(monkeypatch, mode):
    monkeypatch.setattr(measured, "FASTER", {(measured.H200, "compiled", "block"), (measured.H200, "eager", "layer")})
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: mode == "compiled")
    assert measured.triton_is_faster(0, block=True, groups=1) is (mode == "compiled")
    assert measured.triton_is_faster(0, block=False, groups=1) is (mode == "eager")
    with measured.unmeasured():
        assert not measured.triton_is_faster(0, block=mode == "compiled", groups=1)
    assert measured.triton_is_faster(0, block=mode == "compiled", groups=1)


def test_an_unmeasured_gpu_that_triton_has_programs_for_is_taken_for_the_measured_one(monkeypatch):
    assert [measured.measured_as(device) for device in range(3)] == [measured.H200, measured.H200, None]
    measured.looked_up.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert measured.measured_as(1) is None


def test_without_triton_an_unmeasured_gpu_takes_torch(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert measured.measured_as(1) is None


def test_layers_with_groups_were_not_measured():
    assert measured.triton_is_faster(0, block=False, groups=1)
    assert not measured.triton_is_faster(0, block=False, groups=4)


def test_the_question_can_be_asked_while_torch_compiles():
    for gpu, expected in enumerate([1, 1, 0]):
        torch._dynamo.reset()  # in a network the number of its GPU does not change

        def ask(x, gpu=gpu):
            return x + measured.triton_is_faster(gpu, block=True, groups=1)

        assert torch.compile(ask, backend="eager", fullgraph=True)(torch.zeros(())) == expected


def test_triton_is_the_faster_path_in_every_case_that_was_measured():
    assert set(measured.MILLISECONDS) == measured.FASTER
    assert {case[1:] for case in measured.FASTER} == {
        ("compiled", "layer"), ("compiled", "block"), ("eager", "layer"), ("eager", "block"),
    }  # fmt: skip
