"""Batch norm's running statistics at the start of a run: plain means first, then torch's average with decay."""

import pytest
import torch
from tiny import StopAt, tiny_data, tiny_model, tiny_recipe, tiny_source, tiny_test
from torch import nn

from dcnets.experiments.averages import Averages
from dcnets.experiments.settings import Settings
from dcnets.experiments.signals import StoppedError
from dcnets.experiments.train import fit

QUIET = Settings(quiet=True)


def network(momentum):
    """A small one whose statistics move by so much with a batch."""
    model = tiny_model(dropout=0.0)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = momentum
    return model


def batches(count, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(32, 3, 4, 4) * 0.03 + torch.rand(3, 1, 1) for _ in range(count)]


def moments(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3))


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_first_batches_count_alike_and_later_ones_by_decay(pieces):
    norm, some = nn.BatchNorm2d(3, momentum=0.1), batches(30 * pieces)
    averages = Averages(norm, pieces)
    keep, means = 0.9**pieces, []
    for update in range(30):
        own = some[update * pieces : (update + 1) * pieces]
        with averages.over(update):
            for x in own:
                norm(x)
        seen = [moments(x) for x in own]
        shares = [0.1 * 0.9 ** (pieces - 1 - at) / (1 - keep) for at in range(pieces)]  # of the pieces, as torch weighs them
        of_update = [sum(share * each[kind] for share, each in zip(shares, seen, strict=True)) for kind in (0, 1)]
        share = max(1 / (update + 1), 1 - keep)
        means = [old + share * (new - old) for old, new in zip(means, of_update, strict=True)] if update else of_update
        torch.testing.assert_close([norm.running_mean, norm.running_var], means, rtol=1e-4, atol=2e-6)
    assert norm.num_batches_tracked == 30 * pieces


def test_a_variance_is_never_below_0():
    norm = nn.BatchNorm2d(1, momentum=1e-3)
    averages = Averages(norm)
    for update in range(3):
        with averages.over(update):
            norm(torch.randn(8, 1, 2, 2) * 1e-4)
        assert 0 <= norm.running_var.item() < 1e-3


def test_norms_of_other_kinds_are_left_alone():
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=None), nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2))
    averages = Averages(model)
    assert averages.groups == []
    with averages.over(0):
        model(torch.randn(4, 2))


def test_an_early_test_sees_the_network_as_it_is():
    digits, recipe, model = tiny_data(), tiny_recipe(iterations=120, drops=(90,), evaluate_every=15.0), network(0.001)
    outcome = fit(model, tiny_source(digits, recipe), recipe, tiny_test(digits), settings=QUIET)
    assert outcome.scores.top1 > 0.4


def test_a_run_that_goes_on_averages_as_one_that_never_stopped(tmp_path):
    digits, recipe = tiny_data(), tiny_recipe(iterations=12, drops=())
    whole, again = network(0.001), network(0.001)
    fit(whole, tiny_source(digits, recipe), recipe, settings=QUIET)
    with pytest.raises(StoppedError):
        fit(network(0.001), StopAt(tiny_source(digits, recipe), 5), recipe, folder=tmp_path, settings=QUIET)
    fit(again, tiny_source(digits, recipe), recipe, folder=tmp_path, settings=QUIET)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True))
