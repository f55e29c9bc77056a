"""Captured training on a GPU: the same run as call by call, with rates, projection, divergence and checkpoints."""

import pytest
import torch
from gpu_training import CAPTURED, COMPILED, DEVICE, EAGER, MARKS, trained
from tiny import tiny_data, tiny_model, tiny_recipe, tiny_test

from dcnets.experiments import data
from dcnets.experiments.data.resident import in_order
from dcnets.experiments.settings import Settings
from dcnets.experiments.train import fit

pytestmark = MARKS


@pytest.mark.parametrize("settings", [CAPTURED, COMPILED], ids=["captured", "compiled"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"optimiser": "sgd"}, {"optimiser": "adamw", "schedule": "cosine", "warmup": 5}, {"filters": "weighted"}],
    ids=["adam", "sgd", "adamw", "weighted"],
)
def test_a_captured_run_is_that_of_single_calls(digits, settings, changes):
    recipe = tiny_recipe(**{"rate": 3e-3, "penalty_weight": 0.01, **changes})
    model, outcome = trained(digits, recipe, EAGER, dropout=0.0)
    twin, found = trained(digits, recipe, settings, dropout=0.0)
    for key in ("loss", "rate"):
        assert [row[key] for row in found.history] == pytest.approx([row[key] for row in outcome.history], rel=2e-3), key
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3, msg=name)


@pytest.mark.parametrize("settings", [EAGER, CAPTURED, COMPILED], ids=["eager", "captured", "compiled"])
def test_a_fused_run_is_that_of_the_plain_formula(digits, settings):
    recipe = tiny_recipe(rate=3e-3, penalty_weight=0.01)
    model, outcome = trained(digits, recipe, EAGER, dropout=0.0)
    twin, found = trained(digits, recipe, settings, dropout=0.0, fused=True)
    assert [row["loss"] for row in found.history] == pytest.approx([row["loss"] for row in outcome.history], rel=2e-3)
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3, msg=name)


def test_captured_pieces_are_the_whole_batch(digits):
    recipe = tiny_recipe(optimiser="sgd", rate=0.01, operator=None)
    plain = {"operator": False, "batch_norm": False, "dropout": 0.0}
    whole, _ = trained(digits, recipe, CAPTURED, **plain)
    parts, _ = trained(digits, recipe, Settings(quiet=True, captured=True, pieces=4), **plain)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_dropout_differs_from_replay_to_replay(digits):
    recipe = tiny_recipe(rate=1e-12, iterations=8, evaluate_every=0.125, pad=0)
    small = tiny_data(count=16)
    _, outcome = trained(small, recipe, CAPTURED, dropout=0.5)
    losses = [row["loss"] for row in outcome.history]
    assert len(set(losses)) == len(losses) == 8


def test_a_captured_run_goes_on_from_its_checkpoint(digits, tmp_path):
    recipe = tiny_recipe(rate=3e-3)
    whole, first = trained(digits, recipe, CAPTURED, folder=tmp_path / "whole", dropout=0.0)
    from dcnets.experiments import checkpoint

    class EnoughError(Exception):
        pass

    saved = checkpoint.save
    with pytest.MonkeyPatch.context() as patch:

        def save(folder, step, tensors, state):
            saved(folder, step, tensors, state)
            if step >= 10:
                raise EnoughError

        patch.setattr(checkpoint, "save", save)
        with pytest.raises(EnoughError):
            trained(
                digits, recipe, Settings(quiet=True, captured=True, save_seconds=0.0), folder=tmp_path / "cut", dropout=0.0
            )
    again, second = trained(digits, recipe, CAPTURED, folder=tmp_path / "cut", dropout=0.0)
    assert second.steps == 24
    assert [row["loss"] for row in second.history] == pytest.approx([row["loss"] for row in first.history], rel=1e-3)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


def test_a_captured_run_that_diverges_keeps_the_weights_before(digits):
    recipe = tiny_recipe(optimiser="sgd", rate=1e30, operator=None, iterations=4000)
    model, outcome = trained(digits, recipe, CAPTURED, operator=False, batch_norm=False)
    assert "was not finite" in outcome.divergence
    assert outcome.steps < 50
    assert any(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_bf16_compiled_and_captured_learns(digits):
    recipe = tiny_recipe(iterations=480, drops=(320,), evaluate_every=20.0)
    _, outcome = trained(digits, recipe, COMPILED, precision=torch.bfloat16)
    assert outcome.scores.top1 > 0.5


def test_a_stream_feeds_a_captured_run(tmp_path):
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for label in ("dark", "light"):
            (tmp_path / split / label).mkdir(parents=True)
            for index in range(12):
                low = 0 if label == "dark" else 128
                pixels = torch.randint(low, low + 128, (20, 20, 3), dtype=torch.uint8, generator=generator)
                Image.fromarray(pixels.numpy()).save(tmp_path / split / label / f"{index}.png")
    stream = data.stream("folder", tmp_path, batch=8, resize=20, crop=16, device=DEVICE, workers=2, std=(64.0,) * 3)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
    ).to(DEVICE)
    recipe = tiny_recipe(operator=None, data="folder", batch=8, iterations=60, drops=(), rate=0.02, evaluate_every=10.0)
    outcome = fit(model, stream, recipe, lambda: stream.test(8), device=DEVICE, settings=CAPTURED)
    assert outcome.scores.top1 == 1.0
    assert outcome.scores.count == 24


def test_the_tiny_test_set_scores_alike_on_both_devices(digits):
    from dcnets.experiments.evaluate import evaluate

    model = tiny_model().eval()
    here = evaluate(model, tiny_test(digits)())
    there = evaluate(model.to(DEVICE), in_order(digits.test, 50, mean=digits.mean, std=digits.std, device=DEVICE))
    assert there.loss == pytest.approx(here.loss, rel=1e-3)
