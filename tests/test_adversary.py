"""Adversarial training: its fields, its examples beside those of `attacks`, its losses by hand, and what comes of it."""

import dataclasses
import functools
import json
import math
from contextlib import contextmanager

import pytest
import torch
from attacked import KINDS, digits, network
from command_line import SMALL, ok, refused
from tiny import StopAt, tiny_data, tiny_model, tiny_recipe, tiny_source, tiny_test
from tolerances import EXACT, SCALE, error
from torch import nn
from torch.nn import functional as F

from dcnets import attacks
from dcnets.experiments import recipes
from dcnets.experiments.adversary import Adversary, divergence
from dcnets.experiments.adversary_fields import FIELDS, TAKES
from dcnets.experiments.distributed import Team
from dcnets.experiments.recipe import read, words
from dcnets.experiments.same_recipe import differences
from dcnets.experiments.settings import Settings
from dcnets.experiments.signals import StoppedError
from dcnets.experiments.train import fit
from dcnets.experiments.update import Update, arithmetic, make_optimiser

QUIET = Settings(quiet=True)
CPU = torch.device("cpu")
FGSM = {"adversary": "fgsm", "adversary_eps": 0.1, "clean_share": 0.5}
STEPS = {"adversary_eps": 0.1, "adversary_step": 0.04, "adversary_steps": 4}
PGD = {"adversary": "pgd", **STEPS, "clean_share": 0.0}
TRADES = {"adversary": "trades", **STEPS, "trades_weight": 6.0}
ALL = pytest.mark.parametrize("fields", [FGSM, PGD, TRADES], ids=lambda fields: fields["adversary"])


class Pixels:
    """How images are normalised, as a source tells it."""

    def __init__(self, mean=(127.5,), std=(128.0,)):
        self.mean, self.std = mean, std

    def normalised(self, pixels):
        centre, spread = (torch.tensor(values, dtype=pixels.dtype).view(-1, 1, 1) for values in (self.mean, self.std))
        return (255 * pixels - centre) / spread


AS_THEY_ARE = Pixels((0.0,), (255.0,))


def adversary(model, fields, pixels=None, **changes):
    recipe = tiny_recipe(**fields, **changes)
    return Adversary(model, pixels or Pixels(), recipe, device=CPU, arithmetic=lambda: arithmetic(CPU, torch.float32))


def evaluated(model, x):
    """The logits in evaluation mode, without a graph."""
    twin = tiny_model(**KINDS["relative"])
    twin.load_state_dict(model.state_dict())
    return twin.eval()(x).detach()


@pytest.fixture(scope="module")
def small():
    return tiny_data()


def trained(data, recipe, *, model=None, folder=None, settings=QUIET, source=None, **more):
    model = model or tiny_model()
    torch.manual_seed(1)
    source = source or tiny_source(data, recipe, pieces=settings.pieces)
    return model, fit(model, source, recipe, tiny_test(data), folder=folder, settings=settings, **more)


# -- fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"adversary": "fgsm"}, "adversary fgsm needs adversary_eps and clean_share too; it takes adversary_eps, clean_"),
        (PGD | {"adversary_step": None}, "adversary pgd needs adversary_step too"),
        (TRADES | {"trades_weight": None}, "adversary trades needs trades_weight too"),
        ({"adversary_eps": 0.1}, r"adversary_eps=0\.1 means nothing without an adversary; leave it out"),
        ({"clean_share": 0.0}, r"clean_share=0\.0 means nothing without an adversary"),
        (FGSM | {"adversary_steps": 3}, "adversary_steps=3 means nothing to adversary fgsm"),
        (FGSM | {"trades_weight": 6.0}, r"trades_weight=6\.0 means nothing to adversary fgsm"),
        (TRADES | {"clean_share": 0.5}, r"clean_share=0\.5 means nothing to adversary trades"),
        (FGSM | {"adversary_eps": 8}, r"adversary_eps must be above 0 and at most 1, a pixel's .* \(as 8/255\), got 8"),
        (FGSM | {"adversary_eps": 0.0}, r"adversary_eps must be above 0 .*, got 0\.0"),
        (FGSM | {"adversary_eps": math.nan}, "adversary_eps must be above 0 .*, got nan"),
        (PGD | {"adversary_step": -0.1}, r"adversary_step must be above 0 .*, got -0\.1"),
        (PGD | {"adversary_steps": 0}, "adversary_steps must be 1 or more, got 0"),
        (FGSM | {"clean_share": 1.0}, r"clean_share must be from 0 to less than 1 .*, got 1\.0"),
        (FGSM | {"clean_share": -0.5}, "clean_share must be from 0 to less than 1"),
        (TRADES | {"trades_weight": 0.0}, r"trades_weight must be above 0, got 0\.0"),
        ({"adversary": "fgsn"}, "unknown adversary 'fgsn'; did you mean 'fgsm'"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields, told):
    with pytest.raises(ValueError, match=told):
        tiny_recipe(**fields)


def test_every_adversary_has_its_fields_and_every_field_its_adversary():
    assert set(words("adversary")) == set(TAKES) - {None}
    assert {name for names in TAKES.values() for name in names} == set(FIELDS)


def test_a_checkpoint_from_before_adversaries_is_that_of_a_recipe_without_one():
    recipe = dataclasses.asdict(tiny_recipe())
    before = {name: value for name, value in recipe.items() if name not in ("adversary", *FIELDS)}
    assert len(before) == len(recipe) - 6
    assert differences(before, recipe) == {}


def test_fractions_are_read_exactly():
    assert read("adversary_eps", "8/255") == 8 / 255
    assert read("adversary_eps", "0.5/255") == 0.5 / 255
    assert read("rate", "1/3") == 1 / 3
    for text in ("8/0", "8/", "/255", "8/255/2"):
        with pytest.raises(ValueError, match="adversary_eps is a number, or none, got"):
            read("adversary_eps", text)


def test_another_adversary_empties_what_it_has_no_use_for():
    recipe = recipes.get("cifar10-cnn9_attack-tanh-cosine-pgd")
    trades = recipe.override({"adversary": "trades", "trades_weight": "6"})
    assert dataclasses.replace(trades, name="") == dataclasses.replace(
        recipes.get("cifar10-cnn9_attack-tanh-cosine-trades"), name=""
    )
    natural = recipes.get("cifar10-cnn9_attack-tanh-cosine")
    plain = recipe.override({"adversary": "none", "bn_momentum": str(natural.bn_momentum)})
    assert dataclasses.replace(plain, name="") == dataclasses.replace(natural, name="")
    with pytest.raises(ValueError, match=r"clean_share=0\.5 means nothing to adversary trades"):
        recipe.override({"adversary": "trades", "trades_weight": "6", "clean_share": "0.5"})
    with pytest.raises(ValueError, match="adversary fgsm needs clean_share too"):
        trades.override({"adversary": "fgsm"})
    half = recipe.scaled(0.5)
    unchanged = {name: getattr(recipe, name) for name in ("iterations", "drops", "patience", "bn_momentum")}
    assert dataclasses.replace(half, **unchanged) == recipe


def test_the_command_line_trains_by_each_field(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("--adversary", "pgd", "--adversary-eps", "16/255", "--adversary-step", "0.02", "--adversary-steps", "2")
    ok("train", "mnist-subset-features2d", *SMALL, *given, "--clean-share", "0.25", "--quiet", "--device", "cpu")
    (line,) = (tmp_path / "results" / "runs.jsonl").read_text().splitlines()
    made = json.loads(line)["recipe"]
    assert made | {"adversary": "pgd", "adversary_eps": 16 / 255, "adversary_step": 0.02, "clean_share": 0.25} == made
    assert "-adversary_pgd-adversary_eps_0.0627451-adversary_step_0.02-adversary_steps_2-clean_share_0.25" in made["name"]
    told = refused(2, "train", "mnist-subset-features2d", "--adversary", "pgd", "--adversary-eps", "0.1")
    assert told.startswith("error: adversary pgd needs adversary_step and adversary_steps and clean_share too")


# -- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_to_the_bit_those_of_the_attacks(kind):
    """With mean 127.5 and std 128 no rounding comes between pixels and what the network sees."""
    model, pixels, (x, y) = network(kind), Pixels(), digits()
    whole = attacks.Normalised(model, pixels.mean, pixels.std, scale=255)
    found = adversary(model, FGSM).crafted(pixels.normalised(x), y)
    assert torch.equal(found, pixels.normalised(attacks.fgsm(whole, x, y, eps=0.1)))
    torch.manual_seed(5)
    found = adversary(model, PGD).crafted(pixels.normalised(x), y)
    expected = attacks.pgd(whole, x, y, eps=0.1, step=0.04, steps=4, generator=torch.Generator().manual_seed(5))
    assert torch.equal(found, pixels.normalised(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_those_of_the_attacks_at_any_normalisation(kind):
    model, pixels, (x, y) = network(kind).double(), Pixels((33.3,), (78.6,)), digits()
    x = x.double()
    whole = attacks.Normalised(model, pixels.mean, pixels.std, scale=255)
    adverse = adversary(model, FGSM, pixels)
    adverse.normalise.double()
    adverse.normalise.mean.fill_(33.3)  # float32 had rounded them
    adverse.normalise.std.fill_(78.6)
    found = adverse.crafted(pixels.normalised(x), y)
    assert error(found, pixels.normalised(attacks.fgsm(whole, x, y, eps=0.1))) < EXACT


def test_channels_have_their_own_normalisation():
    pixels = Pixels((121.6, 116.6, 102.7), (58.0, 57.0, 1.0))
    x = torch.rand(4, 3, 5, 5)
    assert error(adversary(tiny_model(), FGSM, pixels).pixels(pixels.normalised(x)), x) < SCALE
    stream = Pixels(tuple(pixels.mean), tuple(pixels.std))
    resident = Pixels(torch.tensor(pixels.mean).view(-1, 1, 1), torch.tensor(pixels.std).view(-1, 1, 1))
    one, other = (adversary(tiny_model(), FGSM, each).normalise for each in (stream, resident))
    assert torch.equal(one(x), other(x))
    assert error(one(x), pixels.normalised(x)) < SCALE


def test_a_source_that_does_not_tell_its_normalisation_is_refused(small):
    recipe = tiny_recipe(**FGSM)
    with pytest.raises(ValueError, match=r"StopAt does not tell how it normalises, .* attributes mean and std"):
        fit(tiny_model(), StopAt(tiny_source(small, recipe), 99), recipe, settings=QUIET)


@ALL
def test_examples_stay_in_the_ball_and_in_pixels_and_fool(fields):
    model, (x, y) = network(), digits()
    z = adversary(model, fields, AS_THEY_ARE).crafted(x, y)
    assert z.amin() >= 0
    assert z.amax() <= 1
    assert 0.099 < (z - x).abs().amax() <= 0.1 * (1 + SCALE)
    noise = (x + 0.1 * torch.randn_like(x).sign()).clamp(0, 1)
    before, by_chance, after = (evaluated(model, images) for images in (x, noise, z))
    assert F.cross_entropy(after, y) > F.cross_entropy(by_chance, y) + 0.5
    assert divergence(before, after, "batchmean") > divergence(before, by_chance, "batchmean") + 0.5


def test_steps_reach_further_than_one():
    model, (x, y) = network(), digits()
    losses = [
        F.cross_entropy(evaluated(model, adversary(model, fields, AS_THEY_ARE).crafted(x, y)), y)
        for fields in (PGD | {"adversary_steps": 1}, PGD | {"adversary_steps": 8})
    ]
    assert losses[1] > losses[0] + 0.5


@ALL
def test_crafting_changes_nothing_but_random_starts(fields):
    model, pixels, (x, y) = network(), Pixels(), digits()
    model[1].eval()
    model[-1].weight.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert any("running_norm" in name for name in state)
    random, seen = torch.get_rng_state(), pixels.normalised(x)
    given = seen.clone()
    found = adversary(model, fields).crafted(seen, y)
    assert not found.requires_grad
    assert torch.equal(seen, given)
    assert [module.training for module in model.modules()] == modes
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == [
        f"{len(model) - 1}.weight"
    ]
    assert all(bool((parameter.grad == 3).all()) for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert torch.equal(torch.get_rng_state(), random) == (fields["adversary"] == "fgsm")


@ALL
def test_crafting_sees_evaluation_mode_and_computes_no_gradient_of_a_parameter(fields):
    model, (x, y) = network(), digits(4)
    seen = []
    for module in model:
        flags = lambda module, *_: seen.append((module.training, any(p.requires_grad for p in module.parameters())))
        module.register_forward_hook(flags)
    adversary(model, fields).crafted(x, y)
    assert set(seen) == {(False, False)}


def test_flags_come_back_after_an_error():
    model = network()
    with pytest.raises(ValueError, match=r"expected images .* of 1 channels"):
        adversary(model, FGSM).crafted(torch.zeros(2, 5, 10, 10), torch.zeros(2, dtype=torch.long))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_random_starts_differ_from_batch_to_batch():
    model, (x, y) = network(), digits(4)
    adverse = adversary(model, PGD | {"adversary_step": 1e-6})
    seen = Pixels().normalised(x)
    assert not torch.equal(adverse.crafted(seen, y), adverse.crafted(seen, y))


# -- losses ------------------------------------------------------------------------------------------------------------


def by_definition(rows, others=None):
    """log p of each row in float64; or Σ p (log p − log q) of each."""
    logs = [[value - math.log(sum(map(math.exp, row))) for value in row] for row in rows.tolist()]
    if others is None:
        return logs
    pairs = zip(logs, by_definition(others), strict=True)
    return [sum(math.exp(p) * (p - q) for p, q in zip(one, other, strict=True)) for one, other in pairs]


def test_losses_are_those_of_their_definitions():
    logits, y = torch.randn(12, 7, dtype=torch.float64), torch.arange(6)
    clean, crafted = logits[:6], logits[6:]
    model = tiny_model()
    right = [[-row[label] for row, label in zip(by_definition(half), y, strict=True)] for half in (clean, crafted)]
    plain, adverse = (sum(losses) / 6 for losses in right)

    def loss(fields, rows):
        found, shown = adversary(model, fields, label_smoothing=0.0).loss(rows, y)
        assert torch.equal(shown, crafted)
        return found.item()

    assert loss(FGSM | {"clean_share": 0.3}, logits) == pytest.approx(0.3 * plain + 0.7 * adverse, rel=EXACT)
    assert loss(PGD, crafted) == pytest.approx(adverse, rel=EXACT)
    assert loss(TRADES, logits) == pytest.approx(plain + 6 * sum(by_definition(clean, crafted)) / 6, rel=EXACT)


@pytest.mark.parametrize("fields", [FGSM, TRADES], ids=["fgsm", "trades"])
def test_losses_have_slopes_in_images_and_examples(fields):
    adverse, y = adversary(tiny_model(), fields), torch.arange(3)
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: adverse.loss(rows, y)[0], logits)


@ALL
def test_the_loss_of_a_batch_is_the_mean_of_its_pieces(fields):
    adverse, y = adversary(tiny_model(), fields), torch.arange(8)
    logits = torch.randn(16, 10, dtype=torch.float64) if adverse.share != 0 else torch.randn(8, 10, dtype=torch.float64)
    parts = zip(*(half.split(2) for half in logits.chunk(len(logits) // 8)), strict=True)
    pieces = [adverse.loss(torch.cat(part), some)[0] for part, some in zip(parts, y.split(2), strict=True)]
    assert torch.stack(pieces).mean().item() == pytest.approx(adverse.loss(logits, y)[0].item(), rel=EXACT)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_an_update_is_that_of_straightforward_code(small, share):
    recipe = tiny_recipe(
        **FGSM | {"clean_share": share}, iterations=8, optimiser="sgd", rate=0.05, penalty=None, filters="standard",
        drops=(), weight_decay=0.0, evaluate_every=1.0,
    )  # fmt: skip
    model, outcome = trained(small, recipe, model=tiny_model(dropout=0.0))
    twin, source = tiny_model(dropout=0.0), tiny_source(small, recipe)
    for norm in twin.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None  # the plain mean, which a run begins with
    whole = attacks.Normalised(twin, (127.5,), (128.0,), scale=255)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    source.begin(0)
    losses, hits = [], 0
    for _ in range(8):
        x, y = source.batch()
        z = Pixels().normalised(attacks.fgsm(whole, (x * 128 + 127.5) / 255, y, eps=0.1))
        logits = twin(torch.cat([x, z]) if share else z)
        smooth = functools.partial(F.cross_entropy, label_smoothing=0.01)
        loss = share * smooth(logits[:16], y) + (1 - share) * smooth(logits[16:], y) if share else smooth(logits, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        hits += (logits[-16:].argmax(1) == y).sum().item()
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, msg=name)
    assert outcome.history[-1]["loss"] == pytest.approx(sum(losses) / 8, rel=1e-5)
    assert outcome.history[-1]["accuracy"] == hits / 128, "the accuracy shown is that of the examples"


@ALL
def test_a_stopped_run_goes_on_to_the_same_bits(small, tmp_path, fields):
    recipe = tiny_recipe(**fields, iterations=12, evaluate_every=0.5)
    undisturbed, whole = trained(small, recipe)
    source = StopAt(tiny_source(small, recipe), 7)
    source.mean, source.std = small.mean, small.std
    with pytest.raises(StoppedError):
        trained(small, recipe, folder=tmp_path, source=source)
    torch.manual_seed(77)
    model, outcome = trained(small, recipe, folder=tmp_path, model=tiny_model(seed=5))
    for a, b in zip(model.state_dict().values(), undisturbed.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert [row["loss"] for row in outcome.history] == [row["loss"] for row in whole.history]


def test_accumulated_pieces_give_the_gradients_of_the_whole_batch(small):
    recipe = tiny_recipe(**FGSM, iterations=6, optimiser="sgd", rate=0.05)
    plain = {"operator": False, "batch_norm": False, "dropout": 0.0}
    whole, one = trained(small, recipe, model=tiny_model(**plain))
    parts, two = trained(small, recipe, model=tiny_model(**plain), settings=Settings(quiet=True, pieces=4))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert one.history[-1]["loss"] == pytest.approx(two.history[-1]["loss"], rel=1e-4)


def test_weighted_gradients_and_penalties_are_those_of_training_alone(small, monkeypatch):
    """Flags that go and come back leave the filters' hooks as they were."""
    recipe = tiny_recipe(**PGD, filters="weighted", penalty_weight=1.0, iterations=6)
    model, outcome = trained(small, recipe)

    @contextmanager
    def evaluation(model):
        model.eval()
        yield
        model.train()

    monkeypatch.setattr("dcnets.experiments.adversary.still", evaluation)
    twin, found = trained(small, recipe)
    assert [row["loss"] for row in found.history] == [row["loss"] for row in outcome.history]
    for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@ALL
def test_a_compiled_run_is_that_of_single_calls(small, fields, monkeypatch):
    recipe = tiny_recipe(**fields, iterations=4)
    model, outcome = trained(small, recipe, model=tiny_model(dropout=0.0))
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    twin, found = trained(small, recipe, model=tiny_model(dropout=0.0), settings=Settings(quiet=True, compiled=True))
    torch.compiler.reset()
    assert found.history[-1]["loss"] == pytest.approx(outcome.history[-1]["loss"], rel=1e-3)
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3, msg=name)


@ALL
def test_bf16_crafts_in_float32(small, fields):
    recipe = tiny_recipe(**fields, iterations=3)
    made, batch = [], Adversary.batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adversary, "batch", lambda self, x, y: made.append(batch(self, x, y)) or made[-1])
        model, outcome = trained(small, recipe, precision=torch.bfloat16)
    assert outcome.divergence is None
    assert [len(each) for each in made] == 3 * [16 if fields["adversary"] == "pgd" else 32]
    assert all(each.dtype is torch.float32 for each in made)
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())


class Wrapping(Team):
    """One process that trains as if it were one of several, and counts how often gradients are shared."""

    def wrap(self, model, device, sync_bn=False):
        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped.shared = []

        def note(_, bucket):
            wrapped.shared.append(bucket.index())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        wrapped.register_comm_hook(None, note)
        return wrapped


@ALL
def test_processes_share_gradients_once_an_update(small, fields):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        weights = []
        for team in (Team(), Wrapping()):
            recipe, model = tiny_recipe(**fields), tiny_model()
            source, optimiser = tiny_source(small, recipe, pieces=2), make_optimiser(model, recipe, CPU)
            update = Update(model, source, optimiser, recipe, device=CPU, team=team, precision=torch.float32, pieces=2)
            torch.manual_seed(1)
            source.begin(0)
            for _ in range(3):
                update()
            weights.append([parameter.detach().clone() for parameter in model.parameters()])
        assert update.wrapped.shared == [0, 0, 0]
        for a, b in zip(*weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    finally:
        del update
        torch.distributed.destroy_process_group()


class Steep(nn.Module):
    """Passes its input on, with a slope in it that is no number."""

    def forward(self, x):
        return x + (0 * x).sqrt()


def test_a_slope_that_is_no_number_ends_the_run(small):
    recipe = tiny_recipe(**FGSM, filters="standard", iterations=3)
    _, natural = trained(small, tiny_recipe(filters="standard", iterations=3), model=nn.Sequential(Steep(), *tiny_model()))
    assert natural.divergence is None
    _, outcome = trained(small, recipe, model=nn.Sequential(Steep(), *tiny_model()))
    assert outcome.divergence.startswith("the loss of update 1 was not finite")


def test_a_network_trained_by_pgd_is_more_robust():
    data = tiny_data(count=1024, test=300)
    x, y = data.test.images / 255, data.test.labels
    robust, clean = {}, {}
    for name, fields in (("natural", {}), ("pgd", PGD)):
        recipe = tiny_recipe(
            **fields, iterations=120, batch=64, drops=(), rate=0.01, evaluate_every=99.0, label_smoothing=0.0
        )
        model, outcome = trained(data, recipe, model=tiny_model(dropout=0.0))
        whole = attacks.Normalised(model, data.mean, data.std, scale=255)
        examples = attacks.pgd(whole, x, y, eps=0.1, step=0.02, steps=20)
        robust[name] = 1 - attacks.fooled(whole, examples, y).float().mean().item()
        clean[name] = outcome.scores.top1
    assert robust["natural"] < 0.25
    assert robust["pgd"] > 0.4
    assert clean["pgd"] > 0.6, "the test in training is that of unchanged images"
