"""Robust accuracy: trials, worst cases, curves over ε, transfer, local Lipschitz constants, pictures."""

import json
import math
from xml.etree import ElementTree

import pytest
import torch
from hardened import EPS, Built, digits, faulty, trained
from torch import nn

from dcnets import attacks
from dcnets.attacks.norms import NORMS, Draws
from dcnets.experiments import data
from dcnets.experiments.robustness import (
    GRID,
    Curve,
    Local,
    Plan,
    Trial,
    Wanted,
    Withstood,
    clean,
    curve,
    evaluate,
    local_lipschitz,
    over,
    transfer_matrix,
    withstood,
    worst_case,
    worst_curve,
)
from dcnets.experiments.robustness.picture import draw, panel
from dcnets.experiments.robustness.subjects import InPrecision, pixels_of, true_float32
from dcnets.experiments.robustness.trials import eps_told

BIM = Trial("bim", EPS, step=EPS / 4, steps=6)
PGD = Trial("pgd", EPS, step=EPS / 4, steps=6, seed=3)


def outcome(*survived):
    return Withstood(torch.tensor(survived, dtype=torch.bool))


class Counting(nn.Module):
    """A network that counts the images that it is asked about."""

    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, 0

    def forward(self, x):
        self.seen += len(x)
        return self.model(x)


# -- trials ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attack": "fgms", "eps": 0.1}, "unknown attack 'fgms'; did you mean 'fgsm'"),
        ({"attack": "fgsm", "eps": 0.1, "norm": "l1"}, "unknown norm 'l1'"),
        ({"attack": "fgsm", "eps": 8}, "did you mean 8/255"),
        ({"attack": "fgsm", "eps": -0.1}, "eps must be finite and 0 or more"),
        ({"attack": "fgsm", "eps": 0.1, "step": 0.1}, "FGSM takes no step"),
        ({"attack": "bim", "eps": 0.1, "steps": 3}, "BIM needs step"),
        ({"attack": "pgd", "eps": 0.1, "step": 0.1}, "PGD needs steps"),
        ({"attack": "square", "eps": 0.1}, "Square needs queries"),
        ({"attack": "bim", "eps": 0.1, "step": 0.1, "steps": 1, "restarts": 2}, "BIM takes no restarts, got 2"),
        ({"attack": "pgd", "eps": 0.1, "step": 0.1, "steps": 0}, "steps must be 1 or more"),
        ({"attack": "pgd", "eps": 0.1, "step": 0.01, "steps": 9}, "9 steps of 0.01 reach 0.09, which is less than ε = 0.1"),
    ],
)
def test_a_trial_that_says_nothing_is_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        Trial(**settings)


def test_numbers_of_numpy_and_torch_make_the_same_trial():
    numpy = pytest.importorskip("numpy")
    same = Trial("pgd", numpy.float64(EPS), step=torch.tensor(EPS / 4, dtype=torch.float64), steps=numpy.int32(6),
                 seed=torch.tensor(3))  # fmt: skip
    assert (same, hash(same)) == (PGD, hash(PGD))
    assert json.loads(json.dumps(same.settings())) == PGD.settings()


def test_steps_that_just_reach_the_ball_will_do():
    assert Trial("bim", 0.1, step=0.01, steps=10).steps == 10
    assert Trial("bim", 8 / 255, step=8 / 255 / 7, steps=7).steps == 7


def test_a_trial_at_another_distance_keeps_its_proportion():
    assert BIM.at(0.2) == Trial("bim", 0.2, step=0.05, steps=6)
    assert PGD.at(0.0) == Trial("pgd", 0.0, step=0.0, steps=6, seed=3)
    assert [trial.eps * 255 for trial in over(BIM)] == pytest.approx([0, 1, 2, 4, 8, 16, 32])
    assert [trial.eps for trial in over(PGD, (0.0, 0.3))] == [0.0, 0.3]


def test_a_trial_in_words():
    assert str(Trial("pgd", 8 / 255, step=2 / 255, steps=10, restarts=3)) == "PGD, ε = 8/255, 10 steps of 2/255, 3 restarts"
    assert str(Trial("square", 0.5, "l2", queries=99)) == "Square, ε = 0.5 in L2, 99 queries"
    assert [eps_told(eps) for eps in (0, 0.1, 0.2, 0.5 / 255, 1 / 255, 0.03)] == [
        "0",
        "0.1",
        "0.2",
        "0.5/255",
        "1/255",
        "0.03",
    ]


@pytest.mark.parametrize(
    "trial", [Trial("fgsm", EPS), BIM, PGD, Trial("square", EPS, queries=20, seed=1)], ids=lambda trial: trial.attack
)
def test_a_trial_runs_its_attack(trial):
    model, (x, y) = trained(), digits(20)
    given = trial.settings()
    if "seed" in given:
        given["generator"] = torch.Generator().manual_seed(given.pop("seed"))
    expected = getattr(attacks, trial.attack)(model, x, y, **given)
    assert torch.equal(trial.examples(model, x, y, batch=20), expected)
    assert not torch.equal(expected, x)


# -- accuracy ----------------------------------------------------------------------------------------------------------


def test_what_withstands_is_right_before_and_after():
    model, (x, y) = trained(), digits()
    right = ~attacks.fooled(model, x, y)
    after = ~attacks.fooled(model, attacks.fgsm(model, x, y, eps=EPS), y)
    found = withstood(model, x, y, Trial("fgsm", EPS), batch=40)
    assert torch.equal(clean(model, x, y, batch=40).survived, right)
    assert torch.equal(found.survived, right & after)
    assert 0 < found.right < right.sum() < len(x)


def test_an_image_that_only_the_attack_puts_right_does_not_count():
    class Valley(nn.Module):
        def forward(self, x):
            depth = (x.mean((1, 2, 3)) - 0.25).abs() - 0.1
            return torch.stack([torch.zeros_like(depth), depth], 1)

    model, x, y, trial = Valley(), torch.full((1, 1, 2, 2), 0.2), torch.tensor([1]), Trial("fgsm", 0.5)
    assert attacks.fooled(model, x, y).all()
    assert not attacks.fooled(model, trial.examples(model, x, y, batch=1), y).any()  # the step leads across the valley
    assert withstood(model, x, y, trial, batch=1).right == 0
    assert transfer_matrix({"one": model}, {"one": model}, x, y, trial, batch=1).outcomes["one"]["one"].right == 0


def test_images_that_are_not_among_those_given_are_not_attacked():
    (x, y), model = digits(30), Counting(trained())
    among = Withstood(torch.arange(30) < 4)
    found = withstood(model, x, y, Trial("fgsm", EPS), batch=30, among=among)
    assert model.seen == 2 * 4  # the gradient and the answer
    assert not found.survived[4:].any()
    assert withstood(model, x, y, BIM, batch=30, among=Withstood(torch.zeros(30, dtype=torch.bool))).right == 0


def test_the_worst_case_is_taken_image_by_image():
    found = worst_case([outcome(1, 1, 0, 1), outcome(1, 0, 1, 1)])
    assert found.survived.tolist() == [True, False, False, True]
    assert (found.right, found.count, found.accuracy) == (2, 4, 0.5)
    assert found.error == pytest.approx(math.sqrt(0.5 * 0.5 / 4))


def test_images_that_cannot_be_measured_are_refused():
    model, (x, y) = trained(), digits(6)
    for measure in (clean, BIM.examples, lambda *a, **k: local_lipschitz(*a, eps=EPS, step=EPS, steps=1, **k)):
        for images, classes, told in (
            (x, y[:5], r"y has shape \(5,\), expected \(6,\)"),
            (x[:0], y[:0], "there is nothing to attack"),
            (2 * x - 1, y, "x has values from -1 to"),
        ):
            with pytest.raises(ValueError, match=told):
                measure(model, images, classes, batch=4)
        with pytest.raises(TypeError, match=r"model is a torch\.nn\.Module, got function"):
            measure(lambda x: x, x, y, batch=4)


def test_the_worst_of_nothing_is_refused():
    with pytest.raises(ValueError, match="there are no outcomes"):
        worst_case([])
    with pytest.raises(ValueError, match="there are no curves"):
        worst_curve(iter(()))


# -- curves ------------------------------------------------------------------------------------------------------------


def test_a_curve_has_the_accuracies_of_its_trials():
    model, (x, y) = trained(), digits()
    grid = (0.0, 0.05, 0.1, 0.2)
    found = curve(model, x, y, over(Trial("fgsm", 1.0), grid), batch=200)
    assert found.eps == grid
    assert found.name == "FGSM"
    assert found.accuracies[0] == clean(model, x, y, batch=200).accuracy
    for eps, accuracy in zip(grid[1:], found.accuracies[1:], strict=True):
        assert accuracy == withstood(model, x, y, Trial("fgsm", eps), batch=200).accuracy
    assert found.accuracies[0] > found.accuracies[-1]


def test_the_worst_case_over_attacks_never_rises():
    rising = Curve("one", (0.0, 0.1, 0.2), (outcome(1, 1, 1), outcome(1, 0, 0), outcome(1, 1, 1)))
    other = Curve("other", (0.0, 0.1, 0.2), (outcome(1, 1, 1), outcome(0, 1, 0), outcome(1, 1, 0)))
    assert worst_curve([rising]).accuracies == pytest.approx((1, 1 / 3, 1 / 3))
    assert worst_curve([rising, other]).accuracies == pytest.approx((1, 0, 0))
    with pytest.raises(ValueError, match="different ε"):
        worst_curve([rising, Curve("other", (0.0,), (outcome(1, 1, 1),))])


def test_a_falling_curve_attacks_only_what_is_left():
    model, (x, y) = Counting(trained()), digits(60)
    trials = over(BIM, (0.0, 0.02, 0.05, 0.1, 0.2))
    whole = curve(model, x, y, trials, batch=60)
    seen, model.seen = model.seen, 0
    falling = curve(model, x, y, trials, batch=60, falling=True)
    assert model.seen < seen
    assert falling.accuracies == pytest.approx(worst_curve([whole]).accuracies)
    assert list(falling.accuracies) == sorted(falling.accuracies, reverse=True)


@pytest.mark.parametrize("grid", [(), (0.1, 0.1), (0.2, 0.1)])
def test_a_curve_needs_a_rising_grid(grid):
    x, y = digits(2)
    with pytest.raises(ValueError, match="each larger than the one before"):
        curve(trained(), x, y, over(BIM, grid), batch=2)


# -- transfer ----------------------------------------------------------------------------------------------------------


def test_the_matrix_is_each_transfer():
    (x, y), models = digits(), {"one": trained(), "other": trained(seed=1), "hard": trained(EPS)}
    victims = {name: models[name] for name in ("one", "hard")}
    found = transfer_matrix(models, victims, x, y, BIM, batch=200)
    assert list(found.outcomes) == list(models)
    for row, substitute in models.items():
        for name, victim in victims.items():
            moved = attacks.transfer(substitute, victim, x, y, attack=attacks.bim, eps=EPS, step=EPS / 4, steps=6)
            right = ~attacks.fooled(victim, x, y) & ~moved.fooled
            assert torch.equal(found.outcomes[row][name].survived, right)
            assert found.accuracies()[row][name] == right.double().mean().item()
    assert found.outcomes["one"]["one"].accuracy == withstood(models["one"], x, y, BIM, batch=200).accuracy
    others = found.outcomes["other"]["one"].survived & found.outcomes["hard"]["one"].survived
    assert torch.equal(found.black_box("one").survived, others)
    assert found.black_box("one").accuracy > found.outcomes["one"]["one"].accuracy


def test_a_black_box_needs_another_network():
    (x, y), models = digits(4), {"one": trained()}
    with pytest.raises(ValueError, match="no substitute for one but itself"):
        transfer_matrix(models, models, x, y, BIM, batch=4).black_box("one")
    with pytest.raises(ValueError, match="unknown victim 'on'; did you mean 'one'"):
        transfer_matrix(models, models, x, y, BIM, batch=4).black_box("on")


# -- all at once -------------------------------------------------------------------------------------------------------


def test_everything_of_some_networks_in_one_go():
    (x, y), models = digits(20), {"one": trained(), "hard": trained(EPS)}
    plan = Plan(PGD, restarts=2, queries=5)
    found = evaluate(
        models, x, y, Wanted([over(BIM, (0.0, EPS)), [PGD]], transfer=BIM, masking=plan, lipschitz=PGD), batch=20,
        substitutes={"other": trained(seed=1)},
    )  # fmt: skip
    assert list(found) == ["one", "hard"]
    for name, each in found.items():
        assert each.name == name
        assert each.clean.accuracy == clean(models[name], x, y, batch=20).accuracy
        bim, pgd = each.curves
        assert bim.accuracies[1] == withstood(models[name], x, y, BIM, batch=20).accuracy
        assert pgd.accuracies == (withstood(models[name], x, y, PGD, batch=20).accuracy,)
        assert each.matrix.accuracies()["other"][name] <= each.clean.accuracy
        assert "transfer from other" in each.report.evidence.outcomes
        assert len(each.local.constant) == 20
    assert found["hard"].curves[1].accuracies[0] > found["one"].curves[1].accuracies[0]
    few = evaluate(models, x, y, Wanted(lipschitz=PGD), batch=20)["one"]
    assert (few.curves, few.matrix, few.report) == ((), None, None)


@pytest.mark.parametrize(("name", "why"), [("broken", "gradient in x is not finite"), ("detached", "have no gradient in x")])
def test_a_network_without_gradients_to_follow_is_evaluated_where_a_report_says_so(name, why):
    (x, y), model, square = digits(20), faulty(name), Trial("square", EPS, queries=5)
    attacks, plan = ([BIM], [square], [PGD]), Plan(PGD, restarts=2, queries=5)
    found = evaluate({"one": model}, x, y, Wanted(attacks, masking=plan, lipschitz=PGD), batch=8)["one"]
    assert [each.name for each in found.curves] == ["Square"]
    assert found.attacks == ([square],)
    assert found.blocked.keys() == {"BIM", "PGD"}
    assert all(why in each for each in found.blocked.values())
    assert found.worst.accuracies == found.curves[0].accuracies
    assert "masked (gradients" in found.report.verdict
    with pytest.raises(ValueError, match=why):
        evaluate({"one": model}, x, y, Wanted(attacks), batch=8)


def test_what_cannot_be_evaluated_is_refused():
    x, y = digits(2)
    with pytest.raises(TypeError, match=r"attacks are lists of trials.*give \[\[trial\]\]"):
        Wanted([BIM])
    with pytest.raises(ValueError, match=r"wanted.transfer needs substitutes"):
        evaluate({"one": trained()}, x, y, Wanted([[BIM]], transfer=BIM), batch=2)


# -- Lipschitz constants -----------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """Two logits ±⟨w, x⟩."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x):
        z = x.flatten(1) @ self.w
        return torch.stack([z, -z], 1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_constant_of_a_linear_model_is_found_exactly(norm):
    w = torch.randn(12)
    x, y = torch.full((3, 1, 3, 4), 0.5), torch.tensor([0, 1, 0])
    found = local_lipschitz(Linear(w), x, y, eps=0.1, step=0.02, steps=40, norm=norm, batch=2)
    length = w.abs().sum() if norm == "linf" else w.norm()
    exact = (2 if norm == "linf" else math.sqrt(2)) * length.item()
    assert found.constant.tolist() == pytest.approx([exact] * 3, rel=1e-3)
    assert (found.constant <= exact * (1 + 1e-4)).all()
    assert found.slope.tolist() == pytest.approx([2 * length.item()] * 3, rel=1e-5)
    margin = 2 * 0.5 * w.sum().item()
    assert found.margin.tolist() == pytest.approx([margin, -margin, margin], rel=1e-4)
    assert found.reach.tolist() == pytest.approx([margin / (2 * length.item()) * s for s in (1, -1, 1)], rel=1e-4)


def test_the_constant_is_at_least_any_quotient_in_a_small_ball_and_scales_with_the_logits():
    model, (x, y) = trained(), digits(20)
    settings = {"eps": 0.1, "step": 0.02, "steps": 10, "batch": 20}
    found, doubled = (local_lipschitz(Built(model, after=lambda z, s=s: s * z), x, y, **settings) for s in (1, 2))
    assert torch.allclose(doubled.constant, 2 * found.constant, rtol=1e-2)
    assert torch.allclose(doubled.reach, found.reach, rtol=1e-3)
    z = (x + 0.1 * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    with torch.no_grad():
        quotient = (model(z) - model(x)).abs().sum(1) / (z - x).abs().flatten(1).amax(1)
    assert (found.constant > quotient).all()
    assert set(found.summary()) == {"constant", "slope", "margin", "reach"}
    assert found.summary()["constant"]["q50"] == pytest.approx(found.constant.double().median().item(), rel=0.2)


class Saturating(nn.Module):
    """Two logits ±tanh(50·(x − 0.5)) of one pixel: the further away, the smaller the ratio."""

    def forward(self, x):
        z = torch.tanh(50 * (x.flatten(1).squeeze(1) - 0.5))
        return torch.stack([z, -z], 1)


def test_the_largest_ratio_on_the_way_is_kept_and_the_start_is_drawn():
    x, y = torch.full((40, 1, 1, 1), 0.5), torch.zeros(40, dtype=torch.long)
    found = local_lipschitz(Saturating(), x, y, eps=0.2, step=0.1, steps=3, seed=5, batch=40).constant
    start = NORMS["linf"].draw(x, 0.2, Draws(torch.Generator().manual_seed(5), x)).flatten().abs()
    ratio = 2 * torch.tanh(50 * start) / start
    end = 2 * math.tanh(50 * 0.2) / 0.2
    assert torch.allclose(found, ratio.clamp(min=end), rtol=1e-4)
    assert ratio.max() > 4 * end
    other = local_lipschitz(Saturating(), x, y, eps=0.2, step=0.1, steps=3, seed=6, batch=40).constant
    assert not torch.allclose(found, other)


def test_slopes_and_margins_are_those_of_images_that_are_right():
    local = Local(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([4.0, 2.0, -50.0]), torch.tensor([2.0, 2.0, 10.0]))
    found = {name: numbers["q50"] for name, numbers in local.summary().items()}
    assert found == {"constant": 2.0, "slope": 2.0, "margin": 3.0, "reach": 1.5}
    assert local.reach.tolist() == [2.0, 1.0, -5.0]  # each image has its own


def test_a_network_without_gradients_has_no_slope():
    x, y = digits(5)
    found = local_lipschitz(Built(trained(), after=torch.detach), x, y, eps=0.1, step=0.02, steps=2, batch=5)
    assert not found.slope.any()
    assert math.isnan(found.summary()["reach"]["mean"])
    with pytest.raises(ValueError, match="eps must be above 0"):
        local_lipschitz(trained(), x, y, eps=0.0, step=0.02, steps=2, batch=5)


# -- subjects ----------------------------------------------------------------------------------------------------------


def test_images_of_the_test_set_in_their_order():
    digits = data.load("mnist-subset")
    x, y = pixels_of(digits, 7)
    assert torch.equal(x, digits.test.images[:7] / 255)
    assert torch.equal(y, digits.test.labels[:7])
    assert len(pixels_of(digits, 10**6)[0]) == 1000


def test_another_precision_is_that_of_the_layers_alone():
    model, (x, _) = trained(), digits(4)
    with torch.no_grad():
        exact, rounded = model(x), InPrecision(model, torch.bfloat16)(x)
    assert rounded.dtype == torch.bfloat16
    assert torch.allclose(exact, rounded.float(), atol=0.3)
    assert not torch.equal(exact, rounded.float())
    assert next(model.parameters()).dtype == torch.float32


def test_float32_is_put_back():
    before = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    try:
        with true_float32():
            assert torch.backends.cudnn.allow_tf32 is False
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.backends.cudnn.allow_tf32 is before


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def curves():
    """Two networks under two attacks."""
    pytest.importorskip("matplotlib")
    made = [Curve(name, GRID, tuple(outcome(*[1] * (7 - i), *[0] * i) for i in range(7))) for name in ("FGSM", "PGD")]
    return {"one": made, "other": made[::-1]}


def test_a_picture_is_the_same_each_time(curves, tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(curves, tmp_path / "new" / name, images=7)
    first, second = ((tmp_path / "new" / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert ElementTree.fromstring(first).tag.endswith("svg")
    one = {"one": curves["one"]}
    draw(one, tmp_path / "one.png", images=7, norm="l2")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_ten_networks_have_lines_of_their_own(curves):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    panel(axes, [(str(at), curves["one"][0]) for at in range(10)], "linf")
    lines = [each.lines[0] for each in axes.containers]
    assert len({each.get_color() for each in lines}) == len({each.get_marker() for each in lines}) == 10


def test_a_picture_of_another_kind_is_refused(curves, tmp_path):
    with pytest.raises(ValueError, match=r"one of \.svg, \.png, \.pdf, got 'a\.gif'"):
        draw(curves, tmp_path / "a.gif", images=7)


def test_a_picture_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.svg is not drawn: there is no network of which all attacks could be made"):
        draw({}, tmp_path / "a.svg", images=7)


def test_settings_of_a_trial_are_plain_json():
    assert json.loads(json.dumps(PGD.settings())) == {
        "eps": EPS, "norm": "linf", "step": EPS / 4, "steps": 6, "restarts": 1, "seed": 3,
    }  # fmt: skip
