"""Adversarial training on a GPU: captured and compiled updates craft as single calls do, and learn."""

from functools import partial

import pytest
import torch
from gpu_training import CAPTURED, COMPILED, DEVICE, EAGER, MARKS, trained
from tiny import tiny_data, tiny_model, tiny_recipe, tiny_source

from dcnets import attacks
from dcnets.experiments.adversary import Adversary
from dcnets.experiments.update import arithmetic

pytestmark = MARKS
FGSM = {"adversary": "fgsm", "adversary_eps": 0.1, "clean_share": 0.5}
STEPS = {"adversary_eps": 0.1, "adversary_step": 0.04, "adversary_steps": 4}
PGD = {"adversary": "pgd", **STEPS, "clean_share": 0.0}
WIDE = PGD | {"adversary_eps": 0.5}
"""So wide that the start matters."""
TRADES = {"adversary": "trades", **STEPS, "trades_weight": 6.0}
ALL = pytest.mark.parametrize("fields", [FGSM, PGD, TRADES], ids=lambda fields: fields["adversary"])
HOW = pytest.mark.parametrize("settings", [CAPTURED, COMPILED], ids=["captured", "compiled"])


@HOW
@pytest.mark.parametrize(
    ("fields", "fused"), [(FGSM, False), (WIDE, False), (TRADES, False), (FGSM, True), (WIDE, True)],
    ids=["fgsm", "pgd", "trades", "fgsm, fused", "pgd, fused"],
)  # fmt: skip
def test_a_captured_run_is_that_of_single_calls(digits, settings, fields, fused, monkeypatch):
    """Random starts too: a replay draws from the generator what single calls would."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # a sign turns at the smallest error of a gradient
    recipe = tiny_recipe(**fields, optimiser="sgd", rate=0.01, penalty_weight=0.01, iterations=6, evaluate_every=0.25)
    model, outcome = trained(digits, recipe, EAGER, dropout=0.0)
    twin, found = trained(digits, recipe, settings, dropout=0.0, fused=fused)
    for key in ("loss", "rate"):
        assert [row[key] for row in found.history] == pytest.approx([row[key] for row in outcome.history], rel=1e-3), key
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3, msg=name)


def first_batch(digits, fields):
    """An adversary and the images and classes that it is to craft examples of."""
    recipe, model = tiny_recipe(**fields), tiny_model().to(DEVICE)
    source = tiny_source(digits, recipe, device=DEVICE)
    source.begin(0)
    forward = partial(arithmetic, DEVICE, torch.float32)
    return Adversary(model, source, recipe, device=DEVICE, arithmetic=forward), *source.batch()


def test_each_replay_starts_where_a_single_call_would(digits):
    adversary, x, y = first_batch(digits, WIDE | {"adversary_step": 1e-6})
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        adversary.crafted(x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = adversary.crafted(x, y)
    torch.cuda.manual_seed(3)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append(found.clone())
    torch.cuda.manual_seed(3)
    called = [adversary.crafted(x, y) for _ in range(2)]
    assert (replayed[0] - replayed[1]).abs().mean() > 0.1
    for a, b in zip(replayed, called, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


@ALL
def test_bf16_compiled_and_captured_learns_and_withstands(fields):
    data = tiny_data(count=1024, test=300)
    recipe = tiny_recipe(**fields, iterations=160, batch=64, drops=(), rate=0.01, evaluate_every=2.0)
    model, outcome = trained(data, recipe, COMPILED, precision=torch.bfloat16, dropout=0.0)
    assert outcome.history[-1]["loss"] < 0.9 * outcome.history[0]["loss"]
    assert outcome.scores.top1 > 0.55
    whole = attacks.Normalised(model, data.mean, data.std, scale=255)
    x, y = data.test.images.to(DEVICE) / 255, data.test.labels.to(DEVICE)
    examples = attacks.pgd(whole, x, y, eps=0.1, step=0.02, steps=20)
    assert attacks.fooled(whole, examples, y).float().mean() < 0.7, "a naturally trained one is fooled by nine in ten"


@ALL
def test_crafting_waits_for_nothing_on_the_host(digits, fields, no_waiting):
    adversary, x, y = first_batch(digits, fields)
    adversary.crafted(x, y)
    with no_waiting():
        found = adversary.crafted(x, y)
    pixels = (found * 128 + 127.5) / 255
    assert pixels.amin() >= 0
    assert pixels.amax() <= 1
    assert ((found - x).abs() * 128 / 255).amax() <= 0.1 * (1 + 1e-5)
