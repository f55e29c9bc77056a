"""The attacks beside those of other packages: foolbox bit by bit, pyautoattack's Square by its success."""

import sys

import pytest
import torch
from attacked import KINDS, Wrapped, digits, network

import dcnets
from dcnets import attacks
from dcnets.attacks.norms import NORMS, Draws
from dcnets.attacks.squares import peaks

kinds = pytest.mark.parametrize("kind", KINDS)
both_norms = pytest.mark.parametrize("norm", NORMS)
both_aims = pytest.mark.parametrize("targeted", [False, True], ids=["away", "targeted"])
EPS = 0.1
STEPS = {"linf": {"eps": EPS, "step": 0.03, "steps": 5}, "l2": {"eps": 0.6, "step": 0.2, "steps": 5}}


@pytest.fixture(scope="module")
def foolbox():
    return pytest.importorskip("foolbox")


def theirs(foolbox, attack, model, x, y, eps, targeted=False):
    """What foolbox's attack itself returns for a model in evaluation mode."""
    criterion = (foolbox.criteria.TargetedMisclassification if targeted else foolbox.criteria.Misclassification)(y)
    seen = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device=x.device)
    return attack.run(seen, x, criterion, epsilon=eps)


def iterative(foolbox, name, settings, **more):
    return getattr(foolbox.attacks, name)(abs_stepsize=settings["step"], steps=settings["steps"], **more)


@kinds
@pytest.mark.parametrize("eps", [0.0, 1 / 255, 8 / 255, EPS, 0.5])
def test_fgsm_has_the_bits_of_foolbox(foolbox, kind, eps):
    model, (x, y) = network(kind), digits()
    expected = theirs(foolbox, foolbox.attacks.LinfFastGradientAttack(), model, x, y, eps)
    assert torch.equal(attacks.fgsm(network(kind), x, y, eps=eps), expected)


@kinds
@both_aims
@pytest.mark.parametrize("settings", [STEPS["linf"], {"eps": 8 / 255, "step": 2 / 255, "steps": 10}], ids=["5", "10"])
def test_bim_and_pgd_without_a_random_start_have_the_bits_of_foolbox(foolbox, kind, targeted, settings):
    model, (x, y) = network(kind), digits()
    y = (y + 1) % 10 if targeted else y
    for name, attack in (
        ("LinfBasicIterativeAttack", lambda *a, **k: attacks.bim(*a, **k)),
        ("LinfProjectedGradientDescentAttack", lambda *a, **k: attacks.pgd(*a, random_start=False, **k)),
    ):
        their = iterative(foolbox, name, settings, random_start=False)
        expected = theirs(foolbox, their, model, x, y, settings["eps"], targeted)
        assert torch.equal(attack(network(kind), x, y, targeted=targeted, **settings), expected)


@kinds
@both_aims
def test_in_l2_fgsm_and_bim_have_the_bits_of_foolbox_too(foolbox, kind, targeted):
    model, (x, y) = network(kind), digits()
    settings = STEPS["l2"]
    y = (y + 1) % 10 if targeted else y
    expected = theirs(foolbox, iterative(foolbox, "L2BasicIterativeAttack", settings), model, x, y, 0.6, targeted)
    found = attacks.bim(network(kind), x, y, norm="l2", targeted=targeted, **settings)
    assert torch.equal(found, expected)
    if not targeted:
        expected = theirs(foolbox, foolbox.attacks.L2FastGradientAttack(), model, x, y, 0.6)
        assert torch.equal(attacks.fgsm(network(kind), x, y, eps=0.6, norm="l2"), expected)


@kinds
@both_aims
@both_norms
def test_pgd_from_the_same_start_is_foolbox_s(foolbox, kind, targeted, norm):
    model, (x, y) = network(kind), digits()
    settings, short = STEPS[norm], {"linf": "Linf", "l2": "L2"}[norm]
    y = (y + 1) % 10 if targeted else y
    start = x + NORMS[norm].draw(x, settings["eps"], Draws(torch.Generator().manual_seed(3), x))
    their = iterative(foolbox, f"{short}ProjectedGradientDescentAttack", settings, random_start=True)
    their.get_random_start = lambda x0, eps: type(x0)(start)
    expected = theirs(foolbox, their, model, x, y, settings["eps"], targeted)
    generator = torch.Generator().manual_seed(3)
    found = attacks.pgd(network(kind), x, y, norm=norm, targeted=targeted, generator=generator, **settings)
    assert torch.equal(found, expected)


@both_norms
@pytest.mark.parametrize("operator", ["tanh-cosine", "segmented-square_cosine"])
def test_ten_steps_through_the_paper_s_network_have_the_bits_of_foolbox(foolbox, norm, operator):
    x, y = torch.rand(3, 3, 32, 32), torch.tensor([3, 1, 4])
    model = dcnets.calibrate(dcnets.models.create("cnn9_attack", num_classes=10, operator=operator), [x]).eval()
    settings = {"linf": {"eps": 8 / 255, "step": 2 / 255, "steps": 10}, "l2": {"eps": 0.5, "step": 0.1, "steps": 10}}[norm]
    their = iterative(foolbox, {"linf": "LinfBasicIterativeAttack", "l2": "L2BasicIterativeAttack"}[norm], settings)
    found = attacks.bim(model, x, y, norm=norm, **settings)
    assert torch.equal(found, theirs(foolbox, their, model, x, y, settings["eps"]))


def test_where_gradients_vanish_foolbox_s_l2_steps_shrink_and_ours_do_not(foolbox):
    x, y = torch.full((2, 1, 10, 10), 0.5), torch.tensor([1, 2])
    faint = Wrapped(network("plain"), lambda logits: 1e-14 * logits).eval()
    expected = theirs(foolbox, foolbox.attacks.L2FastGradientAttack(), faint, x, y, 0.6)
    found = attacks.fgsm(faint, x, y, eps=0.6, norm="l2")
    assert (expected - x).flatten(1).norm(dim=1).max() < 0.06
    assert (found - x).flatten(1).norm(dim=1).tolist() == pytest.approx([0.6, 0.6], abs=1e-6)


# -- AutoAttack -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pyautoattack():
    return pytest.importorskip("pyautoattack")


@both_norms
def test_square_is_as_strong_as_autoattack_s(pyautoattack, norm):
    (x, y), eps = digits(48), {"linf": 0.04, "l2": 0.3}[norm]
    model = network().eval()
    names = {"norm": {"linf": "Linf", "l2": "L2"}[norm], "eps": eps, "n_queries": 60, "p_init": 0.8, "device": x.device}
    counts = {"clean": 3 * attacks.fooled(model, x, y).sum(), "ours": 0, "theirs": 0}
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        ours = attacks.square(model, x, y, eps=eps, queries=60, norm=norm, generator=generator)
        theirs = pyautoattack.square.SquareAttack(model, seed=seed, verbose=False, resc_schedule=True, **names).perturb(x, y)
        counts["ours"] += attacks.fooled(model, ours, y).sum()
        counts["theirs"] += attacks.fooled(model, theirs, y).sum()
    gain = counts["theirs"] - counts["clean"]
    assert gain > 40
    assert abs(counts["ours"] - counts["theirs"]) < 0.2 * gain


@pytest.mark.parametrize("side", [3, 5, 8])
def test_peaks_are_those_of_autoattack_s_square(pyautoattack, side):
    square = pyautoattack.square.SquareAttack(network(), norm="L2", device="cpu")
    expected = square.eta(side)
    found = peaks(1, side, Draws(None, torch.zeros(1)))[0]
    assert min((found - each).abs().max() for each in (expected, expected.T)) < 1e-6


@both_norms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autoattack_fools_and_leaves_all_as_it_was(pyautoattack, norm, dtype, caplog):
    model, (x, y) = network().to(dtype), digits(8)
    torch.nn.functional.cross_entropy(model(x.to(dtype)).float(), y).backward()
    model[1].eval()
    before = [t.clone() for t in (*model.state_dict().values(), *(p.grad for p in model.parameters()))]
    modes, random = [module.training for module in model.modules()], torch.get_rng_state()
    eps = {"linf": 0.2, "l2": 2.0}[norm]
    found = attacks.autoattack(model, x, y, eps=eps, norm=norm, batch=5)
    assert attacks.fooled(model, found, y).all()
    wrong = attacks.fooled(model, x, y)
    assert torch.equal(found[wrong], x[wrong])
    assert (found - x).flatten(1).norm(dim=1, p={"linf": torch.inf, "l2": 2}[norm]).max() <= eps + 1e-6
    assert torch.equal(attacks.autoattack(model, x, y, eps=eps, norm=norm, batch=5), found)
    assert all(map(torch.equal, before, (*model.state_dict().values(), *(p.grad for p in model.parameters()))))
    assert modes == [module.training for module in model.modules()]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert not caplog.records


def test_autoattack_runs_all_its_parts_with_as_many_classes_as_there_are(pyautoattack, monkeypatch, caplog):
    reached = []
    monkeypatch.setattr(pyautoattack.square.SquareAttack, "perturb", lambda self, x, y: reached.append(len(x)) or x)
    model, (x, y) = Wrapped(network(), lambda logits: logits[:, :5]), digits(60)
    x, y = x[y < 5], y[y < 5]
    right = ~attacks.fooled(model, x, y)
    x, y = x[right][:2], y[right][:2]
    found = attacks.autoattack(model, x, y, eps=0.002)
    assert torch.equal(found, x)
    assert reached == [2]  # Square is the last, and comes after FAB's backward passes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not caplog.records


@pytest.mark.parametrize(("version", "few"), [("standard", 3), ("plus", 3), ("rand", 2)])
def test_autoattack_refuses_fewer_classes_than_its_losses_need(pyautoattack, version, few):
    x, y = digits(1)
    with pytest.raises(ValueError, match=f"needs {few + 1} classes or more, the model has {few}; use attacks.pgd"):
        attacks.autoattack(Wrapped(network(), lambda z: z[:, :few]), x, 0 * y, eps=0.1, version=version)


def test_autoattack_refuses_a_network_without_gradient(pyautoattack):
    with pytest.raises(ValueError, match=r"no gradient in x.*attacks\.square"):
        attacks.autoattack(Wrapped(network(), torch.detach), *digits(2), eps=0.1)


def test_a_debugger_s_trace_outlives_autoattack(pyautoattack):
    before, mine = sys.gettrace(), lambda *_: None
    sys.settrace(mine)
    try:
        attacks.autoattack(network(), *digits(2), eps=0.3)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


def test_autoattack_takes_images_alone(pyautoattack):
    x, y = digits()
    with pytest.raises(ValueError, match="expected images"):
        attacks.autoattack(network(), x.flatten(1), y, eps=0.1)
