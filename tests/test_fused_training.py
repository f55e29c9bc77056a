"""Training of a fused network through Triton's interpreter: the run that the plain formula gives."""

import pytest
import torch
from tiny import tiny_data, tiny_model, tiny_recipe, tiny_source, tiny_test

from dcnets import dispatch, functional
from dcnets.experiments.settings import Settings
from dcnets.experiments.train import fit
from dcnets.fusing import fuse
from dcnets.fusing.blocks import FusedBlock

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu trains as it is")
PGD = {"adversary": "pgd", "adversary_eps": 0.1, "adversary_step": 0.04, "adversary_steps": 2, "clean_share": 0.0}
FGSM = {"adversary": "fgsm", "adversary_eps": 0.1, "clean_share": 0.5}


def trained(model, recipe, path):
    digits = tiny_data(count=32, test=20)
    torch.manual_seed(1)
    with functional.backend(path):
        return fit(model, tiny_source(digits, recipe), recipe, tiny_test(digits), settings=Settings(quiet=True))


@pytest.mark.parametrize("fields", [{}, FGSM, PGD], ids=["natural", "fgsm", "pgd"])
def test_a_fused_run_is_that_of_the_plain_formula(fields, monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    recipe = tiny_recipe(**fields, optimiser="sgd", rate=0.01, penalty_weight=0.01, iterations=2, evaluate_every=1, batch=8)
    plain, fused = tiny_model(dropout=0.0), fuse(tiny_model(dropout=0.0))
    assert sum(isinstance(part, FusedBlock) for part in fused.parts()) == 2
    wanted, found = trained(plain, recipe, "reference"), trained(fused, recipe, "fused")
    assert [row["loss"] for row in found.history] == pytest.approx([row["loss"] for row in wanted.history], rel=1e-5)
    for (name, a), b in zip(plain.state_dict().items(), fused.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
