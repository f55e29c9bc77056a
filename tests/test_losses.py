"""Weight-normalised softmax and the margin heads, each against its published formula in plain Python."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import EXACT, HALF, SCALE, error
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import dcnets
from dcnets.losses import NormalisedClassifier, normalised_softmax_loss, softmax_loss
from dcnets.margins import MARGINS, Margin, MarginHead, margin, sphereface_annealing


def a_softmax(theta, m):
    k = next(k for k in range(m) if theta <= (k + 1) * math.pi / m)
    return (-1) ** k * math.cos(m * theta) - 2 * k


PUBLISHED = {
    "sphereface": a_softmax,
    "cosface": lambda theta, m: math.cos(theta) - m,
    "arcface": lambda theta, m: math.cos(theta + m) if theta + m < math.pi else math.cos(theta) - m * math.sin(m),
    "arcface_easy": lambda theta, m: math.cos(theta + m) if theta < math.pi / 2 else math.cos(theta),
}
NAMES = sorted(PUBLISHED)
NO_MARGIN = {"sphereface": 1, "cosface": 0, "arcface": 0, "arcface_easy": 0}
SOME = [
    *[("sphereface", m) for m in (1, 2, 3, 4, 5, 8)],
    *[("cosface", m) for m in (0.0, 0.1, 0.35, 1.5)],
    *[(name, m) for name in ("arcface", "arcface_easy") for m in (0.0, 0.1, 0.5, 1.2, math.pi / 2)],
]
THETA = torch.linspace(0.001, math.pi - 0.001, 1000, dtype=torch.float64)
SAMPLES, FEATURES, CLASSES = 6, 5, 4


def scalar_logits(x, weight, targets, name, m, scale, eps=1e-4, annealing=0.0):
    """The published logits, one number at a time."""
    rows = []
    for features, target in zip(x.tolist(), targets.tolist(), strict=True):
        n = math.sqrt(sum(v * v for v in features) + eps)
        row = []
        for label, filter_ in enumerate(weight.tolist()):
            norm = math.sqrt(sum(v * v for v in filter_) + eps)
            cos = sum(v * w for v, w in zip(features, filter_, strict=True)) / norm / n
            g = cos if label != target else (annealing * cos + PUBLISHED[name](math.acos(cos), m)) / (1 + annealing)
            row.append(g * scale * (n if name == "sphereface" else 1))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def a_batch(dtype=torch.float64, samples=SAMPLES):
    return torch.randn(samples, FEATURES, dtype=dtype), torch.arange(samples) % CLASSES


def a_head(name, dtype=torch.float64, **options):
    return MarginHead(FEATURES, CLASSES, name, dtype=dtype, **options)


# -- the margins -----------------------------------------------------------------------------------------------------


def test_every_registered_margin_has_its_published_formula_here():
    assert set(MARGINS) == set(PUBLISHED)


@pytest.mark.parametrize(("name", "m"), SOME)
def test_a_margin_is_its_published_formula(name, m):
    found = MARGINS[name].function(THETA.cos(), m)
    assert found.tolist() == pytest.approx([PUBLISHED[name](theta, m) for theta in THETA.tolist()], abs=1e-11)


@pytest.mark.parametrize(
    ("name", "m", "degrees", "value"),
    [
        ("sphereface", 4, 0, 1.0),
        ("sphereface", 4, 45, -1.0),
        ("sphereface", 4, 60, -1.5),
        ("sphereface", 4, 90, -3.0),
        ("sphereface", 4, 180, -7.0),
        ("sphereface", 3, 180, -5.0),
        ("cosface", 0.35, 60, 0.15),
        ("arcface", math.pi / 6, 60, 0.0),
        ("arcface", math.pi / 6, 170, math.cos(math.radians(170)) - math.pi / 12),
        ("arcface_easy", math.pi / 6, 60, 0.0),
        ("arcface_easy", math.pi / 6, 120, -0.5),
    ],
)
def test_a_margin_has_the_values_worked_out_by_hand(name, m, degrees, value):
    c = torch.tensor(math.cos(math.radians(degrees)), dtype=torch.float64)
    assert MARGINS[name].function(c, m).item() == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "m", "magnitude", "scale"),
    [
        ("sphereface", 4, "linear", 1.0),
        ("cosface", 0.35, "sphere", 64.0),
        ("arcface", 0.5, "sphere", 64.0),
        ("arcface_easy", 0.5, "sphere", 64.0),
    ],
)
def test_the_defaults_are_the_papers(name, m, magnitude, scale):
    head = a_head(name)
    assert (head.m, head.operator.magnitude, head.operator.angular, head.scale) == (m, magnitude, "cosine", scale)


@pytest.mark.parametrize("name", NAMES)
@given(theta=st.floats(0, math.pi), strength=st.floats(0, 1))
def test_a_margin_makes_the_target_smaller_never_larger(name, theta, strength):
    m = 1 + round(7 * strength) if name == "sphereface" else strength * math.pi / 2
    c = torch.tensor(math.cos(theta), dtype=torch.float64)
    assert MARGINS[name].function(c, m) <= c + 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_a_margin_bites_where_a_sample_is_on_its_own_side(name):
    c = torch.linspace(0.05, 0.99, 50, dtype=torch.float64)
    assert (MARGINS[name].function(c, MARGINS[name].m) < c - 1e-3).all()


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8])
def test_psi_is_continuous_and_falls_with_the_angle_as_its_slope_does_without_jumps(m):
    theta = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    c = theta.cos().requires_grad_()
    psi = MARGINS["sphereface"].function(c, m)
    (slope,) = torch.autograd.grad(psi.sum(), c)
    step = math.pi / 20000
    assert (psi.diff() <= 1e-12).all()
    assert psi.diff().abs().max() <= m * step  # |dψ/dθ| ≤ m
    assert (slope * theta.sin()).diff().abs().max() <= m * m * step * 1.01  # |d²ψ/dθ²| ≤ m²


@pytest.mark.parametrize("m", [0.1, 0.5, 1.2])
def test_arcface_falls_with_the_angle_and_has_its_published_step_at_pi_minus_m(m):
    theta = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    g = MARGINS["arcface"].function(theta.cos(), m)
    drop, where = -g.diff().min(), g.diff().argmin()
    assert (g.diff() <= 1e-7).all()
    assert drop.item() == pytest.approx(math.cos(m) + m * math.sin(m) - 1, abs=1e-3)
    assert theta[where].item() == pytest.approx(math.pi - m, abs=1e-3)


def test_the_easy_margin_jumps_up_at_a_right_angle_so_that_it_is_not_monotone():
    c = torch.tensor([1e-9, -1e-9], dtype=torch.float64)
    before, after = MARGINS["arcface_easy"].function(c, 0.5).tolist()
    assert (before, after) == pytest.approx((-math.sin(0.5), 0.0), abs=1e-8)


# -- the heads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-4, 1e-12])
@pytest.mark.parametrize("annealing", [0.0, 5.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_head_is_its_published_formula(name, annealing, eps):
    head, (x, targets) = a_head(name, eps=eps), a_batch(samples=40)
    expected = scalar_logits(x, head.weight, targets, name, head.m, head.scale, eps, annealing)
    assert error(head(x, targets, annealing), expected) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_a_given_margin_and_scale_are_used(name):
    m = 2 if name == "sphereface" else 0.2
    head, (x, targets) = a_head(name, m=m, scale=16.0), a_batch()
    assert error(head(x, targets), scalar_logits(x, head.weight, targets, name, m, 16.0)) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_a_margin_in_a_head_lowers_the_target_logit_and_leaves_the_others(name):
    head, (x, targets) = a_head(name), a_batch(samples=100)
    own = F.one_hot(targets, CLASSES).bool()
    with_margin, plain = head(x, targets), head.eval()(x)
    assert (with_margin[own] <= plain[own] + EXACT * head.scale).all()
    assert (with_margin[own] < plain[own] - 1e-3).any()
    assert error(with_margin[~own], plain[~own]) < EXACT


@pytest.mark.parametrize("name", NAMES)
def test_a_head_without_margin_is_normalised_softmax_and_so_are_its_gradients(name):
    head, (x, targets) = a_head(name, m=NO_MARGIN[name]), a_batch()
    same = NormalisedClassifier(FEATURES, CLASSES, scale=head.scale, magnitude=head.operator.magnitude, dtype=x.dtype)
    same.load_state_dict(head.state_dict())
    found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    softmax_loss(head(found, targets), targets).backward()
    softmax_loss(same(expected), targets).backward()
    assert error(head(x, targets), same(x)) < EXACT
    assert error(found.grad, expected.grad) < 1e-11
    assert error(head.weight.grad, same.weight.grad) < 1e-11


@pytest.mark.parametrize("name", NAMES)
def test_a_head_in_training_asks_for_targets_and_in_evaluation_gives_plain_logits_without(name):
    head, (x, targets) = a_head(name), a_batch()
    with pytest.raises(ValueError, match=r"needs targets, got None; pass them, or call eval\(\)"):
        head(x)
    trained = head(x, targets)
    plain = dcnets.functional.decoupled_linear(x, head.weight, f"{head.operator.magnitude}-cosine", alpha=head.scale)
    assert error(head.eval()(x), plain) < EXACT
    assert torch.equal(head(x, targets), trained)


@pytest.mark.parametrize("name", NAMES)
def test_an_ignored_target_gets_no_margin(name):
    head, (noise, targets) = a_head(name, ignore_index=-1), a_batch()
    x = head.weight.detach()[targets] + noise / 10
    targets[::2] = -1
    logits, plain = head(x, targets), head.eval()(x)
    assert error(logits[::2], plain[::2]) < EXACT
    assert (logits[1::2] - plain[1::2]).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_features_may_have_several_batch_dimensions_or_none(name):
    head, (x, targets) = a_head(name), a_batch()
    flat = head(x, targets)
    assert error(head(x.view(2, 3, FEATURES), targets.view(2, 3)), flat.view(2, 3, CLASSES)) < EXACT
    assert error(head(x[0], targets[0]), flat[0]) < EXACT
    across = x.view(2, 3, FEATURES).transpose(0, 1), targets.view(2, 3).T
    assert error(head(*across), flat.view(2, 3, CLASSES).transpose(0, 1)) < EXACT


def test_annealing_goes_from_the_cosine_to_the_margin():
    head, (x, targets) = a_head("sphereface"), a_batch()
    full, plain = head(x, targets), head.eval()(x)
    assert error(head(x, targets, 1e9), plain) < 1e-7
    assert error(head(x, targets, torch.tensor(3.0)), (3 * plain + full) / 4) < EXACT


def test_the_schedule_of_annealing_is_the_published_one():
    assert [sphereface_annealing(step) for step in (0, 1, 100)] == pytest.approx([1000, 1000 / 1.12, 1000 / 13])
    assert sphereface_annealing(1658) > 5
    assert sphereface_annealing(1659) == sphereface_annealing(10**6) == 5
    assert sphereface_annealing(3, start=8, decay=1, power=2, least=0.1) == 0.5


def test_a_head_survives_copies_and_pickles_and_says_what_it_is():
    head, (x, targets) = a_head("sphereface", m=3), a_batch()
    for twin in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(twin(x, targets), head(x, targets))
    assert repr(head) == (
        "MarginHead(in_features=5, out_features=4, bias=False, operator=linear-cosine, margin=sphereface, m=3)"
    )


# -- the classifier and its loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-4, 1e-12])
def test_the_classifier_is_the_scaled_product_with_unit_weights(eps):
    layer, (x, _) = NormalisedClassifier(FEATURES, CLASSES, scale=3.0, eps=eps, dtype=torch.float64), a_batch()
    expected = [
        [
            3 * sum(a * b for a, b in zip(row, w, strict=True)) / math.sqrt(sum(b * b for b in w) + eps)
            for w in layer.weight.tolist()
        ]
        for row in x.tolist()
    ]
    assert error(layer(x), torch.tensor(expected, dtype=torch.float64)) < EXACT


def test_the_classifier_is_linear_cosine_of_the_framework():
    layer, (x, _) = NormalisedClassifier(FEATURES, CLASSES, dtype=torch.float64), a_batch()
    same = dcnets.DecoupledLinear(FEATURES, CLASSES, magnitude="linear", angular="cosine", dtype=torch.float64)
    same.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), same(x))
    assert layer.operator == same.operator


@pytest.mark.parametrize("factor", [1e-2, 7.0])
def test_the_length_of_a_weight_does_not_matter(factor):
    layer, (x, _) = NormalisedClassifier(FEATURES, CLASSES, eps=1e-12, dtype=torch.float64), a_batch()
    before = layer(x)
    with torch.no_grad():
        layer.weight[1] *= factor
    assert error(layer(x), before) < 1e-6


def test_a_learned_scale_is_one_number_with_a_gradient():
    layer = NormalisedClassifier(FEATURES, CLASSES, scale=2.0, learn_scale=True, dtype=torch.float64)
    x, targets = a_batch()
    assert isinstance(layer.scale, nn.Parameter)
    assert layer.scale.tolist() == [2.0]
    unit = layer(x).detach() / 2
    softmax_loss(layer(x), targets).backward()
    s = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(s * unit, targets).backward()
    assert layer.scale.grad.item() == pytest.approx(s.grad.item(), rel=1e-10)
    assert NormalisedClassifier(FEATURES, CLASSES, scale=2.0).scale == 2.0


@pytest.mark.parametrize("learn_scale", [False, True])
def test_the_checkpoint_of_a_linear_layer_loads_strictly(learn_scale):
    plain = nn.Linear(FEATURES, CLASSES, bias=False)
    for layer in (
        NormalisedClassifier(FEATURES, CLASSES, scale=5.0, learn_scale=learn_scale),
        MarginHead(FEATURES, CLASSES, scale=5.0, learn_scale=learn_scale),
    ):
        layer.load_state_dict(plain.state_dict(), strict=True)
        assert torch.equal(layer.weight, plain.weight)
        assert torch.as_tensor(layer.scale).tolist() == ([5.0] if learn_scale else 5.0)
        assert set(layer.state_dict()) == ({"weight", "alpha"} if learn_scale else {"weight"})


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_of_the_classifier(label_smoothing):
    layer, (x, targets) = NormalisedClassifier(FEATURES, CLASSES, scale=4.0, dtype=torch.float64), a_batch()
    targets[1] = -100
    expected = 0.0
    kept = [i for i in range(SAMPLES) if i != 1]
    for i in kept:
        logits = layer(x)[i].tolist()
        logs = [value - math.log(sum(map(math.exp, logits))) for value in logits]
        expected -= ((1 - label_smoothing) * logs[targets[i]] + label_smoothing * sum(logs) / CLASSES) / len(kept)
    found = normalised_softmax_loss(x, layer.weight, targets, 4.0, label_smoothing=label_smoothing)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    assert softmax_loss(layer(x), targets, label_smoothing=label_smoothing).item() == pytest.approx(expected, rel=1e-12)


def test_any_number_can_stand_for_an_ignored_target():
    (x, targets), weight = a_batch(), torch.randn(CLASSES, FEATURES, dtype=torch.float64)
    kept = targets != 2
    found = normalised_softmax_loss(x, weight, targets, ignore_index=2)
    assert found.item() == pytest.approx(normalised_softmax_loss(x[kept], weight, targets[kept]).item(), rel=1e-12)


def test_a_classifier_can_normalise_its_features_too():
    layer = NormalisedClassifier(FEATURES, CLASSES, magnitude="sphere", scale=9.0, eps=1e-12, dtype=torch.float64)
    x, _ = a_batch()
    assert error(layer(x), 9 * F.linear(F.normalize(x), F.normalize(layer.weight))) < 1e-9


# -- numbers at the edge ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-4, 1e-12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("name", [*NAMES, None])
def test_logits_and_gradients_are_finite_at_angles_0_and_pi_and_for_zeros(name, size, eps, dtype):
    layer = a_head(name, dtype, eps=eps) if name else NormalisedClassifier(FEATURES, CLASSES, eps=eps, dtype=dtype)
    with torch.no_grad():
        layer.weight.mul_(100)
        layer.weight[3] = 0
        unit = F.normalize(layer.weight)
    x = torch.cat([size * unit, -size * unit, torch.zeros(2, FEATURES, dtype=dtype), size * unit[:1]]).requires_grad_()
    targets = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 3, 3])
    logits = layer(x, targets) if name else layer(x)
    softmax_loss(logits, targets).backward()
    for t in (logits, x.grad, layer.weight.grad):
        assert t.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_is_as_exact_as_its_cosine_allows(name):
    head, (x, targets) = a_head(name), a_batch(samples=200)
    single = copy.deepcopy(head).float()
    assert error(single(x.float(), targets), head(x, targets)) < SCALE


@pytest.mark.parametrize("name", [*NAMES, None])
def test_autocast_leaves_the_logits_in_float32(name):
    layer = a_head(name, torch.float32) if name else NormalisedClassifier(FEATURES, CLASSES)
    x, targets = a_batch(torch.float32)
    given = (x, targets) if name else (x,)
    with torch.autocast("cpu", torch.bfloat16):
        logits = layer(*given)
        loss = softmax_loss(logits, targets)
        from_half = layer(x.bfloat16(), *given[1:])
    assert logits.dtype == loss.dtype == from_half.dtype == torch.float32
    assert torch.equal(logits, layer(*given))
    assert torch.equal(from_half, layer(x.bfloat16().float(), *given[1:]))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [*NAMES, None])
def test_a_half_precision_layer_computes_in_float32_and_has_half_gradients(name, dtype):
    layer = a_head(name, dtype) if name else NormalisedClassifier(FEATURES, CLASSES, dtype=dtype)
    x, targets = a_batch(dtype)
    given = (x, targets) if name else (x,)
    logits = layer(*given)
    softmax_loss(logits, targets).backward()
    assert torch.equal(logits, copy.deepcopy(layer).float()(x.float(), *given[1:]))
    assert layer.weight.grad.dtype == dtype
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left", ["nobody", "only ignored"])
def test_a_batch_without_targets_that_count_has_loss_0_and_no_gradient(name, left):
    head = a_head(name, learn_scale=True)
    x, targets = (torch.empty(0, FEATURES).double(), torch.empty(0).long()) if left == "nobody" else a_batch()
    targets[:] = -100
    loss = softmax_loss(head(x.requires_grad_(), targets), targets, label_smoothing=0.1)
    loss.backward()
    assert loss.item() == 0
    for t in (x, head.weight, head.scale):
        assert t.grad.abs().sum() == 0


@pytest.mark.parametrize("shape", [(0, FEATURES), (2, 0, FEATURES)])
def test_an_empty_batch_gives_empty_logits(shape):
    x = torch.empty(shape)
    assert NormalisedClassifier(FEATURES, CLASSES)(x).shape == (*shape[:-1], CLASSES)
    assert MarginHead(FEATURES, CLASSES)(x, torch.empty(shape[:-1]).long()).shape == (*shape[:-1], CLASSES)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_of_a_head_are_right(name):
    head, (x, targets) = a_head(name, scale=2.0), a_batch(samples=12)
    targets[2] = -100

    def logits(x, weight, alpha, annealing):
        values = {"weight": weight, "alpha": alpha}
        return torch.func.functional_call(learned, values, (x, targets, annealing))

    learned = a_head(name, scale=2.0, learn_scale=True)
    tensors = (x, head.weight.detach(), torch.tensor([2.0]).double(), torch.tensor(0.7).double())
    assert torch.autograd.gradcheck(logits, [t.requires_grad_() for t in tensors])


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_the_gradients_of_the_loss_are_right(label_smoothing):
    (x, targets), weight = a_batch(), torch.randn(CLASSES, FEATURES, dtype=torch.float64)
    targets[0] = -100
    scale = torch.tensor([1.5], dtype=torch.float64)

    def loss(x, weight, scale):
        return normalised_softmax_loss(x, weight, targets, scale, label_smoothing=label_smoothing)

    assert torch.autograd.gradcheck(loss, [t.requires_grad_() for t in (x, weight, scale)])


@pytest.mark.parametrize("name", [*NAMES, None])
def test_a_compiled_layer_and_its_loss_are_one_graph_with_the_same_numbers(name):
    layer = a_head(name) if name else NormalisedClassifier(FEATURES, CLASSES, learn_scale=True, dtype=torch.float64)
    x, targets = a_batch()
    targets[1] = -100

    def loss(x, targets):
        return softmax_loss(layer(x, targets, 0.5) if name else layer(x), targets, label_smoothing=0.1)

    expected = torch.autograd.grad(loss(x, targets), layer.weight)[0]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = compiled(x, targets)
    assert found.item() == pytest.approx(loss(x, targets).item(), rel=1e-12)
    assert error(torch.autograd.grad(found, layer.weight)[0], expected) < 1e-10


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "kind", "message"),
    [
        (torch.zeros(SAMPLES), TypeError, "targets are torch.float32, expected class numbers of an integer type; convert"),
        (torch.zeros(SAMPLES).bool(), TypeError, "targets are torch.bool, expected class numbers"),
        (torch.zeros(SAMPLES, 1).long(), ValueError, r"shape \(6, 1\), expected \(6,\): one class number for each row"),
        (torch.zeros(SAMPLES + 1).long(), ValueError, r"shape \(7,\), expected \(6,\)"),
        (torch.arange(SAMPLES), ValueError, "target 4 is no class, expected 0 to 3; number the classes from 0, or give"),
        (torch.arange(SAMPLES) - 2, ValueError, r"target -2 is no class, expected 0 to 3.* the target -100"),
    ],
)
def test_wrong_targets_are_named(targets, kind, message):
    head, (x, _) = a_head("arcface"), a_batch()
    for call in (
        lambda: head(x, targets),
        lambda: softmax_loss(head.eval()(x), targets),
        lambda: normalised_softmax_loss(x, head.weight, targets),
    ):
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_any_integer_type_is_a_target(dtype):
    head, (x, targets) = a_head("arcface"), a_batch()
    assert torch.equal(head(x, targets.to(dtype)), head(x, targets))
    assert torch.equal(softmax_loss(head(x, targets), targets.to(dtype)), softmax_loss(head(x, targets), targets))


@pytest.mark.parametrize(
    ("name", "m", "kind", "message"),
    [
        ("sphereface", 2.5, TypeError, "m of sphereface is a whole number, got 2.5; its paper has 4"),
        ("sphereface", 0, ValueError, "m of sphereface must be 1 or more, got 0"),
        ("sphereface", math.inf, TypeError, "whole number, got inf"),
        ("cosface", -0.1, ValueError, "m of cosface must be 0 or more, got -0.1; its paper has 0.35"),
        ("cosface", "a lot", TypeError, "m of cosface is a number, got 'a lot'"),
        ("cosface", math.nan, ValueError, "got nan"),
        ("arcface", 28.6, ValueError, "m of arcface must be 0 to 1.5708, got 28.6; its paper has 0.5"),
        ("arcface", True, TypeError, "m of arcface is a number, got True"),
    ],
)
def test_a_margin_that_the_formula_is_not_meant_for_is_refused(name, m, kind, message):
    with pytest.raises(kind, match=message):
        a_head(name, m=m)


def test_wrong_names_and_numbers_are_refused():
    with pytest.raises(ValueError, match="unknown margin 'arcfac'; did you mean 'arcface'"):
        a_head("arcfac")
    with pytest.raises(ValueError, match=r"unknown magnitude of a classifier 'tanh'; .*choose one of linear, sphere"):
        NormalisedClassifier(FEATURES, CLASSES, magnitude="tanh")
    with pytest.raises(ValueError, match="annealing must be 0 or more and finite, got -1"):
        a_head("sphereface")(*a_batch(), -1)
    with pytest.raises(ValueError, match="margin 'arcface' is registered already"):
        margin(m=1.0, within=(0, 1))(MARGINS["arcface"].function)


def test_a_margin_of_ones_own_works_by_its_name():
    @margin(m=0.1, within=(0, 1), scale=10.0)
    def shrunk(c, m):
        return (1 - m) * c - m

    try:
        assert isinstance(MARGINS["shrunk"], Margin)
        head, (x, targets) = a_head("shrunk"), a_batch()
        own = head(x, targets).gather(1, targets[:, None])
        plain = head.eval()(x).gather(1, targets[:, None])
        assert error(own, 0.9 * plain - 1) < EXACT
    finally:
        del MARGINS["shrunk"]


# -- do they learn? --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:1200]], y[order[:1200]], x[order[1200:]], y[order[1200:]]


def train_on(digits, head, annealed=False, epochs=20):
    """The accuracy on, and the cosines between, held-out digits and their own classes after a short training."""
    x, y, held_x, held_y = digits
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    step = 0
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            options = (y[batch], sphereface_annealing(step)) if annealed else (y[batch],)
            optimiser.zero_grad()
            softmax_loss(head(body(x[batch]), *options), y[batch]).backward()
            optimiser.step()
            step += 1
    with torch.no_grad():
        features = body.eval()(held_x)
        cosines = dcnets.functional.decoupled_linear(features, head.weight, "sphere-cosine").gather(1, held_y[:, None])
        return (head.eval()(features).argmax(1) == held_y).float().mean().item(), cosines.mean().item()


@pytest.mark.parametrize("name", ["arcface", "cosface", "sphereface"])
def test_a_head_learns_digits_and_brings_them_nearer_to_their_class_than_without_margin(digits, name):
    accuracy, cosine = train_on(digits, MarginHead(16, 10, name), annealed=name == "sphereface")
    torch.manual_seed(0)
    _, without = train_on(digits, MarginHead(16, 10, name, m=NO_MARGIN[name]))
    assert accuracy > 0.93
    assert cosine > without + 0.02


@pytest.mark.parametrize("learn_scale", [False, True])
def test_the_plain_weight_of_a_classifier_gives_its_logits(learn_scale):
    head, x = NormalisedClassifier(FEATURES, CLASSES, scale=3.0, learn_scale=learn_scale), torch.randn(7, FEATURES)
    torch.testing.assert_close(x @ head.plain_weight().t(), head(x))


def test_a_margin_head_and_its_loss_work_on_fake_tensors():
    with FakeTensorMode():
        x, targets = torch.randn(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.long)
        loss = softmax_loss(MarginHead(4, 5)(x, targets), targets)
        loss.backward()
        assert loss.shape == ()
        assert x.grad.shape == x.shape
