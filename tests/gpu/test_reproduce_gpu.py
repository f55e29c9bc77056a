"""Reproduction on a GPU: compiled and captured runs in processes of their own, and their warm-up."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_reproduce import go, planned

from dcnets.experiments import results
from dcnets.experiments.reproduce import place, warmup
from dcnets.experiments.reproduce.perform import Order
from dcnets.experiments.settings import Settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FAST = Order("cuda", settings=Settings(compiled=True, captured=True, quiet=True))


def test_captured_runs_one_after_the_other_and_at_once(tmp_path):
    here = place.here("cuda")
    for lanes in (1, 2):
        folder = tmp_path / str(lanes)
        outcome = go(planned(["plain", "wild", "tanh"], folder, arithmetic=here.arithmetic), folder, lanes, order=FAST)
        assert outcome.failed == {}
        found = {line["recipe"]["name"]: line for line in results.read(folder / "runs.jsonl")}
        assert found["wild"]["top1_error"] == "N/C"
        assert all(line["captured"] and line["device"] == here.name for line in found.values())
        assert planned(["plain", "wild", "tanh"], folder, list(found.values()), arithmetic=here.arithmetic).missing == []


def test_the_warm_up_of_captured_updates(tmp_path):
    (job,) = planned(["tanh"], tmp_path).jobs
    told = []
    pace = warmup.paces([job], FAST, tmp_path, told.append)[job]
    assert pace is not None, told
    assert 0 < pace.update < pace.preparation
    assert 0 < warmup.gain(job.recipe, FAST, tmp_path, 2, told.append) < 4
