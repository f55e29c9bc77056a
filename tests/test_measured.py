"""`backend("auto")` goes by the table of measurements."""

import pytest
import torch

from dcnets.kernels import measured


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(measured, "FASTER", {("measured", "compiled", "block"), ("measured", "eager", "layer")})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: ("measured", "unknown")[device])


@pytest.mark.parametrize("compiling", [False, True])
def test_what_is_in_the_table_and_nothing_else_is_faster(two_gpus, monkeypatch, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    assert measured.triton_is_faster(0, block=True) is compiling
    assert measured.triton_is_faster(0, block=False) is not compiling
    assert not measured.triton_is_faster(1, block=True)
    with measured.unmeasured():
        assert not measured.triton_is_faster(0, block=compiling)
    assert measured.triton_is_faster(0, block=compiling)


def test_a_gpu_is_not_asked_for_its_name_where_no_gpu_was_measured(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: pytest.fail("asked"))
    assert not measured.triton_is_faster(0, block=True)


def test_compiled_blocks_take_triton_and_compiled_layers_do_not():
    assert ("NVIDIA H200", "compiled", "block") in measured.FASTER
    assert ("NVIDIA H200", "compiled", "layer") not in measured.FASTER
