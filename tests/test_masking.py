"""The masking report: each check by a network that has the fault and one that has not, and the verdict's words."""

import json
import math
import sys

import pytest
import torch
from hardened import EPS, Built, digits, faulty, trained
from torch import nn
from torch.nn import functional as F

from dcnets import attacks
from dcnets.experiments.jsonlines import plain
from dcnets.experiments.robustness import Plan, Trial, Withstood, checks, examine
from dcnets.experiments.robustness import evidence as made
from dcnets.experiments.robustness.evidence import Evidence, gather
from dcnets.experiments.robustness.findings import at_least, gap
from dcnets.experiments.robustness.looks import Looks, look
from dcnets.experiments.robustness.masking import CHECKS, MASKED, NOT_ATTACKED, NOT_ROBUST, NOT_SHOWN, reported
from dcnets.experiments.robustness.mended import Averaged, Rescaled

PGD = Trial("pgd", EPS, step=EPS / 4, steps=10)
PLAN = Plan(PGD, restarts=8, queries=400)
COUNT = 150
SILENT = "no sign of masking (not made: AutoAttack)"
"""What a verdict ends with where AutoAttack was not asked for."""


@pytest.fixture(scope="module")
def reports():
    """Reports by the names of networks, each made once."""
    (x, y), found = digits(COUNT), {}
    sound = {"natural": lambda: trained(), "decoupled": lambda: trained(decoupled=True), "hardened": lambda: trained(EPS)}

    def report(name):
        if name not in found:
            model = sound[name]() if name in sound else faulty(name)
            found[name] = examine(model, x, y, PLAN, batch=COUNT, substitutes={"other": trained(seed=1)})
        return found[name]

    return report


def finding(report, name):
    return next(each for each in report.findings if each.name == name)


# -- verdicts on networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["saturated", "rounded", "detached", "broken"])
def test_a_network_built_to_deceive_is_called_masked(reports, name):
    report = reports(name)
    assert report.verdict.startswith(f"{MASKED} (gradients, ")
    assert report.evidence.apparent.accuracy > 0.9
    assert report.robust.accuracy < 0.45


def test_a_network_whose_losing_logits_are_all_but_equal_is_called_masked(reports):
    """PGD sees then only that the right class is ahead, and not which other one is near."""
    report = reports("binary")
    assert report.verdict == f"{MASKED} (saturated loss)"
    assert report.evidence.apparent.accuracy > 0.15
    assert report.robust.accuracy <= reports("natural").evidence.apparent.accuracy + 0.02


def test_a_network_trained_by_pgd_is_cleared(reports):
    report = reports("hardened")
    robust = report.robust.accuracy
    assert report.verdict == (f"robust to L∞ ε = 0.1 for {100 * robust:.1f} % of the images as far as tried, and {SILENT}")
    assert report.signs == []
    assert 0.6 < robust < report.clean.accuracy


@pytest.mark.parametrize("name", ["natural", "decoupled"])
def test_a_network_trained_as_usual_is_not_robust_and_hides_nothing(reports, name):
    report = reports(name)
    assert report.verdict == f"{NOT_ROBUST}, and {SILENT}"
    assert report.clean.accuracy > 0.9
    assert report.robust.accuracy < 0.15


@pytest.mark.parametrize("eps", [0.05, 0.2])
@pytest.mark.parametrize("trained_at", [0.0, EPS])
def test_at_other_distances_sound_networks_show_no_signs_either(trained_at, eps):
    """A short PGD gains by restarts where about half of the images fall; that alone is no masking."""
    x, y = digits(COUNT)
    plan = Plan(Trial("pgd", eps, step=eps / 4, steps=10), restarts=4, queries=20)
    assert examine(trained(trained_at), x, y, plan, batch=COUNT).signs == []


# -- each check on networks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "name"),
    [
        ("gradients", "saturated"),
        ("gradients", "rounded"),
        ("gradients", "detached"),
        ("gradients", "broken"),
        ("random answers", "noisy"),
        ("loss along the gradient", "saturated"),
        ("loss along the gradient", "rounded"),
        ("loss along the gradient", "broken"),
        ("BIM against FGSM", "shattered"),
        ("restarts", "shattered"),
        ("saturated loss", "saturated"),
        ("saturated loss", "binary"),
        ("growing ε", "saturated"),
        ("growing ε", "rounded"),
        ("Square", "detached"),
        ("transfer", "detached"),
    ],
)
def test_a_check_sees_the_fault_and_only_the_fault(reports, check, name):
    assert finding(reports(name), check).masking is True
    for sound in ("natural", "decoupled", "hardened"):
        assert finding(reports(sound), check).masking is False


def test_what_could_not_be_made_is_told(reports):
    for name, why in (("detached", "logits have no gradient"), ("broken", "gradient in x is not finite")):
        report = reports(name)
        for check in ("BIM against FGSM", "restarts", "saturated loss", "growing ε"):
            assert finding(report, check).masking is None
            assert finding(report, check).told.startswith("not made: ")
            assert why in finding(report, check).told
        assert set(report.evidence.blocked) >= {"FGSM", "BIM", "PGD", "PGD with restarts"}
    assert finding(reports("natural"), "AutoAttack").told == "not made: it was not asked for"


class Undefined(nn.Module):
    """The usual network with NaN, in its logits or in their gradients, not at one image but near it."""

    def __init__(self, image, gradients):
        super().__init__()
        self.model, self.image, self.gradients = trained(), image, gradients

    def forward(self, x):
        logits, distance = self.model(x), (x - self.image).flatten(1).abs().amax(1, keepdim=True).detach()
        near = (distance > EPS / 5) & (distance < 2 * EPS)
        if self.gradients:
            return logits + torch.where(near, logits - logits, 1).sqrt() - (~near).float()  # adds 0
        return logits.masked_fill(near, torch.nan)


@pytest.mark.parametrize("gradients", [True, False], ids=["gradient", "logits"])
def test_an_image_that_breaks_the_network_hides_no_other(gradients):
    (x, y), plan = digits(60), Plan(PGD, restarts=2, queries=20)
    first = (trained()(x).argmax(1) == y).nonzero()[0, 0]
    broken, sound = (
        examine(model, x, y, plan, batch=25, substitutes={"other": trained(seed=1)})
        for model in (Undefined(x[first], gradients), trained())
    )
    others = torch.arange(60) != first
    for name in ("FGSM", "BIM", "PGD", "transfer from other"):
        one, two = (each.evidence.outcomes[name].survived[others] for each in (broken, sound))
        assert torch.equal(one, two)
    assert set(broken.evidence.outcomes) == set(sound.evidence.outcomes)
    assert broken.verdict == sound.verdict
    assert finding(broken, "gradients").numbers["not_finite"] == pytest.approx(gradients / broken.clean.right)


def test_a_gradient_that_breaks_far_away_or_another_package_costs_one_check(monkeypatch):
    """Within ε everything is finite; pixels that are all black have a slope without end."""
    x, y = digits(20)
    lit = 0.15 + 0.7 * x
    broken = Built(trained(), before=lambda z: z + 0 * z.clamp(min=0).sqrt())

    def fails(*_, **__):
        raise AssertionError

    monkeypatch.setattr(attacks, "autoattack", fails)
    report = examine(broken, lit, y, Plan(PGD, restarts=2, queries=5, autoattack=True), batch=20)
    assert finding(report, "growing ε").told.startswith("not made: the model's gradient in x is not finite")
    assert finding(report, "AutoAttack").told == "not made: AssertionError"
    assert finding(report, "restarts").masking is False


def test_a_missing_substitute_is_told():
    x, y = digits(20)
    report = examine(trained(), x, y, Plan(PGD, restarts=2, queries=5), batch=20)
    assert finding(report, "transfer").told == "not made: no substitute was given"


def test_gradients_of_half_the_images(reports):
    """A network that saturates for every second image."""

    def after(z):
        return torch.where((torch.arange(len(z)) % 2 == 0)[:, None], 1e4 * z, z)

    x, y = digits(40)
    right = trained()(x).argmax(1) == y
    found = gather(Built(trained(), after=after), x[right], y[right], Plan(PGD, restarts=2, queries=5), batch=40)
    half = (right.sum() + 1) // 2
    assert checks.gradients(found).numbers["zero"] == pytest.approx(half.item() / right.sum().item())
    assert finding(reports("natural"), "gradients").numbers["zero"] == 0
    # digits are black at the rim, where strides leave pixels out
    assert 0 < finding(reports("natural"), "gradients").numbers["zero_components"] < 1


def test_autoattack_against_pgd():
    pytest.importorskip("pyautoattack")
    (x, y), plan = digits(24), Plan(PGD, restarts=2, queries=5, autoattack=True)
    fault, sound, missing = (
        checks.autoattack(gather(model, x, y, plan, batch=24))
        for model in (faulty("saturated"), trained(), faulty("detached"))
    )
    assert fault.masking is True
    assert fault.numbers["gap"] > 0.5
    assert sound.masking is False
    assert missing.told == "not made: the logits have no gradient in the image"


def test_autoattack_that_cannot_run_is_told(monkeypatch):
    (x, y), plan = digits(24), Plan(PGD, restarts=2, queries=5, autoattack=True)
    few = gather(Built(trained(), after=lambda z: z[:, :3]), x[y < 3], y[y < 3], plan, batch=24)
    assert checks.autoattack(few).told.startswith("not made: AutoAttack 'standard' needs 4 classes or more")
    assert few.classes == 3
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    found = checks.autoattack(gather(trained(), x, y, plan, batch=24))
    assert found.masking is None
    assert "pip install 'dcnets[attacks]'" in found.told


# -- the numbers behind ------------------------------------------------------------------------------------------------


def survivors(share, count=200):
    """An outcome whose first images withstand."""
    return Withstood(torch.arange(count) < round(share * count))


def test_a_gap_counts_pairs_of_outcomes():
    found = gap(Withstood(torch.tensor([1, 1, 1, 0, 0]).bool()), Withstood(torch.tensor([1, 0, 0, 1, 0]).bool()))
    assert found.value == pytest.approx(1 / 5)
    assert found.error == pytest.approx(math.sqrt(3 + 1 - 1 / 5) / 5)
    assert not found.exceeds(0.0)
    assert gap(survivors(0.5), survivors(0.4)).exceeds(0.05)
    assert not gap(survivors(0.5), survivors(0.4)).exceeds(0.1)
    assert not gap(survivors(1.0, 2), survivors(0.0, 2)).exceeds(0.0)  # of two images nothing is sure


def test_a_share_is_sure_two_errors_below():
    assert at_least(0, 100) == 0
    assert at_least(100, 100) == pytest.approx(102 / 104 - 2 * math.sqrt(102 * 2 / 104**3))
    assert at_least(3, 100) < 0.01 < at_least(6, 100)


def looks(count=200, **shares):
    """Looks at images of which shares have a property."""
    values = {name: torch.arange(count) < share * count for name, share in shares.items()}
    none = torch.zeros(count, dtype=torch.bool)
    usual = dict.fromkeys(("varies", "changes", "zero", "aimless", "short", "turned"), none)
    return Looks(**{**usual, "finite": ~none, "zero_parts": none.double(), **values})


def evidence(seen=None, blocked=(), far=(0.0,), classes=10, plan=PLAN, **outcomes):
    """Evidence of a network that is right for nine images in ten; withstood shares by attack."""
    names = {"fgsm": made.FGSM, "bim": made.BIM, "pgd": made.PGD, "restarted": made.RESTARTED, "rescaled": made.RESCALED,
             "mean": made.MEAN, "square": made.SQUARE, "transfer": f"{made.TRANSFER}other", "auto": made.AUTO}  # fmt: skip
    usual = {"fgsm": 0.6, "bim": 0.5, "pgd": 0.5, "restarted": 0.49, "rescaled": 0.52, "square": 0.6, "transfer": 0.7}
    found = {names[name]: survivors(share) for name, share in (usual | outcomes).items() if names[name] not in blocked}
    grown = {float(eps): survivors(share) for eps, share in enumerate(far, 1)}
    return Evidence(
        plan, classes, survivors(0.9), looks() if seen is None else seen, found, dict.fromkeys(blocked, "why"), grown
    )


@pytest.mark.parametrize(
    ("name", "fault", "sound"),
    [
        ("gradients", {"seen": looks(zero=0.04)}, {"seen": looks(zero=0.015)}),
        ("gradients", {"seen": looks(finite=0.9)}, {"seen": looks(finite=1.0)}),
        ("random answers", {"seen": looks(varies=1.0, changes=0.05)}, {"seen": looks(varies=1.0, changes=0.01)}),
        ("random answers", {"seen": looks(varies=1.0), "mean": 0.4}, {"seen": looks(varies=1.0), "mean": 0.46}),
        ("loss along the gradient", {"seen": looks(aimless=0.2)}, {"seen": looks(aimless=0.11, short=1.0, turned=1.0)}),
        ("BIM against FGSM", {"bim": 0.64}, {"bim": 0.605}),
        ("restarts", {"restarted": 0.43}, {"restarted": 0.46}),
        ("saturated loss", {"rescaled": 0.35}, {"rescaled": 0.42}),
        ("growing ε", {"far": (0.3, 0.12)}, {"far": (0.5, 0.06)}),
        ("Square", {"square": 0.44}, {"square": 0.48}),
        ("transfer", {"transfer": 0.44}, {"transfer": 0.48}),
        ("AutoAttack", {"auto": 0.35}, {"auto": 0.42}),
    ],
)
def test_the_threshold_of_each_check(name, fault, sound):
    for given, masking in ((fault, True), (sound, False)):
        report = reported(evidence(**given))
        assert finding(report, name).masking is masking
        assert report.signs == ([name] if masking else [])


def test_every_check_says_when_it_speaks():
    assert [each.name for each in reported(evidence()).findings] == list(CHECKS) == list(checks.RULES)
    assert all(check.__doc__ == f"Masking: {checks.RULES[name]}" for name, check in CHECKS.items())


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({}, f"robust to L∞ ε = 0.1 for 49.0 % of the images as far as tried, and {SILENT}"),
        ({"auto": 0.48}, "robust to L∞ ε = 0.1 for 48.0 % of the images as far as tried, and no sign of masking"),
        (
            {"blocked": (f"{made.TRANSFER}other",)},
            "robust to L∞ ε = 0.1 for 49.0 % of the images as far as tried, and no sign of masking (not made: transfer, "
            "AutoAttack)",
        ),
        (
            {"auto": 0.3, "blocked": (f"{made.TRANSFER}other",)},
            "robust to L∞ ε = 0.1 for 30.0 % of the images as far as tried; AutoAttack is much stronger than PGD, with no "
            "other sign of masking (not made: transfer)",
        ),
        ({"blocked": (made.FGSM,)}, f"{NOT_ATTACKED} (FGSM)"),
        ({"blocked": (made.BIM, made.PGD, made.RESTARTED), "auto": 0.3}, f"{NOT_ATTACKED} (BIM, PGD, PGD with restarts)"),
        ({"blocked": (made.BIM,), "square": 0.3}, f"{NOT_SHOWN} (Square)"),
        ({"blocked": (made.BIM,), "square": 0.05}, f"{MASKED} (Square)"),
        ({"square": 0.13}, f"{MASKED} (Square)"),
        ({"square": 0.2}, f"{MASKED} (Square)"),
        ({"square": 0.3}, f"{NOT_SHOWN} (Square)"),
        (
            {"auto": 0.3},
            "robust to L∞ ε = 0.1 for 30.0 % of the images as far as tried; AutoAttack is much stronger than PGD, with no "
            "other sign of masking",
        ),
        ({"auto": 0.3, "seen": looks(zero=0.1)}, f"{NOT_SHOWN} (gradients, AutoAttack)"),
        ({"auto": 0.13}, f"{MASKED} (AutoAttack)"),
        (
            {"pgd": 0.12, "restarted": 0.11, "bim": 0.12, "rescaled": 0.1, "fgsm": 0.2},
            f"{NOT_ROBUST}, and {SILENT}",
        ),
        (
            {"pgd": 0.12, "restarted": 0.11, "bim": 0.12, "rescaled": 0.1, "fgsm": 0.2, "seen": looks(zero=0.1)},
            f"{NOT_ROBUST} (signs of masking, which hid nothing: gradients)",
        ),
    ],
)
def test_the_verdict_follows_the_rules(given, verdict):
    assert reported(evidence(**given)).verdict == verdict


@pytest.mark.parametrize("name", ["square", "transfer", "auto", "rescaled", "restarted", "fgsm"])
def test_what_is_robust_withstands_everything_that_was_tried(name):
    assert evidence(**{name: 0.2}).robust.accuracy == 0.2


def test_a_report_in_l2_goes_as_far_as_images_in_l2_do():
    plan = Plan(Trial("pgd", 0.5, "l2", step=0.125, steps=10))
    far = plan.far(torch.zeros(3, 1, 14, 14))
    assert [trial.eps for trial in far] == [2.0, 7.0, 14.0]
    assert [trial.norm for trial in far] == ["l2"] * 3
    assert [trial.step for trial in far] == [0.5, 1.75, 3.5]  # each can go two and a half times as far as ε
    assert [trial.eps for trial in PLAN.far(torch.zeros(3, 1, 14, 14))] == [4 * EPS, 0.5, 1.0]
    assert reported(evidence(plan=plan)).verdict.startswith("robust to L2 ε = 0.5 for 49.0 %")


class Along(nn.Module):
    """Two logits, whose difference is a function of how far the pixels are above 0.5, in ε."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        d = self.function((x.mean((1, 2, 3)) - 0.5) / EPS)
        return torch.stack([torch.zeros_like(d), d], 1)


@pytest.mark.parametrize(
    ("function", "short", "turned"),
    [
        (lambda t: 4 * t, False, False),
        (lambda t: 4 * torch.sin(math.pi * t), False, True),  # back at ε
        (lambda t: 100 * t.clamp(max=1e-3), True, False),  # steep for a thousandth of the way
    ],
    ids=["straight", "hill", "kink"],
)
def test_a_look_along_the_gradient(function, short, turned):
    x, y = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.long)
    found = look(Along(function), x, y, eps=EPS, norm="linf", batch=2)
    assert found.short.tolist() == [short] * 3
    assert found.turned.tolist() == [turned] * 3


def test_what_is_robust_depends_on_the_number_of_classes():
    low = {"pgd": 0.3, "restarted": 0.3, "bim": 0.3, "fgsm": 0.4, "rescaled": 0.3}
    assert reported(evidence(**low)).verdict.startswith("robust to")
    assert reported(evidence(**low, classes=3)).verdict.startswith(NOT_ROBUST)


def test_a_report_is_a_line_of_json(reports):
    for name in ("hardened", "detached", "noisy"):
        line = json.loads(json.dumps(plain(reports(name).line())))
        assert line["verdict"] == reports(name).verdict
        assert line["robust"] == reports(name).robust.accuracy
        assert {each["name"] for each in line["findings"]} == {each.name for each in reports(name).findings}
        assert line["plan"]["trial"]["steps"] == 10


# -- mended networks, and what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [lambda z: 1e4 * z, lambda z: 1e-4 * z, lambda z: z + 50.0])
def test_a_rescaled_network_answers_alike_whatever_its_scale(after):
    model, (x, _) = trained(), digits(10)
    with torch.no_grad():
        one, much = (Rescaled(each)(x).log_softmax(1) for each in (model, Built(model, after=after)))
        assert torch.allclose(one, much, rtol=1e-4, atol=1e-4)
        assert torch.equal(one.argmax(1), model(x).argmax(1))


@pytest.mark.parametrize(
    "logits",
    [[[3.0, 1.0, 2.0], [0.0, 5.0, 0.0]], [[7.0, -2.0], [0.5, 0.6]], [[0.0, 0.0, 0.0], [4.0, 4.0, 4.0]]],
    ids=["three classes", "two classes", "all alike"],
)
def test_rescaled_logits_keep_their_order_and_a_short_lead(logits):
    given = torch.tensor(logits, requires_grad=True)
    found = Rescaled(nn.Identity())(given)
    assert Rescaled(nn.Identity())(given.double()).dtype == torch.float64
    assert torch.equal(found.sort(dim=1, stable=True).indices, given.sort(dim=1, stable=True).indices)
    first, second = found.topk(2, 1).values.T
    assert (first - second <= 1 + 1e-5).all()
    F.cross_entropy(found, given.argmax(1)).backward()
    assert given.grad.isfinite().all()
    assert (given.grad.abs().amax(1) > 0.05).all()


def test_the_mean_of_looks_is_steadier_than_a_look():
    model, x = faulty("noisy"), digits(30)[0]
    with torch.no_grad():
        spread = [
            torch.stack([net(x).log_softmax(1) for _ in range(8)]).std(0).mean() for net in (model, Averaged(model, 16))
        ]
    assert spread[1] < spread[0] / 2


def test_what_a_report_cannot_begin_with_is_refused():
    x = digits(10)[0]
    with pytest.raises(ValueError, match="begins with PGD"):
        Plan(Trial("fgsm", EPS))
    with pytest.raises(ValueError, match="restarts must be 2 or more"):
        Plan(PGD, restarts=1)
    with pytest.raises(ValueError, match="gets none of the 10 images right"):
        examine(trained(), x, (trained()(x).argmax(1) + 1) % 10, PLAN, batch=10)


def test_a_report_leaves_the_network_and_the_random_numbers_alone():
    (x, y), model = digits(10), nn.Sequential(faulty("noisy"), nn.Dropout(0.1)).train()
    before = torch.random.get_rng_state()
    examine(model, x, y, Plan(PGD, restarts=2, queries=5), batch=10)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), before)
