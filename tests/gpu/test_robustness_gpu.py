"""The masking report and its parts on a GPU, with the images on the CPU: the same findings as there."""

import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from hardened import EPS, Built, digits, trained
from studied import DIGITS, train
from test_study_lanes import measured

from dcnets.experiments import data
from dcnets.experiments.reproduce.sharing import shared_gpu
from dcnets.experiments.robustness import Plan, Trial, examine, local_lipschitz, transfer_matrix
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.study import lanes, networks, work
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.robustness.study.tasks import Exam, Task
from dcnets.experiments.robustness.subjects import true_float32

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PGD = Trial("pgd", EPS, step=EPS / 4, steps=10)


def on_gpu(model):
    return deepcopy(model).cuda()


@pytest.fixture(autouse=True)
def _exact():
    with true_float32():
        yield


@pytest.mark.parametrize("eps", [0.0, EPS], ids=["natural", "hardened"])
def test_the_report_is_that_of_the_cpu(eps):
    (x, y), plan = digits(), Plan(PGD, restarts=3, queries=50)
    here, there = (
        examine(place(trained(eps)), x, y, plan, batch=64, substitutes={"other": place(trained(seed=1))})
        for place in (lambda model: model, on_gpu)
    )
    assert here.signs == there.signs == []
    assert here.verdict.split()[0] == there.verdict.split()[0]
    assert there.robust.accuracy == pytest.approx(here.robust.accuracy, abs=0.05)


def test_a_network_built_to_saturate_is_called_masked():
    x, y = digits()
    report = examine(on_gpu(Built(trained(), after=lambda z: 1e4 * z)), x, y, Plan(PGD, restarts=3, queries=200), batch=64)
    assert report.verdict.startswith("not robust: masked (gradients, ")


def test_transfer_and_slopes_lie_where_the_images_do():
    x, y = digits(20)
    models = {"one": trained(), "gpu": on_gpu(trained())}
    found = transfer_matrix(models, models, x, y, PGD, batch=20).accuracies()
    assert found["one"]["gpu"] == pytest.approx(found["gpu"]["one"], abs=0.1)
    settings = {"eps": EPS, "step": EPS / 4, "steps": 5, "batch": 20}
    here, there = (local_lipschitz(model, x, y, **settings) for model in models.values())
    assert there.constant.device == x.device
    torch.testing.assert_close(there.slope, here.slope, rtol=1e-3, atol=1e-3)


def test_networks_that_are_attacked_at_once_share_the_gpu(tmp_path):
    for name in (DIGITS, f"{DIGITS}-tanh-cosine"):
        train(tmp_path / "runs", name)
    found, count, told = networks.trained([tmp_path / "runs"])[0], 200, []
    tasks = [Task("tables", each, (0, count), tuple(map(Exam, MAIN.trials))) for each in found]
    arena = Arena(data.load("mnist-subset"), torch.device("cuda"), batch=count, images=count)
    assert work.carry_out(tasks, arena, tmp_path / "one.jsonl", told.append) == {}
    with shared_gpu(told.append):
        place = lanes.Place("mnist-subset", None, "cuda", count, count, threads=1)
        assert lanes.carry_out(tasks, place, tmp_path / "two.jsonl", 2, told.append) == {}
    alone, together = (measured(tmp_path / f"{name}.jsonl") for name in ("one", "two"))
    assert alone.keys() == together.keys()
    for key, (clean, attacks) in alone.items():
        assert together[key][0] == clean
        for one, two in zip(attacks, together[key][1], strict=True):
            assert two["accuracy"] == pytest.approx(one["accuracy"], abs=0.02)  # sums in another order
