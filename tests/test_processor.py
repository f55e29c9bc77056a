"""Which of two formulas is taken goes by the CPU, and the answer does not."""

import pytest
import torch

from dcnets import magnitude, processor
from dcnets.magnitude import MAGNITUDES


@pytest.fixture(autouse=True)
def _forgotten():
    processor.tanh_is_fast.cache_clear()
    yield
    processor.tanh_is_fast.cache_clear()


@pytest.mark.parametrize(("vendor", "mkl", "fast"), [
    ("GenuineIntel", True, True), ("GenuineIntel", False, False), ("AuthenticAMD", True, False),
])  # fmt: skip
def test_torchs_own_tanh_is_for_intels_processors(monkeypatch, tmp_path, vendor, mkl, fast):
    listed = tmp_path / "cpuinfo"
    listed.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(processor, "LISTED", listed)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    assert processor.tanh_is_fast() is fast


def test_elsewhere_than_on_linux_the_platform_tells(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "LISTED", tmp_path / "nothing")
    monkeypatch.setattr(processor.platform, "processor", lambda: "Intel64 Family 6 Model 143, GenuineIntel")
    assert processor.tanh_is_fast() is torch.backends.mkl.is_available()
    processor.tanh_is_fast.cache_clear()
    monkeypatch.setattr(processor.platform, "processor", lambda: "arm")
    assert not processor.tanh_is_fast()


@pytest.mark.parametrize("fast", [True, False])
def test_both_formulas_are_the_tanh_with_a_relative_error_of_rounding(monkeypatch, fast):
    monkeypatch.setattr(magnitude, "tanh_is_fast", lambda: fast)
    n = torch.logspace(-6, 3, 2001).requires_grad_()
    rho = torch.tensor(0.7)
    h = MAGNITUDES["tanh"](n, {"rho": rho})
    assert (h.grad_fn.name() == "TanhBackward0") is fast
    truth = torch.tanh(n.detach().double() / rho.double())
    assert float(((h.detach().double() - truth) / truth).abs().max()) < 5e-7
    (slope,) = torch.autograd.grad(h.sum(), n)
    assert float((slope.double() - (1 - truth * truth) / rho.double()).abs().max()) < 1e-6
