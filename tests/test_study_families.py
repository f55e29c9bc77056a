"""The tables of a study of several data sets and versions: none are mixed, and what is left out is told."""

import json

import pytest
from command_line import call
from studied import exam, line, recipe

from dcnets.experiments.robustness.curves import GRID
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.study import lines as study_lines
from dcnets.experiments.robustness.study import markdown
from dcnets.experiments.robustness.study.legible import illegible

PHOTOS, DIGITS = "cifar10-cnn9_attack", "mnist-features2d"


def matrix(name, maker, share):
    return line("matrix", name, makers=((maker, 1),), attacks=[exam(MAIN.bim, share, f"{maker}-seed1")])


def curve(name, level):
    attacks = [exam(trial.at(eps), level - at / 100) for trial in MAIN.trials for at, eps in enumerate(GRID[1:])]
    return line("curves", name, attacks=attacks, images=1000, clean=0.95)


def steep(name, constant):
    found = {each: {"q50": constant} for each in ("constant", "slope", "reach")}
    return line("lipschitz", name, images=1000, lipschitz=found | {"of": "right"})


def family(name, levels):
    """Three networks, whose constants rise as `levels` has their accuracies."""
    names = (name, f"{name}-sphere-cosine", f"{name}-tanh-cosine")
    several = [made for at, each in enumerate(names) for made in (curve(each, levels[at]), steep(each, 100.0 + at))]
    return [matrix(name, names[2], levels[0]), matrix(names[2], name, levels[0]), *several]


def test_data_sets_have_their_own_tables():
    photos, digits = family(PHOTOS, (0.3, 0.5, 0.7)), family(DIGITS, (0.8, 0.7, 0.6))
    text = markdown.tables([*digits, *photos])
    assert text == "\n".join(
        ["## CIFAR-10, cnn9_attack\n", markdown.tables(photos), "## MNIST, features2d\n", markdown.tables(digits)]
    )
    assert text.count("over these 3 networks") == 2
    assert [row for row in text.splitlines() if row.startswith("| constant |")] == [
        "| constant | 1.00 | 1.00 |",
        "| constant | -1.00 | -1.00 |",
    ]
    assert [row for row in text.splitlines() if row.startswith("| TanhConv | 0 | ")] == [
        "| TanhConv | 0 | 30.0 | – |", "| TanhConv | 0 | 80.0 | – |",
    ]  # fmt: skip
    assert "##" not in markdown.tables(photos).replace("###", "")


def test_each_family_has_the_scale_of_most_of_its_lines():
    text = markdown.tables([line("tables", PHOTOS, scale=0.5), curve(PHOTOS, 0.5), *family(DIGITS, (0.8, 0.7, 0.6))])
    assert "Schedules" not in text  # of as many the larger
    text = markdown.tables([*(line("tables", PHOTOS, seed, scale=0.5) for seed in range(2)), curve(DIGITS, 0.5)])
    assert text.startswith("## CIFAR-10, cnn9_attack\n\nSchedules × 0.5: shorter than the recipes'.\n")
    assert "Schedules" not in text.split("## MNIST, features2d")[1]
    text = markdown.tables([line("tables", PHOTOS, scale=0.5), curve(DIGITS, 0.5)], 0.5)
    assert text.startswith("Schedules × 0.5")  # one family alone is left
    assert "MNIST" not in text


def attacked(share, seed=0, **more):
    return line("tables", PHOTOS, seed, attacks=[exam(MAIN.fgsm, share)], **more)


def test_one_version_counts_and_the_others_are_told():
    usual = [attacked(0.1), attacked(0.2, 1)]
    alone = markdown.tables(usual)
    version = usual[0]["dcnets"]
    text = markdown.tables([*usual, attacked(0.9, 2, dcnets="0.0.9")])
    assert text == f"Left out: 1 line of dcnets 0.0.9, not {version}.\n\n{alone}"
    newer = markdown.tables([attacked(0.1), attacked(0.9, 1, dcnets="99.10.0")])
    assert newer.startswith(f"Left out: 1 line of dcnets {version}, not 99.10.0.\n")  # of as many the newest
    assert "| Natural, FGSM | 1 | 90.0 (18.82) |" in newer


LATER = {
    "unknown adversary 'awp'": attacked(0.9) | {"recipe": recipe(PHOTOS) | {"adversary": "awp"}},
    "unknown field 'sharpness'": attacked(0.9) | {"recipe": recipe(PHOTOS) | {"sharpness": 0.05}},
    "unknown attack 'apgd'": attacked(0.9) | {"attacks": [exam(MAIN.fgsm, 0.9) | {"attack": "apgd"}]},
    "unknown part 'frontier'": line("frontier", PHOTOS),
    "BIM needs step": attacked(0.9) | {"attacks": [exam(MAIN.fgsm, 0.9) | {"attack": "bim"}]},
    "it has no step": {"part": "curves", "dcnets": "0.2.0"},
    "it has no q50": steep(PHOTOS, 1.0) | {"lipschitz": {each: {} for each in ("constant", "slope", "reach")}},
    "it has no masking": line("masking", PHOTOS),
    "its recipe is 'none'": attacked(0.9) | {"recipe": "none"},
    "7 stands where names and values are expected": attacked(0.9) | {"attacks": [7]},
    "an attack is made on 'another', of which it tells nothing": attacked(0.9)
    | {"attacks": [exam(MAIN.fgsm, 0.9, "another")]},
    "unknown rule '7 steps'": line("setting", PHOTOS, seeds=[0], levels=3, rule="7 steps", tried=[], published=[1.0, 2.0]),
}


@pytest.mark.parametrize("why", LATER)
def test_a_line_that_cannot_be_read_is_told_and_nothing_else_changes(why):
    usual, later = attacked(0.1), LATER[why]
    assert illegible(usual) is None
    text = markdown.tables([later, usual, later])
    assert text == f"Left out: 2 lines that this dcnets cannot read ({why}).\n\n{markdown.tables([usual])}"
    assert study_lines.known([later]) == set()
    assert study_lines.frozen_in([later], ("cifar10", "cnn9_attack", 1.0)) is None


def test_the_command_goes_on_with_lines_of_a_later_version(tmp_path):
    file = tmp_path / "attacks.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in (attacked(0.25), *LATER.values())))
    result = call("study", "--tables", "--results", file)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Left out: 1 line that this dcnets cannot read (unknown adversary 'awp'); 1 line that")
    assert "| Natural, FGSM | 0 | 25.0 (18.82) |" in result.stdout
    with pytest.raises(ValueError, match=r"no lines of a study; dcnets study FOLDER makes them\. Left out: 1 line that"):
        markdown.tables([LATER["it has no step"]])
