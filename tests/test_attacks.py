"""The attacks: what they reach, what they must not leave, what they leave as it was, and what they refuse."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from attacked import KINDS, Wrapped, digits, network
from torch import nn
from torch.nn import functional as F

import dcnets
from dcnets import attacks
from dcnets.attacks.aim import Aim, undisturbed
from dcnets.attacks.norms import NORMS, Draws
from dcnets.attacks.squares import HALVINGS, moved, peak, peaks, side_of, tiles, window
from dcnets.experiments import data
from dcnets.experiments.data.resident import normalise

EPS = {"linf": 0.06, "l2": 0.5}
both_norms = pytest.mark.parametrize("norm", NORMS)
kinds = pytest.mark.parametrize("kind", KINDS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def settings(norm="linf", eps=None):
    """ε, step and steps."""
    eps = EPS[norm] if eps is None else eps
    return {"eps": eps, "step": eps / 4, "steps": 6, "norm": norm}


def pgd(model, x, y, norm="linf", eps=None, **more):
    return attacks.pgd(model, x, y, **settings(norm, eps), **{"generator": seeded(), **more})


def every_attack(norm, eps=None):
    """Each attack with its settings, as a function of model, x and y."""
    eps = EPS[norm] if eps is None else eps
    return {
        "fgsm": partial(attacks.fgsm, eps=eps, norm=norm),
        "bim": partial(attacks.bim, **settings(norm, eps)),
        "pgd": partial(pgd, norm=norm, eps=eps, restarts=2),
        "square": partial(attacks.square, eps=eps, queries=12, norm=norm, generator=seeded()),
    }


ATTACKS = list(every_attack("linf"))
each_attack = pytest.mark.parametrize("name", ATTACKS)


def distances(a, b, norm):
    change = (a - b).double().flatten(1)
    return change.abs().amax(1) if norm == "linf" else change.norm(dim=1)


class Counting(nn.Module):
    """A network that notes the sizes of the batches it is asked about."""

    def __init__(self, model):
        super().__init__()
        self.model, self.sizes = model, []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.model(x)


# -- what they reach ---------------------------------------------------------------------------------------------------


def test_fgsm_is_its_formula():
    model, (x, y) = network().eval(), digits()
    leaf = x.clone().requires_grad_()
    F.cross_entropy(model(leaf), y).backward()
    assert torch.equal(
        attacks.fgsm(model, x, y, eps=0.1), (x + (x + 0.1 * leaf.grad.sign() - x).clamp(-0.1, 0.1)).clamp(0, 1)
    )
    long = leaf.grad.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    found = attacks.fgsm(model, x, y, eps=0.5, norm="l2")
    assert (found - (x + 0.5 * leaf.grad / long).clamp(0, 1)).abs().max() < 1e-6


@kinds
@both_norms
def test_more_steps_fool_more(kind, norm):
    model, (x, y) = network(kind), digits(48)
    shares = [attacks.fooled(model, x, y).double().mean()]
    shares += [attacks.fooled(model, attack(model, x, y), y).double().mean() for attack in every_attack(norm).values()]
    clean, fgsm, bim, pgd, square = shares
    assert clean + 0.2 < fgsm <= bim
    assert clean + 0.2 < pgd
    assert clean < square <= bim


@both_norms
@each_attack
def test_a_targeted_attack_goes_to_the_target(norm, name):
    model, (x, y) = network(), digits(48)
    target = (y + 1) % 10
    attack = every_attack(norm, 2 * EPS[norm])[name]
    before = attacks.fooled(model, x, target, targeted=True)
    found = attack(model, x, target, targeted=True)
    assert attacks.fooled(model, found, target, targeted=True).sum() > before.sum() + (
        2 if name in ("fgsm", "square") else 10
    )
    assert Aim(model.eval(), target, True).judged(found)[1].mean() > Aim(model, target, True).judged(x)[1].mean()


@both_norms
@each_attack
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0, 2.5])
def test_ball_and_box_are_kept(norm, name, share):
    model, (x, y) = network(), digits()
    eps = share * EPS[norm]
    found = every_attack(norm, eps)[name](model, x, y)
    assert found.shape == x.shape
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert found.min() >= 0
    assert found.max() <= 1
    assert distances(found, x, norm).max() <= eps + 2**-23
    if eps:
        assert distances(found, x, norm).max() > 0.9 * eps


def test_a_step_in_l2_has_its_length_however_small_the_gradient_is():
    x, y = torch.full((2, 1, 10, 10), 0.5), torch.tensor([1, 2])
    faint = Wrapped(network("plain"), lambda logits: 1e-30 * logits)
    found = attacks.bim(faint, x, y, eps=1.0, step=0.3, steps=1, norm="l2")
    assert distances(found, x, "l2").tolist() == pytest.approx([0.3, 0.3], abs=1e-6)


def test_without_a_gradient_nothing_moves():
    x, y = digits(3)
    flat = Wrapped(network("plain"), lambda logits: 0 * logits)
    for norm in NORMS:
        assert torch.equal(attacks.bim(flat, x, y, **settings(norm)), x)


# -- starts and restarts -----------------------------------------------------------------------------------------------


@both_norms
def test_starts_are_spread_evenly_over_the_ball(norm):
    x = torch.zeros(4000, 1, 1, 3, dtype=torch.float64)
    start = NORMS[norm].draw(x, 2.0, Draws(seeded(), x))
    volume = (distances(start, x, norm) / 2.0) ** 3  # of the ball inside: evenly spread in [0, 1]
    assert volume.max() <= 1
    assert volume.sort().values.sub(torch.linspace(0, 1, 4000, dtype=torch.float64)).abs().max() < 0.03
    assert start.flatten(1).mean(0).abs().max() < 0.06


@both_norms
@pytest.mark.parametrize("targeted", [False, True], ids=["away", "targeted"])
def test_restarts_are_never_weaker(norm, targeted):
    model, (x, y) = network().eval(), digits(48)
    y = (y + 3) % 10 if targeted else y
    aim, before = Aim(model, y, targeted), None
    for restarts in (1, 2, 4):
        found = pgd(model, x, y, norm, EPS[norm] / 2, restarts=restarts, targeted=targeted)
        fooled, far = aim.judged(found)
        if before is not None:
            assert (fooled >= before[0]).all()
            assert (far >= before[1])[~fooled].all()
            assert (far > before[1]).any()
        before = fooled, far


def test_a_restart_goes_on_with_what_is_left():
    model, (x, y) = Counting(network()), digits()
    found = pgd(model, x, y, eps=0.03, restarts=2)
    assert model.sizes[:7] == [24] * 7  # six steps and a look
    left = set(model.sizes[7:])
    assert len(left) == 1
    first = pgd(model, x, y, eps=0.03)
    fooled = attacks.fooled(model, first, y)
    assert left == {int((~fooled).sum())}
    assert torch.equal(found[fooled], first[fooled])


def test_nothing_is_left_when_all_are_fooled():
    model, (x, y) = Counting(network()), digits()
    pgd(model, x, y, eps=0.5, restarts=9)
    assert len(model.sizes) == 7


@pytest.mark.parametrize("attack", [pgd, partial(attacks.square, eps=0.06, queries=9)], ids=["pgd", "square"])
def test_a_generator_decides_the_draws(attack):
    model, (x, y) = network(), digits()
    one, again, other = (attack(model, x, y, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    generator = seeded(1)
    assert torch.equal(attack(model, x, y, generator=generator), one)
    assert not torch.equal(attack(model, x, y, generator=generator), one)


@pytest.mark.parametrize("attack", [pgd, partial(attacks.square, eps=0.06, queries=9)], ids=["pgd", "square"])
def test_without_a_generator_torch_s_seed_decides_and_stays(attack):
    model, (x, y) = network(), digits()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(attack(model, x, y, generator=None))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


# -- what stays as it was ----------------------------------------------------------------------------------------------


def snapshot(model):
    return {
        "modes": [module.training for module in model.modules()],
        "wanted": [parameter.requires_grad for parameter in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "random": torch.get_rng_state(),
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b


def half_way(kind="relative"):
    """A network in the midst of training: flags of all sorts, gradients here and there."""
    model, (x, y) = network(kind), digits()
    F.cross_entropy(model(x), y).backward()
    model[1].eval()
    model[3].weight.requires_grad_(False)
    model[0].weight.grad = None
    return model


class Noisy(nn.Module):
    """A network that draws random numbers, in evaluation too."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) + 1e-3 * torch.randn(len(x), 1)


@kinds
@each_attack
def test_model_x_y_and_random_numbers_are_as_before(kind, name):
    model, (x, y) = half_way(kind), digits()
    kept, before = (x.clone(), y.clone()), snapshot(model)
    every_attack("linf")[name](model, x, y)
    every_attack("linf")[name](Noisy(model), x, y)
    attacks.fooled(model, x, y)
    assert same(snapshot(model), before)
    assert same([x, y], list(kept))


def test_after_an_error_too():
    model, (x, y) = half_way(), digits()
    before = snapshot(model)
    with pytest.raises(ValueError, match="logits"):
        attacks.fgsm(Wrapped(model, lambda logits: logits[0]), x, y, eps=0.1)
    assert same(snapshot(model), before)


def test_hooks_on_gradients_outlive_an_attack():
    model, (x, y) = network(), digits()
    dcnets.weighted_gradients(model)
    found = []
    for attack in (None, attacks.fgsm):
        model.zero_grad()
        model.load_state_dict(network().state_dict())
        if attack:
            attack(model, x, y, eps=0.1)
        F.cross_entropy(model.eval()(x), y).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        model.train()
    assert same(*found)


@each_attack
def test_the_model_is_attacked_in_evaluation_mode(name):
    attack, (x, y) = every_attack("linf")[name], digits()
    training, evaluating = (every_attack("linf")[name](network().train(mode), x, y) for mode in (True, False))
    assert torch.equal(training, evaluating)
    if name in ("fgsm", "bim"):  # a relative radius is that of the running mean, so the company makes no difference
        alone = torch.cat([attack(network(), x[i : i + 1], y[i : i + 1]) for i in range(6)])
        assert (alone - training[:6]).abs().max() < 1e-6


def test_undisturbed_holds_still_and_lets_go():
    model = half_way()
    before = snapshot(model)
    with undisturbed(model, torch.device("cpu")):
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        torch.rand(1)
    assert same(snapshot(model), before)


def test_a_network_made_in_inference_mode_is_attacked_by_its_answers_and_keeps_its_flags():
    with torch.inference_mode():
        model = nn.Sequential(nn.Flatten(), nn.Linear(100, 10)).train()
    x, y = digits()
    attacks.square(model, x, y, eps=0.1, queries=3)
    with pytest.raises(RuntimeError, match="Inference tensors"):
        attacks.fgsm(model, x, y, eps=0.1)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(context):
    model, (x, y) = network(), digits()
    expected = attacks.fgsm(model, x, y, eps=0.1)
    with context():
        assert torch.equal(attacks.fgsm(model, x * 1, y * 1, eps=0.1), expected)
    assert torch.equal(attacks.fgsm(model, x.clone().requires_grad_() * 1, y, eps=0.1), expected)


def test_a_model_may_change_its_input_in_place():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = network("plain")

        def forward(self, x):
            return self.model(x.sub_(0.5).mul_(2))

    (x, y), kept = digits(), digits()[0]
    neat = attacks.Normalised(network("plain"), [0.5], [0.5], scale=1)
    assert (attacks.bim(InPlace(), x, y, **settings()) - attacks.bim(neat, x, y, **settings())).abs().max() < 1e-6
    assert torch.equal(x, kept)


# -- precision ---------------------------------------------------------------------------------------------------------


@both_norms
@each_attack
def test_a_bfloat16_model_is_attacked_in_float32(norm, name):
    model, (x, y) = network().bfloat16(), digits(48)
    found = every_attack(norm)[name](model, x, y)
    assert found.dtype == torch.float32
    assert distances(found, x, norm).max() <= EPS[norm] + 2**-23
    assert attacks.fooled(model, found, y).sum() > attacks.fooled(model, x, y).sum() + 4
    half = every_attack(norm)[name](model, x.bfloat16(), y)
    assert half.dtype == torch.float32
    assert distances(half, x.bfloat16().float(), norm).max() <= EPS[norm] + 2**-23


def test_float64_stays_float64():
    model, (x, y) = network().double(), digits()
    for norm in NORMS:
        for attack in every_attack(norm).values():
            found = attack(model, x.double(), y)
            assert found.dtype == torch.float64
            assert distances(found, x, norm).max() <= EPS[norm] + 1e-12


@both_norms
@each_attack
def test_examples_have_the_precision_of_images_not_of_the_model(norm, name):
    attack, (x, y) = every_attack(norm)[name], digits()
    for model, images in ((network().double(), x), (network(), x.double())):
        found = attack(model, images, y)
        assert found.dtype == images.dtype
        assert attacks.fooled(model, found, y).sum() > attacks.fooled(model, images, y).sum()


@both_norms
def test_autoattack_in_float64_too(norm):
    """The package computes in float32; the examples are those of x all the same."""
    pytest.importorskip("pyautoattack")
    model, (x, y) = network().double(), digits(6)
    x = x.double() * (1 - 1e-9)  # which float32 cannot tell from x
    found = attacks.autoattack(model, x, y, eps=EPS[norm], norm=norm)
    assert found.dtype == torch.float64
    assert distances(found, x, norm).max() <= EPS[norm] + 1e-12
    fooled = attacks.fooled(model, found, y)
    assert fooled.sum() > attacks.fooled(model, x, y).sum()
    still = (found == x).flatten(1).all(1)
    assert (still | fooled).all()
    assert attacks.autoattack(model, x.float(), y, eps=EPS[norm], norm=norm).dtype == torch.float32


def test_under_autocast_it_still_fools():
    model, (x, y) = network(), digits(48)
    with torch.autocast("cpu", torch.bfloat16):
        found = attacks.bim(model, x, y, **settings())
        assert attacks.fooled(model, found, y).sum() > attacks.fooled(model, x, y).sum() + 10
    assert found.dtype == torch.float32


# -- images, batches, transfer -----------------------------------------------------------------------------------------


def test_normalised_gives_a_network_what_training_gave_it():
    split = data.load("mnist-subset").test
    images, mean, std = split.images[:20], (127.5,), (128.0,)
    seen = attacks.Normalised(nn.Identity(), mean, std, scale=255)(images.float() / 255)
    assert (seen - normalise(images, mean, std)).abs().max() < 1e-6
    inside = attacks.Normalised(network().bfloat16(), mean, std, scale=255)
    assert inside.mean.dtype == torch.bfloat16
    assert list(inside.state_dict()) == [f"model.{name}" for name in network().state_dict()]


def test_a_normalisation_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="2 means and 1 standard deviations"):
        attacks.Normalised(nn.Identity(), [0.5, 0.5], [0.5], scale=1)
    with pytest.raises(ValueError, match="above 0"):
        attacks.Normalised(nn.Identity(), [0.5], [0.0], scale=1)
    three = attacks.Normalised(nn.Identity(), [0.5] * 3, [0.5] * 3, scale=1)
    for x in (torch.zeros(2, 1, 4, 4), torch.zeros(2, 16)):
        with pytest.raises(ValueError, match=r"expected images .* of 3 channels; give one mean"):
            three(x)


def test_a_number_is_the_mean_of_the_only_channel():
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    seen = attacks.Normalised(nn.Linear(4, 4).double(), 0.1, torch.tensor(0.3, dtype=torch.float64), scale=1)
    seen.model = nn.Identity()
    assert torch.equal(seen(x), (x - 0.1) / 0.3)
    with pytest.raises(ValueError, match="of 1 channels"):
        seen(torch.rand(2, 3, 4, 4, dtype=torch.float64))


def test_batches_give_what_one_go_gives(capsys):
    model, (x, y) = Counting(network()), digits()
    found = attacks.in_batches(attacks.bim, model, x, y, batch=7, **settings())
    assert model.sizes == [1] + [7] * 18 + [3] * 6  # a look at one image tells the classes
    assert (found - attacks.bim(model, x, y, **settings())).abs().max() < 1e-6
    fooled = attacks.in_batches(attacks.fooled, model, found, y, batch=5)
    assert torch.equal(fooled, attacks.fooled(model, found, y))
    assert capsys.readouterr().err == ""


def test_a_bar_counts_the_batches(capsys):
    x, y = digits()
    attacks.in_batches(attacks.fgsm, network(), x, y, batch=10, progress=True, eps=0.1)
    told = capsys.readouterr().err
    assert told.startswith("fgsm: batch 3/3")


def test_a_generator_goes_on_from_batch_to_batch():
    (x, y), model = digits(2), network()
    x, y = x[:1].repeat(2, 1, 1, 1), y[:1].repeat(2)
    for generator, alike in ((None, True), (seeded(), False)):
        one, two = attacks.in_batches(attacks.pgd, model, x, y, batch=1, generator=generator, **settings())
        assert torch.equal(one, two) == alike


def test_a_bar_without_rich_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dcnets.experiments.progress", None)
    with pytest.raises(ImportError, match=r"pip install 'dcnets\[attacks\]'"):
        attacks.in_batches(attacks.fgsm, network(), *digits(), batch=9, progress=True, eps=0.1)


@pytest.mark.parametrize("batch", [None, 7])
def test_transfer_tries_the_substitute_s_examples_on_the_victim(batch):
    substitute, victim, (x, y) = network("plain"), network("relative", seed=1), digits(48)
    examples, fooled = attacks.transfer(substitute, victim, x, y, attack=attacks.bim, batch=batch, **settings())
    assert (examples - attacks.bim(substitute, x, y, **settings())).abs().max() < 1e-6
    assert torch.equal(fooled, attacks.fooled(victim, examples, y))
    clean, white = (attacks.fooled(victim, images, y) for images in (x, attacks.bim(victim, x, y, **settings())))
    assert clean.sum() < fooled.sum() < white.sum()


def test_a_targeted_transfer_counts_what_reaches_the_target():
    model, (x, y) = network(), digits(48)
    target = (y + 1) % 10
    reach = {**settings(eps=0.15), "targeted": True}
    examples, fooled = attacks.transfer(model, model, x, target, attack=attacks.bim, **reach)
    assert torch.equal(fooled, attacks.fooled(model, examples, target, targeted=True))
    assert fooled.sum() > 20
    hidden = partial(attacks.bim, **reach)
    with pytest.raises(ValueError, match=r"sets targeted=True where transfer cannot see it.*give it to transfer"):
        attacks.transfer(model, model, x, target, attack=hidden)
    plain = partial(attacks.bim, **settings(eps=0.15))
    assert torch.equal(attacks.transfer(model, model, x, target, attack=plain, targeted=True).fooled, fooled)


def test_an_attack_that_knows_no_target_is_transferred_too():
    def brighter(model, x, y):
        return (x + 0.3).clamp(0, 1)

    model, (x, y) = network(), digits()
    examples, fooled = attacks.transfer(model, model, x, y, attack=brighter)
    assert torch.equal(fooled, attacks.fooled(model, examples, y))


@pytest.mark.parametrize("where", ["image", "class"])
def test_a_mistake_in_the_last_batch_is_told_before_the_first(where):
    model, (x, y) = Counting(network()), digits()
    if where == "image":
        x[-1] += 1
    else:
        y[-1] = 10
    with pytest.raises(ValueError, match="x has values" if where == "image" else "y has class 10, but"):
        attacks.in_batches(attacks.fgsm, model, x, y, batch=5, eps=0.1)
    assert sum(model.sizes) <= 1


def test_numbers_of_numpy_and_torch_are_numbers():
    numpy = pytest.importorskip("numpy")
    model, (x, y) = network(), digits()
    expected = attacks.bim(model, x, y, eps=0.125, step=0.0625, steps=3)
    for number, count in ((numpy.float32, numpy.int64), (torch.tensor, torch.tensor)):
        found = attacks.bim(model, x, y, eps=number(0.125), step=number(0.0625), steps=count(3))
        assert torch.equal(found, expected)
    for wrong in (numpy.bool_(True), torch.tensor(True), torch.tensor([3, 4]), 3.0):
        with pytest.raises(TypeError, match="steps is a whole number, got"):
            attacks.bim(model, x, y, eps=0.125, step=0.0625, steps=wrong)
    with pytest.raises(TypeError, match="eps is a number, got"):
        attacks.fgsm(model, x, y, eps=torch.tensor([0.1, 0.2]))


# -- squares -----------------------------------------------------------------------------------------------------------


@both_norms
def test_square_needs_no_gradient(norm):
    (x, y), model = digits(48), network()
    detached = Wrapped(model, lambda logits: logits.detach())
    expected = attacks.square(model, x, y, eps=EPS[norm], queries=30, norm=norm, generator=seeded())
    found = attacks.square(detached, x, y, eps=EPS[norm], queries=30, norm=norm, generator=seeded())
    assert torch.equal(found, expected)
    assert attacks.fooled(model, found, y).sum() > attacks.fooled(model, x, y).sum() + 10


@both_norms
def test_square_asks_only_about_images_that_still_hold(norm):
    model, (x, y) = Counting(network()), digits(48)
    wrong = attacks.fooled(model, x, y)
    model.sizes.clear()
    found = attacks.square(model, x, y, eps=EPS[norm], queries=20, norm=norm, generator=seeded())
    assert torch.equal(found[wrong], x[wrong])
    assert model.sizes[:2] == [48, int((~wrong).sum())]
    assert model.sizes[1:] == sorted(model.sizes[1:], reverse=True)
    assert model.sizes[-1] < model.sizes[1]
    assert len(model.sizes) == 21


def test_one_query_is_a_look_at_the_start():
    model, (x, y) = Counting(network()), digits()
    found = attacks.square(model, x, y, eps=0.01, queries=1)
    assert len(model.sizes) == 2
    change = (found - x)[~attacks.fooled(model, x, y)]
    clear = change[:, :, 4:6].abs() > 0.009  # away from pixels at 0 and 1, columns have one sign
    assert clear.any()
    assert ((change[:, :, 4] * change[:, :, 5])[clear.all(2)] > 0).all()


def test_the_side_falls_as_published():
    x = torch.zeros(1, 3, 32, 32)
    sides = {}
    for query in range(10_000):
        sides.setdefault(side_of(query / 10_000, 0.8, x, "linf"), query)
    assert sides == {
        max(round(math.sqrt(0.8 / 2**i) * 32), 1): 0 if i == 0 else mark + 1 for i, mark in enumerate((0, *HALVINGS))
    }
    assert side_of(0, 1.0, x, "linf") == 32
    assert {side_of(i / 100, 0.8, x, "l2") % 2 for i in range(100)} == {1}
    assert side_of(0.99, 0.1, x, "l2") == 3
    assert side_of(0, 0.8, torch.zeros(1, 1, 5, 40), "linf") == 5


def test_a_square_can_lie_everywhere():
    x = torch.zeros(400, 2, 5, 7)
    place = window(x, 3, Draws(seeded(), x))
    assert x[place].shape == (400, 2, 3, 3)
    corners = {(int(place[2][i, 0, 0, 0]), int(place[3][i, 0, 0, 0])) for i in range(400)}
    assert corners == {(row, column) for row in range(3) for column in range(5)}
    x[place] = 1
    assert (x.sum((2, 3)) == 9).all()


def test_a_moved_square_uses_up_the_length_and_no_more():
    x = torch.full((50, 3, 12, 12), 0.5, dtype=torch.float64)
    draws = Draws(seeded(), x)
    best = tiles(x, 0.5, draws)
    for side in (7, 5, 3):
        for _ in range(5):
            tried = moved(best, x, 0.8, side, draws)
            assert distances(tried, x, "l2").tolist() == pytest.approx([0.8] * 50)
            assert ((tried != best).sum((2, 3)) <= 2 * side**2).all()
            best = tried


@pytest.mark.parametrize(("height", "width"), [(1, 3), (3, 3), (3, 7), (4, 7), (2, 5)])
def test_a_peak_is_nested_squares(height, width):
    expected = torch.zeros(height, width, dtype=torch.float64)
    for j in range(max(height, width) // 2 + 1):
        for row in range(height):
            for column in range(width):
                if abs(row - height // 2) <= j and abs(column - width // 2) <= j:
                    expected[row, column] += 1 / (j + 1) ** 2
    assert torch.allclose(peak(height, width), expected / expected.norm())


@pytest.mark.parametrize("side", [1, 2, 3, 7])
def test_peaks_have_length_1_and_lie_either_way(side):
    found = peaks(60, side, Draws(seeded(), torch.zeros(1)))
    assert found.shape == (60, side, side)
    assert found.flatten(1).norm(dim=1).tolist() == pytest.approx([1] * 60, abs=1e-6)
    assert len(found.unique(dim=0)) == (1 if side == 1 else 2)
    assert torch.equal(found.unique(dim=0).transpose(1, 2).unique(dim=0), found.unique(dim=0))


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(model, x, y):
    """Every mistake: what is called, the exception, and what it says."""
    fgsm = partial(attacks.fgsm, model, eps=0.1)
    with_logits = lambda function: attacks.fgsm(Wrapped(model, function), x, y, eps=0.1)
    iterate = lambda **changes: attacks.pgd(model, x, y, **{**settings(), **changes})
    square = lambda **changes: attacks.square(model, x, y, **{"eps": 0.1, "queries": 5, **changes})
    return {
        "no module": (lambda: attacks.fgsm(model.forward, x, y, eps=0.1), TypeError, "torch.nn.Module, got method"),
        "bytes": (lambda: fgsm((255 * x).byte(), y), TypeError, r"got torch.uint8; of bytes take x.float\(\) / 255"),
        "a list": (lambda: fgsm([1.0], y), TypeError, r"got list; make it one with torch.as_tensor\(x\)"),
        "normalised": (lambda: fgsm(2 * x - 1, y), ValueError, r"from -1 to 1, expected \[0, 1\].*attacks.Normalised"),
        "NaN": (lambda: fgsm(x * torch.nan, y), ValueError, "from nan to nan"),
        "just above": (lambda: fgsm(x + (1 + 1e-6 - x.max()), y), ValueError, r"to 1\.00000\d+, expected \[0, 1\]"),
        "no images": (lambda: fgsm(x[:0], y[:0]), ValueError, r"shape \(0, 1, 10, 10\), expected one image .*nothing"),
        "a flat image": (lambda: fgsm(x[0, 0, 0], y[:1]), ValueError, r"shape \(10,\), expected .* x\[None\]"),
        "a seed": (lambda: pgd(model, x, y, generator=0), TypeError, r"Generator or None, got 0; make one with"),
        "targeted a word": (lambda: fgsm(x, y, targeted="no"), TypeError, "targeted is True or False, got 'no'"),
        "targeted a tensor": (lambda: fgsm(x, y, targeted=y > 3), TypeError, "targeted is True or False"),
        "a start by a word": (lambda: iterate(random_start="no"), TypeError, "random_start is True or False"),
        "float labels": (lambda: fgsm(x, y.float()), TypeError, r"got torch.float32; convert with .long\(\)"),
        "label list": (lambda: fgsm(x, y.tolist()), TypeError, r"got list; make it one with torch.as_tensor\(y\)"),
        "one-hot labels": (lambda: fgsm(x, F.one_hot(y, 10)), ValueError, r"shape \(24, 10\), expected \(24,\)"),
        "few labels": (lambda: fgsm(x, y[:5]), ValueError, r"shape \(5,\), expected \(24,\)"),
        "a class too high": (lambda: fgsm(x, y + 5), ValueError, "y has class 14, but the model knows 0 to 9"),
        "a class below 0": (lambda: attacks.fooled(model, x, y - 1), ValueError, "y has class -1"),
        "negative ε": (lambda: attacks.fgsm(model, x, y, eps=-0.1), ValueError, "eps must be finite and 0 or more"),
        "infinite ε": (lambda: attacks.fgsm(model, x, y, eps=math.inf, norm="l2"), ValueError, "eps must be finite"),
        "ε in bytes": (lambda: attacks.fgsm(model, x, y, eps=8), ValueError, "did you mean 8/255"),
        "ε a text": (lambda: attacks.fgsm(model, x, y, eps="8"), TypeError, "eps is a number, got '8'"),
        "negative step": (lambda: iterate(step=-1.0), ValueError, "step must be finite and 0 or more"),
        "no steps": (lambda: iterate(steps=0), ValueError, "steps must be 1 or more, got 0"),
        "no restarts": (lambda: iterate(restarts=0), ValueError, "restarts must be 1 or more"),
        "restarts alike": (lambda: iterate(restarts=2, random_start=False), ValueError, "all alike; set random_start=True"),
        "unknown norm": (lambda: iterate(norm="l1"), ValueError, "unknown norm 'l1'.*linf"),
        "no logits": (lambda: with_logits(lambda z: (z, z)), TypeError, "returned tuple, expected a tensor of logits"),
        "one row": (lambda: with_logits(lambda z: z[:1]), ValueError, r"shape \(1, 10\), expected logits \(24, classes\)"),
        "one class": (lambda: with_logits(lambda z: z[:, :1]), ValueError, "two classes or more"),
        "a picture": (lambda: with_logits(lambda z: z[..., None]), ValueError, r"shape \(24, 10, 1\)"),
        "answers": (lambda: with_logits(lambda z: z.argmax(1)), ValueError, r"torch.int64 of shape \(24,\)"),
        "detached": (lambda: with_logits(lambda z: z.detach()), ValueError, "no gradient in x.*attacks.square"),
        "gradient NaN": (lambda: with_logits(lambda z: z * torch.nan), ValueError, "gradient in x is not finite for 24 "),
        "answers NaN": (
            lambda: attacks.fooled(Wrapped(model, lambda z: z * torch.nan), x, y), ValueError, "logits are NaN: no answer",
        ),
        "no queries": (lambda: square(queries=0), ValueError, "queries must be 1 or more"),
        "no pixels": (lambda: square(p=0.0), ValueError, "p must be above 0"),
        "p in percent": (lambda: square(p=80), ValueError, "p must be from 0 to 1"),
        "no squares": (
            lambda: attacks.square(nn.Flatten(), x.flatten(1), y, eps=0.1, queries=5), ValueError,
            r"expected images \(n, channels, height, width\) of 1×1",
        ),
        "small squares": (
            lambda: attacks.square(model, x[..., :4, :4], y, eps=0.1, queries=5, norm="l2"), ValueError, "of 5×5",
        ),
        "no batch": (lambda: attacks.in_batches(attacks.fgsm, model, x, y, batch=0, eps=0.1), ValueError, "batch must be 1"),
        "labels left over": (
            lambda: attacks.in_batches(attacks.fgsm, model, x[:9], y, batch=9, eps=0.1), ValueError, r"expected \(9,\)",
        ),
        "unknown version": (
            lambda: attacks.autoattack(model, x, y, eps=0.1, version="custom"), ValueError, "unknown version 'custom'",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("mistake", refused(nn.Identity(), None, None))
def test_a_mistake_is_refused_in_words(mistake):
    call, kind, words = refused(network(), *digits())[mistake]
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd", "square", "autoattack"])
def test_what_no_default_is_honest_for_has_to_be_given(name):
    with pytest.raises(TypeError, match=r"missing .* required keyword-only argument.*eps"):
        getattr(attacks, name)(network(), *digits())


def test_autoattack_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(ImportError, match=r"needs the package pyautoattack .*pip install 'dcnets\[attacks\]'"):
        attacks.autoattack(network(), *digits(), eps=0.1)


def test_importing_it_loads_torch_and_nothing_else():
    code = "import sys\nfrom dcnets import attacks\nprint([name for name in NAMES if name in sys.modules])"
    names = ["pyautoattack", "foolbox", "rich", "click", "dcnets.experiments"]
    done = subprocess.run([sys.executable, "-c", f"NAMES = {names}\n{code}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
