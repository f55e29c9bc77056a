"""Learning rates: fixed steps, plateau, cosine, warm-up."""

import itertools
import json
import math

import pytest
from tiny import tiny_recipe

from dcnets.experiments.schedule import Schedule


def rates(schedule, steps):
    return [schedule.rate(step) for step in steps]


def test_steps_multiply_at_each_drop():
    schedule = Schedule(tiny_recipe(rate=1.0, drops=(10, 20)), 30)
    assert rates(schedule, (0, 9, 10, 19, 20, 29)) == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_warm_up_rises_to_the_rate():
    schedule = Schedule(tiny_recipe(rate=1.0, warmup=4, drops=()), 30)
    assert rates(schedule, range(5)) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_cosine_falls_from_the_rate_to_zero():
    schedule = Schedule(tiny_recipe(rate=2.0, schedule="cosine", warmup=10), 110)
    assert rates(schedule, (10, 60, 110)) == pytest.approx([2.0, 1.0, 0.0], abs=1e-12)
    falling = rates(schedule, range(10, 111))
    assert all(a > b for a, b in itertools.pairwise(falling))


def test_a_plateau_divides_after_patience_and_a_lower_loss_resets_it():
    schedule = Schedule(tiny_recipe(rate=1.0, schedule="plateau", patience=2), 100)
    for loss, rate in ((1.0, 1.0), (1.1, 1.0), (0.9, 1.0), (0.95, 1.0), (0.9, 0.1), (0.91, 0.1), (0.9, 0.01)):
        schedule.observe(loss)
        assert schedule.rate(50) == pytest.approx(rate), loss


def test_its_state_survives_json():
    recipe = tiny_recipe(schedule="plateau", patience=3)
    first = Schedule(recipe, 100)
    again = Schedule(recipe, 100)
    again.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert again.best == math.inf
    for loss in (1.0, 2.0, 2.0):
        first.observe(loss)
    again.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    for schedule in (first, again):
        schedule.observe(2.0)
    assert again.rate(5) == first.rate(5) == pytest.approx(recipe.rate * recipe.factor)
