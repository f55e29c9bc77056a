"""`fit`: it learns, goes on where it was to the last bit, stops when told, and says when and where it diverged."""

import json
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tiny import StopAt, tiny_data, tiny_model, tiny_recipe, tiny_source, tiny_test
from torch import nn
from torch.nn import functional as F

from dcnets import orthonormal_penalty
from dcnets.decoupled import Decoupled
from dcnets.experiments import checkpoint
from dcnets.experiments.checkpoint import CheckpointError
from dcnets.experiments.evaluate import Scores, evaluate
from dcnets.experiments.settings import Settings
from dcnets.experiments.signals import StoppedError
from dcnets.experiments.train import fit

QUIET = Settings(quiet=True)
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def digits():
    return tiny_data()


def trained(digits, recipe=None, *, folder=None, settings=QUIET, model=None, test=True, **place):
    recipe = recipe or tiny_recipe()
    model = model or tiny_model()
    torch.manual_seed(1)
    source = tiny_source(digits, recipe, pieces=settings.pieces, **place)
    return model, fit(model, source, recipe, tiny_test(digits) if test else None, folder=folder, settings=settings)


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


# -- what it computes ------------------------------------------------------------------------------------------------


def test_it_learns_and_reports_each_test(digits):
    model, outcome = trained(digits, tiny_recipe(iterations=480, drops=(320,), evaluate_every=20.0))
    assert outcome.steps == 480
    assert [row["step"] for row in outcome.history] == [160, 320, 480]
    assert outcome.history[-1]["loss"] < 0.7 * outcome.history[0]["loss"]
    assert outcome.scores.top1 > 0.6
    assert outcome.scores.top5 > 0.9
    assert outcome.scores == evaluate(model, tiny_test(digits)())
    assert [row["rate"] for row in outcome.history] == pytest.approx([0.02, 0.02, 0.002])
    assert outcome.divergence is None


def by_hand(digits, recipe, model, optimiser, steps):
    """The same run as straightforward code, for an ordinary or a projected network."""
    source = tiny_source(digits, recipe)
    torch.manual_seed(1)
    model.train()
    filters = [module.weight for module in model.modules() if isinstance(module, Decoupled)]
    for step in range(steps):
        if step % source.batches == 0:
            source.begin(step // source.batches)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * 0.1 ** sum(step >= drop for drop in recipe.drops)
        x, y = source.batch()
        loss = F.cross_entropy(model(x), y, label_smoothing=recipe.label_smoothing)
        if filters:
            loss = loss + 0.5 * recipe.penalty_weight * orthonormal_penalty(model)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if filters and (step + 1) % recipe.project_every == 0:
            with torch.no_grad():
                for weight in filters:
                    weight /= (weight.square().sum((1, 2, 3), keepdim=True) + 1e-4).sqrt()


@pytest.mark.parametrize("operator", [True, False])
@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_an_update_is_that_of_straightforward_code(digits, operator, kind):
    recipe = tiny_recipe(optimiser=kind, penalty_weight=0.1, weight_decay=0.05)
    model, _ = trained(digits, recipe, model=tiny_model(operator=operator))
    twin = tiny_model(operator=operator)
    decayed, free = [], []
    for name, parameter in twin.named_parameters():
        own = twin.get_submodule(name.rpartition(".")[0])
        (free if isinstance(own, Decoupled) and not name.endswith("bias") else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": free, "weight_decay": 0.0}]
    made = {
        "adam": lambda: torch.optim.Adam(groups, lr=recipe.rate),
        "adamw": lambda: torch.optim.AdamW(groups, lr=recipe.rate),
        "sgd": lambda: torch.optim.SGD(groups, lr=recipe.rate, momentum=0.9),
    }
    by_hand(digits, recipe, twin, made[kind](), 24)
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, msg=name)


def test_accumulated_pieces_give_the_gradients_of_the_whole_batch(digits):
    recipe = tiny_recipe(iterations=6, optimiser="sgd", rate=0.05)
    whole, one = trained(digits, recipe, model=tiny_model(batch_norm=False, dropout=0.0, operator=False))
    parts, two = trained(
        digits,
        recipe,
        model=tiny_model(batch_norm=False, dropout=0.0, operator=False),
        settings=Settings(quiet=True, pieces=4),
    )
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert one.history[-1]["loss"] == pytest.approx(two.history[-1]["loss"], rel=1e-5)
    assert one.history[-1]["accuracy"] == two.history[-1]["accuracy"]


def test_projection_leaves_unit_filters(digits):
    model, _ = trained(digits, tiny_recipe(iterations=10, project_every=5))
    norms = model[0].weight.flatten(1).norm(dim=1)
    assert torch.allclose(norms, torch.ones_like(norms), atol=1e-3)
    model, _ = trained(digits, tiny_recipe(iterations=10, filters="standard"))
    norms = model[0].weight.flatten(1).norm(dim=1)
    assert not torch.allclose(norms, torch.ones_like(norms), atol=1e-2)


def test_weighted_gradients_scale_loss_and_penalty(digits):
    from dcnets.optim import Weighting

    recipe = tiny_recipe(iterations=1, optimiser="sgd", rate=0.1, momentum=0.0, filters="weighted", penalty_weight=10.0)
    model, _ = trained(digits, recipe, model=tiny_model(dropout=0.0))
    twin = tiny_model(dropout=0.0)
    source = tiny_source(digits, recipe)
    source.begin(0)
    x, y = source.batch()
    (F.cross_entropy(twin(x), y, label_smoothing=0.01) + 5.0 * orthonormal_penalty(twin)).backward()
    wanted = twin[0].weight - 0.1 * Weighting(twin[0])(twin[0].weight.grad)
    torch.testing.assert_close(model[0].weight, wanted.detach(), rtol=1e-5, atol=1e-6)
    assert not model[0].weight._backward_hooks, "the model is given back as it was, but for its weights"


def test_a_normalised_classifier_is_neither_projected_nor_penalised(digits):
    from dcnets.experiments.update import decoupled_body
    from dcnets.losses import NormalisedClassifier

    def ending_in(classifier):
        body = tiny_model()[:-1]
        torch.manual_seed(3)
        return nn.Sequential(*body, classifier)

    model, _ = trained(digits, tiny_recipe(iterations=5), model=ending_in(NormalisedClassifier(32, 10)))
    assert list(decoupled_body(model)) == [model[0], model[3]]
    norms = model[-1].weight.norm(dim=1)
    assert not torch.allclose(norms, torch.ones(10), atol=0.05)
    twin, _ = trained(digits, tiny_recipe(iterations=5, penalty_weight=1e3), model=ending_in(NormalisedClassifier(32, 10)))
    assert not torch.equal(twin[0].weight, model[0].weight)


def test_what_cannot_be_projected_is_refused_before_the_first_update(digits):
    model = tiny_model()
    model[0] = type(model[0])(1, 6, 3, padding=1, weighting="linear")
    with pytest.raises(ValueError, match="acts in the forward pass"):
        trained(digits, model=model)


def test_bf16_trains_on_a_cpu(digits):
    model, recipe = tiny_model(), tiny_recipe()
    outcome = fit(model, tiny_source(digits, recipe), recipe, tiny_test(digits), precision=torch.bfloat16, settings=QUIET)
    assert outcome.divergence is None
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("update", [1, 8, 13])
def test_a_stopped_run_goes_on_to_the_same_bits(digits, tmp_path, update, number):
    recipe, before = tiny_recipe(), signal.getsignal(number)
    undisturbed, whole = trained(digits, recipe)
    torch.manual_seed(1)
    source = StopAt(tiny_source(digits, recipe), update, number)
    model = tiny_model()
    torch.manual_seed(1)
    with pytest.raises(StoppedError, match=f"stopped after {update} of 24 updates; the state is in .*same command goes on"):
        fit(model, source, recipe, tiny_test(digits), folder=tmp_path, settings=QUIET)
    assert signal.getsignal(number) is before
    torch.manual_seed(77)
    model, outcome = trained(digits, recipe, folder=tmp_path, model=tiny_model(seed=5))
    assert same(model, undisturbed)
    assert without_time(outcome.history) == without_time(whole.history)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert without_time(lines) == without_time(whole.history)


@pytest.mark.parametrize("schedule", ["steps", "cosine"])
def test_a_run_that_is_stopped_at_the_end_of_its_warm_up_goes_on_at_the_whole_rate(digits, tmp_path, schedule):
    recipe = tiny_recipe(warmup=10, schedule=schedule, evaluate_every=0.125)
    undisturbed, whole = trained(digits, recipe)
    torch.manual_seed(1)
    source = StopAt(tiny_source(digits, recipe), 9)  # with 9/10 of the rate, and the next update has all of it
    model = tiny_model()
    torch.manual_seed(1)
    with pytest.raises(StoppedError, match="stopped after 9 of 24 updates"):
        fit(model, source, recipe, tiny_test(digits), folder=tmp_path, settings=QUIET)
    model, outcome = trained(digits, recipe, folder=tmp_path, model=tiny_model(seed=5))
    assert same(model, undisturbed)
    assert without_time(outcome.history) == without_time(whole.history)


def without_time(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_plateau_is_remembered(digits, tmp_path):
    recipe = tiny_recipe(schedule="plateau", patience=1, rate=1e-8, iterations=40, evaluate_every=0.5)
    _, whole = trained(digits, recipe)
    assert whole.history[-1]["rate"] < 1e-9
    model = tiny_model()
    torch.manual_seed(1)
    with pytest.raises(StoppedError):
        fit(model, StopAt(tiny_source(digits, recipe), 22), recipe, tiny_test(digits), folder=tmp_path, settings=QUIET)
    _, outcome = trained(digits, recipe, folder=tmp_path)
    assert [row["rate"] for row in outcome.history] == [row["rate"] for row in whole.history]


def test_twenty_kills_at_random_moments_change_no_bit(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPTS / "killed_training.py", tmp_path, "20"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= 20
    killed, undisturbed = (checkpoint.latest(tmp_path / name) for name in ("killed", "undisturbed"))
    assert killed.step == undisturbed.step == 1500
    assert killed.tensors.keys() == undisturbed.tensors.keys()
    for name, tensor in killed.tensors.items():
        assert torch.equal(tensor, undisturbed.tensors[name]), name
    assert without_time(killed.state["history"]) == without_time(undisturbed.state["history"])


def test_a_finished_run_is_not_trained_again(digits, tmp_path):
    model, outcome = trained(digits, folder=tmp_path)
    again, told = trained(digits, folder=tmp_path, model=tiny_model(seed=9))
    assert same(model, again)
    assert told.steps == 24
    assert told.scores == outcome.scores


def test_fresh_starts_anew(digits, tmp_path):
    model, _ = trained(digits, folder=tmp_path)
    other, _ = trained(digits, folder=tmp_path, model=tiny_model(seed=9), settings=Settings(quiet=True, fresh=True))
    assert not same(model, other)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_another_recipe_is_told_apart_and_the_checkpoint_stays(digits, tmp_path):
    trained(digits, folder=tmp_path)
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.glob("*.safetensors"))
    with pytest.raises(
        CheckpointError, match=r"made with rate=0\.02, this recipe has rate=0\.01; use another folder or --fresh"
    ):
        trained(digits, tiny_recipe(rate=0.01), folder=tmp_path)
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.glob("*.safetensors")) == before


def test_another_network_is_told_apart(digits, tmp_path):
    trained(digits, folder=tmp_path)
    with pytest.raises((CheckpointError, RuntimeError), match=r"0\.raw_radius|fit"):
        trained(digits, folder=tmp_path, model=tiny_model(operator=False))


def test_it_trains_outside_the_main_thread(digits):
    found = []
    worker = threading.Thread(target=lambda: found.append(trained(digits)[1].steps))
    worker.start()
    worker.join()
    assert found == [24]


# -- divergence ------------------------------------------------------------------------------------------------------


class Bomb(nn.Module):
    """Passes its input on, but infinite from a given training batch on."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def forward(self, x):
        if self.training:
            self.left -= 1
        return x * float("inf") if self.left < 0 else x


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step_with_the_weights_before_it(digits, tmp_path):
    recipe = tiny_recipe(filters="standard")
    model, outcome = trained(digits, recipe, model=nn.Sequential(*tiny_model(), Bomb(11)), folder=tmp_path)
    assert outcome.divergence.startswith("the loss of update 12 was not finite; the largest weights were those of ")
    twin, _ = trained(digits, tiny_recipe(iterations=11, filters="standard"))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    norms = {
        name: module.weight.norm() for name, module in model.named_modules() if getattr(module, "weight", None) is not None
    }
    largest = max(norms, key=norms.get)
    assert f"those of {largest}, of norm {norms[largest].item():.3g}" in outcome.divergence
    saved = checkpoint.latest(tmp_path)
    assert saved.state["divergence"] == outcome.divergence
    _, told = trained(digits, recipe, model=nn.Sequential(*tiny_model(), Bomb(11)), folder=tmp_path)
    assert told.divergence == outcome.divergence


def test_a_run_that_diverged_stays_so_with_another_number_of_processes(digits, tmp_path):
    recipe = tiny_recipe(filters="standard")
    _, outcome = trained(digits, recipe, model=nn.Sequential(*tiny_model(), Bomb(11)), folder=tmp_path)
    saved = checkpoint.latest(tmp_path)
    two = {**saved.tensors, "random.cpu": saved.tensors["random.cpu"].repeat(2, 1)}  # as two processes hand it in
    checkpoint.save(tmp_path, saved.step, two, saved.state)
    _, again = trained(digits, recipe, model=nn.Sequential(*tiny_model(), Bomb(11)), folder=tmp_path)
    assert (again.divergence, again.updates) == (outcome.divergence, 0)


def test_a_rate_far_too_high_diverges(digits):
    recipe = tiny_recipe(optimiser="sgd", rate=1e30, operator=None, iterations=200)
    _, outcome = trained(digits, recipe, model=tiny_model(operator=False, batch_norm=False))
    assert "was not finite" in outcome.divergence
    assert outcome.steps < 200


class Silent(nn.Module):
    """Answers every image alike for the first batches of training; `heard_in` training or evaluation, it is always heard."""

    def __init__(self, batches=math.inf, heard_in=None):
        super().__init__()
        self.left, self.heard_in = batches, heard_in

    def forward(self, x):
        if self.training:
            self.left -= 1
        return x if self.left < 0 or self.heard_in == self.training else 0 * x


def silenced(digits, recipe, folder=None, **how):
    return trained(digits, recipe, model=nn.Sequential(*tiny_model(), Silent(**how)), folder=folder)[1]


def test_three_epochs_in_which_every_image_gets_the_same_answer_end_a_run(digits, tmp_path):
    recipe = tiny_recipe(iterations=40)
    outcome = silenced(digits, recipe, tmp_path)
    assert outcome.divergence == "from update 0 to 24 every image got the same answer: no signal passes, and no gradient"
    assert (outcome.steps, outcome.updates, outcome.scores.alike) == (24, 24, True)
    assert [row["silent"] for row in outcome.history] == [True, True, True]
    again = silenced(digits, recipe, tmp_path)
    assert (again.divergence, again.updates) == (outcome.divergence, 0)


def test_silence_goes_on_over_a_stop(digits, tmp_path):
    recipe = tiny_recipe(iterations=40)
    model = nn.Sequential(*tiny_model(), Silent())
    with pytest.raises(StoppedError):
        fit(model, StopAt(tiny_source(digits, recipe), 18), recipe, tiny_test(digits), folder=tmp_path, settings=QUIET)
    assert silenced(digits, recipe, tmp_path).steps == 24


@pytest.mark.parametrize("how", [{"batches": 15}, {"heard_in": True}, {"heard_in": False}])
def test_a_network_that_is_heard_at_times_goes_on(digits, how):
    assert silenced(digits, tiny_recipe(iterations=40), **how).steps == 40


def test_a_run_that_ends_no_better_than_a_guess_has_not_converged(digits, tmp_path):
    two_epochs = tiny_recipe(iterations=16)
    outcome = silenced(digits, two_epochs, tmp_path)
    right = f"{outcome.scores.top1:.2%}"
    assert outcome.divergence == f"after 16 updates {right} of the test images are right, as by a blind guess"
    assert silenced(digits, two_epochs, tmp_path).divergence == outcome.divergence  # and says so again
    assert silenced(digits, tiny_recipe(iterations=7)).divergence is None  # less than an epoch says nothing


@pytest.mark.parametrize(("right", "guessed"), [(100, True), (129, True), (130, False), (9900, False)])
def test_a_guess_is_one_class_in_as_many_as_there_are(right, guessed):
    assert Scores(right / 10_000, 0.05, 4.6, 10_000, 100).guessed == guessed


# -- what it tells ---------------------------------------------------------------------------------------------------


def test_quiet_prints_nothing_and_a_log_has_a_line_a_test(digits, capfd):
    trained(digits)
    assert capfd.readouterr() == ("", "")
    trained(digits, settings=Settings())
    shown = "".join(capfd.readouterr())
    assert shown.count("test error") == 3
    assert "epoch 3: loss" in shown


def test_tensorboard_files_are_written(digits, tmp_path):
    pytest.importorskip("tensorboard")
    trained(digits, folder=tmp_path, settings=Settings(quiet=True, tensorboard=True))
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_evaluate_counts_by_hand_and_restores_modes(digits):
    model = tiny_model()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    scores = evaluate(model, tiny_test(digits)())
    assert [module.training for module in model.modules()] == modes
    x = (digits.test.images.float() - 127.5) / 128
    logits = model.eval()(x).detach()
    order = logits.argsort(1, descending=True)
    assert scores.top1 == pytest.approx((order[:, 0] == digits.test.labels).float().mean().item())
    assert scores.top5 == pytest.approx((order[:, :5] == digits.test.labels[:, None]).any(1).float().mean().item())
    assert scores.loss == pytest.approx(F.cross_entropy(logits, digits.test.labels).item(), rel=1e-5)
    with pytest.raises(ValueError, match="no batches"):
        evaluate(model, [])


def test_a_run_saves_as_often_as_it_is_told(digits, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(checkpoint, "save", lambda folder, step, tensors, state: saved.append((time.monotonic(), step)))
    trained(digits, folder=tmp_path, settings=Settings(quiet=True, save_seconds=0.0))
    assert [step for _, step in saved] == list(range(1, 25))
    saved.clear()
    trained(digits, folder=tmp_path, settings=Settings(quiet=True, save_seconds=1e9))
    assert [step for _, step in saved] == [24]
