"""The settings of the study: the grid that is declared, and which of it is nearest to the paper's baseline."""

import pytest

from dcnets.experiments.robustness.setting import GRID, LEVELS, MAIN, RULES, Setting, distance, nearest, published


def test_the_main_setting_is_the_declared_one():
    fgsm, bim = MAIN.trials
    assert (fgsm.attack, fgsm.eps) == ("fgsm", 8 / 255)
    assert (bim.attack, bim.eps, bim.step, bim.steps) == ("bim", 8 / 255, pytest.approx(2 / 255), 10)
    assert MAIN in GRID


def test_every_setting_of_the_grid_reaches_its_eps():
    assert len(set(GRID)) == len(LEVELS) * len(RULES)
    for setting in GRID:  # a trial that stops short would have been refused
        assert setting.bim.eps == setting.fgsm.eps == pytest.approx(setting.levels / 255)
        assert setting.bim.steps * setting.bim.step >= setting.bim.eps * (1 - 1e-9)


@pytest.mark.parametrize(("levels", "steps"), [(1, 2), (4, 5), (8, 10), (16, 20)])
def test_kurakins_steps(levels, steps):
    bim = Setting(levels, "steps of 1/255, 1.25 ε of them").bim
    assert (bim.steps, bim.step) == (steps, pytest.approx(1 / 255))


def test_the_nearest_is_that_of_both_attacks():
    assert published() == (18.82, 8.67)
    assert distance(18.82 + 3, 8.67 - 4) == pytest.approx(5)
    one, two, three = GRID[:3]
    assert nearest({one: (18.8, 30.0), two: (22.0, 10.0), three: (60.0, 8.7)}) == two
    assert nearest({three: (20.0, 9.0), one: (20.0, 9.0)}) == three  # the first of equals


def test_a_setting_in_words():
    assert str(Setting(1.5, "2 steps of ε/2")) == "ε = 1.5/255, BIM: 2 steps of ε/2"
