"""The tables of a study from made-up lines: each number where it belongs, beside the paper's."""

import pytest
from studied import exam, line

from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.ranks import rank_correlation, ranks
from dcnets.experiments.robustness.curves import GRID
from dcnets.experiments.robustness.evidence import AUTO, RESTARTED, SQUARE
from dcnets.experiments.robustness.setting import GRID as SETTINGS
from dcnets.experiments.robustness.setting import MAIN, Setting
from dcnets.experiments.robustness.study import markdown
from dcnets.experiments.robustness.study.collected import collect, spread
from dcnets.experiments.robustness.study.rows import seeds_of
from dcnets.experiments.robustness.study.slope_sections import correlated

PLAIN = "cifar10-cnn9_attack"
FROZEN = Setting(3, "5 steps of ε/5")
SUBSTITUTES = ((PLAIN, SUBSTITUTE_SEED), (f"{PLAIN}-fgsm", SUBSTITUTE_SEED))


def attacked(name, seed, fgsm, bim, part="tables", setting=MAIN, clean=0.9, **more):
    """A line with both attacks, white-box, and from each substitute 10 and 20 points higher."""
    attacks = [exam(trial, share) for trial, share in zip(setting.trials, (fgsm, bim), strict=True)]
    for at, (maker, its) in enumerate(SUBSTITUTES, 1):
        attacks += [exam(trial, share + at / 10, f"{maker}-seed{its}")
                    for trial, share in zip(setting.trials, (fgsm, bim), strict=True)]  # fmt: skip
    return line(part, name, seed, makers=SUBSTITUTES, attacks=attacks, clean=clean, **more)


def setting_line(**more):
    tried = [{"levels": each.levels, "rule": each.rule, "fgsm": 10 * each.levels, "bim": each.levels, "distance": 1.0}
             for each in SETTINGS]  # fmt: skip
    return line("setting", PLAIN, seeds=[0, 1], levels=FROZEN.levels, rule=FROZEN.rule, tried=tried,
                published=[18.82, 8.67], first=5000, images=5000, **more)  # fmt: skip


def rows(text, title):
    """The rows of the table below a heading that begins so, the first cell as key."""
    (section,) = [each for each in text.split("### ") if each.startswith(title)]
    found = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in section.splitlines() if row.startswith("|")]
    return {row[0]: row[1:] for row in found}


def test_tables_7_and_8_stand_beside_the_papers():
    lines = [
        attacked(PLAIN, 0, 0.10, 0.01), attacked(PLAIN, 1, 0.14, 0.03),
        attacked(f"{PLAIN}-tanh-cosine", 0, 0.2, 0.05, clean=0.8), attacked(f"{PLAIN}-tanh-cosine-fgsm", 0, 0.7, 0.5),
        setting_line(), attacked(PLAIN, 0, 0.19, 0.09, "frozen", FROZEN, images=5000),
    ]  # fmt: skip
    text = markdown.tables(lines)
    white = rows(text, "Table 7, white-box, ours: ε = 8/255")
    assert white["Natural, FGSM"] == ["0, 1; TanhConv: 0", "12.0 ± 2.8 (18.82)", "– (43.64)", "– (50.47)", "20.0 (52.60)"]
    assert white["Natural, BIM"][1] == "2.0 ± 1.4 (8.67)"
    assert white["Natural, no attack"][1:] == ["90.0 ± 0.0 (85.35)", "– (88.58)", "– (91.13)", "80.0 (91.45)"]
    assert white["FGSM-trained, BIM"] == ["0", "– (7.96)", "– (35.07)", "– (17.38)", "50.0 (19.86)"]
    frozen = rows(text, "Table 7, white-box, nearest to the paper's baseline: ε = 3/255, BIM: 5 steps of ε/5")
    assert frozen["Natural, FGSM"][1] == "19.0 (18.82)"
    natural = rows(text, "Table 8, black-box, from a natural baseline of another seed, ours")
    assert natural["Natural, FGSM"][1:] == ["22.0 ± 2.8 (50.90)", "– (56.71)", "– (49.50)", "30.0 (50.61)"]
    assert natural["FGSM-trained, BIM"][4] == "60.0 (82.47)"
    adversarial = rows(text, "Table 8, black-box, from an FGSM-trained baseline of another seed, ours")
    assert adversarial["FGSM-trained, BIM"][4] == "70.0 (82.47)"
    assert text.count("on the first 10,000 test images") == 3  # white-box, and from either substitute
    assert text.count("on the first 5,000 test images") == 3
    assert "Schedules" not in text


def test_how_the_setting_was_found():
    text = markdown.tables([setting_line(), attacked(PLAIN, 0, 0.1, 0.1)])
    assert "(seeds 0, 1) on test images 5,000 to 9,999" in text
    assert "nearest is ε = 3/255 with 5 steps of ε/5" in text
    found = rows(text, "The setting")
    assert found["accuracy in %"][0] == "ε = 1/255"
    assert found["FGSM"][:3] == ["10.0", "15.0", "20.0"]
    assert found["BIM, 2 steps of ε/2"][-1] == "16.0"


def test_pgd_trained_networks_and_variants_stand_side_by_side():
    lines = [
        attacked(f"{PLAIN}-pgd", 0, 0.5, 0.45), attacked(f"{PLAIN}-sphere-cosine-pgd", 0, 0.52, 0.46),
        attacked(f"{PLAIN}-no_bn", 0, 0.3, 0.2), attacked(f"{PLAIN}-tanh-cosine-absolute-fgsm", 0, 0.6, 0.1),
    ]  # fmt: skip
    text = markdown.tables(lines)
    pgd = rows(text, "PGD-trained networks, white-box, ours")
    assert pgd["PGD-trained, BIM"] == ["0", "45.0", "46.0", "–", "–"]
    variants = rows(text, "Variants, white-box, ours")
    assert variants["Natural without batch norm, FGSM"] == ["0", "30.0", "–", "–", "–"]
    assert variants["FGSM-trained absolute radius, BIM"] == ["0", "–", "–", "–", "10.0"]
    assert "Natural without augmentation, FGSM" not in variants


def masked(name, seed, robust, verdict):
    found = {
        "verdict": verdict,
        "clean": 0.8,
        "robust": robust,
        "plan": {},
        "attacks": {RESTARTED: robust + 0.1, SQUARE: 0.5, AUTO: robust},
    }
    return line("masking", name, seed, images=1000, masking=found)


def test_todays_attacks_and_verdicts():
    lines = [masked(f"{PLAIN}-pgd", 0, 0.3, "robust"), masked(f"{PLAIN}-pgd", 1, 0.5, "robust"),
             masked(f"{PLAIN}-ball-cosine-no_bn", 0, 0.0, "not robust")]  # fmt: skip
    text = markdown.tables([*lines, masked(f"{PLAIN}-pgd", 2, 0.4, "masked")])
    assert rows(text, "Today's attacks")["Baseline"][1] == "0, 1, 2"
    assert rows(text, "Verdicts")["Baseline"] == ["PGD-trained", "0, 1: robust; 2: masked"]
    text = markdown.tables(lines)
    found = rows(text, "Today's attacks: PGD, ε = 8/255, 50 steps of 2/255; Square; AutoAttack")
    assert found["Baseline"] == ["PGD-trained", "0, 1", "80.0 ± 0.0", "–", "–", "–", "50.0 ± 14.1", "50.0 ± 0.0",
                                 "40.0 ± 14.1", "40.0 ± 14.1"]  # fmt: skip
    assert found["BallConv"][:3] == ["natural, without batch norm", "0", "80.0"]
    said = rows(text, "Verdicts")
    assert said == {"network": ["training", "verdict, by seeds"], "---": ["---", "---"],
                    "Baseline": ["PGD-trained", "0, 1: robust"],
                    "BallConv": ["natural, without batch norm", "0: not robust"]}  # fmt: skip
    assert text.count("the first 1,000 test images") == 2


def test_the_transfer_matrix_has_a_row_for_each_maker():
    names, lines = (PLAIN, f"{PLAIN}-tanh-cosine"), []
    for seed in (0, 1):
        for at, victim in enumerate(names):
            makers = tuple((maker, 1 - seed) for maker in names)
            attacks = [
                exam(MAIN.bim, 0.1 * (1 + at) + 0.4 * row, f"{maker}-seed{its}") for row, (maker, its) in enumerate(makers)
            ]
            lines.append(line("matrix", victim, seed, makers=makers, attacks=attacks))
    found = rows(markdown.tables(lines), "Transfer between networks, natural: BIM, ε = 8/255, 10 steps of 2/255")
    assert found["made on ↓, tried on →"] == ["seeds", "Baseline", "TanhConv"]
    assert found["Baseline"] == ["0, 1", "10.0 ± 0.0", "20.0 ± 0.0"]
    assert found["TanhConv"] == ["0, 1", "50.0 ± 0.0", "60.0 ± 0.0"]
    assert "Accuracy in % on the first 10,000 test images; seeds are those tried on" in markdown.tables(lines)
    assert "each network attacks those of another seed, itself too" in markdown.tables(lines)


def test_a_matrix_between_seeds_is_not_mixed_with_one_of_the_same_seed():
    tanh = f"{PLAIN}-tanh-cosine"
    shares = {(0, 0): 0.1, (1, 2): 0.5, (2, 1): 0.7}
    lines = [
        line("matrix", PLAIN, seed, makers=((tanh, its),), attacks=[exam(MAIN.bim, share, f"{tanh}-seed{its}")])
        for (seed, its), share in shares.items()
    ]
    own = line("matrix", tanh, 1, makers=((tanh, 2),), attacks=[exam(MAIN.bim, 0.3, f"{tanh}-seed2")])
    found = rows(markdown.tables([*lines, own]), "Transfer between networks, natural")
    assert found["TanhConv"] == ["1, 2; TanhConv: 1", "60.0 ± 14.1", "30.0"]


def test_a_matrix_of_one_seed_says_so():
    tanh = f"{PLAIN}-tanh-cosine"
    lines = [line("matrix", PLAIN, makers=((tanh, 0),), attacks=[exam(MAIN.bim, 0.1, f"{tanh}-seed0")])]
    text = markdown.tables(lines)
    assert "the networks have the same seed" in text
    assert "another seed, itself too" not in text


def curve(name, level):
    """FGSM falls from `level` by 1 % from ε to ε, BIM is a tenth of it."""
    attacks = [exam(trial.at(eps), share * (level - at / 100)) for trial, share in zip(MAIN.trials, (1, 0.1), strict=True)
               for at, eps in enumerate(GRID[1:])]  # fmt: skip
    return line("curves", name, attacks=attacks, images=1000, clean=0.95)


def steep(name, constant, **of):
    numbers = {"q50": constant}
    found = {"constant": numbers, "slope": {"q50": constant / 2}, "reach": {"q50": 1 / constant}}
    return line("lipschitz", name, images=1000, lipschitz=found | (of or {"of": "right"}))


def test_curves_slopes_and_their_rank_correlation():
    names = [PLAIN, f"{PLAIN}-sphere-cosine", f"{PLAIN}-ball-cosine"]
    lines = [made for at, name in enumerate(names) for made in (curve(name, 0.9 - at / 10), steep(name, 100.0 + at))]
    text = markdown.tables(lines)
    assert rows(text, "Accuracy over ε: FGSM")["SphereConv"] == [
        "natural", "0", "95.0", "80.0", "79.0", "78.0", "77.0", "76.0", "75.0",
    ]  # fmt: skip
    assert rows(text, "Accuracy over ε: BIM, 10 steps of ε/4")["BallConv"][3:5] == ["7.0", "6.9"]
    assert text.count("% on the first 1,000 test images") == 2  # in both curves
    found = rows(text, "Lipschitz constants beside robustness")
    assert found["Baseline"] == ["natural", "0", "100", "50", "2.55", "8.9", "8.7"]
    assert "Medians over the first 1,000 test images" in text
    assert "of the images that are right as they are. Beside them the accuracy in % under BIM, on the first 1,000" in text
    assert found["constant"] == found["slope"] == ["-1.00", "-1.00"]
    assert found["margin/slope · 255"] == ["1.00", "1.00"]
    assert "over these 3 networks" in text
    assert "natural ones among them" not in text  # they are all


def test_medians_over_all_images_are_not_mixed_with_those_over_the_right_ones():
    names = [PLAIN, f"{PLAIN}-sphere-cosine", f"{PLAIN}-ball-cosine", f"{PLAIN}-tanh-cosine"]
    lines = [curve(name, 0.9 - at / 10) for at, name in enumerate(names)]
    lines += [steep(name, 100.0 + at) for at, name in enumerate(names[:3])]
    lines += [steep(name, 200.0 - at, of=None) for at, name in enumerate(names)]
    text = markdown.tables(lines)
    new, old = text.split("### Lipschitz constants beside robustness, over all images")
    assert "over these 3 networks" in new
    assert "over these 4 networks" in old
    found = rows(new, "Lipschitz constants beside robustness")
    assert (found["Baseline"][2], found["constant"]) == ("100", ["-1.00", "-1.00"])
    assert "TanhConv" not in found
    found = rows(f"### Old{old}", "Old")
    assert (found["TanhConv"][2], found["constant"]) == ("197", ["1.00", "1.00"])
    assert "of all images, those included that are wrong as they are" in old
    assert "of all images, those included" not in new


def test_a_network_that_gets_nothing_right_has_a_constant_alone():
    lines = [steep(PLAIN, 100.0), curve(PLAIN, 0.5)]
    for name in ("slope", "reach"):
        lines[0]["lipschitz"][name] = {"q50": "nan"}  # as strict JSON has it
    found = rows(markdown.tables(lines), "Lipschitz")
    assert found["Baseline"][1:4] == ["0", "100", "–"]
    assert found["constant"] == ["–", "–"]


def test_a_number_of_images_that_the_setting_was_sought_on_does_not_count():
    frozen = attacked(PLAIN, 0, 0.19, 0.09, "frozen", FROZEN, images=5000)
    title = "Table 7, white-box, nearest"
    assert rows(markdown.tables([setting_line(), frozen]), title)["Natural, FGSM"][1] == "19.0 (18.82)"
    assert title not in markdown.tables([setting_line(), attacked(PLAIN, 0, 0.1, 0.1), frozen | {"images": 5001}])


def test_seeds_that_differ_from_column_to_column_are_told():
    assert seeds_of({"one": [2, 0], "other": {0: 1.5, 2: 0.1}, "none": []}) == "0, 2"
    assert seeds_of({"one": [0, 1], "other": [0, 1], "third": [1]}) == "0, 1; third: 1"
    assert seeds_of({"none": []}) == "–"


def test_slopes_of_natural_networks_are_also_compared_among_themselves():
    constants = {PLAIN: 100.0, f"{PLAIN}-sphere-cosine": 101.0, f"{PLAIN}-ball-cosine": 102.0, f"{PLAIN}-fgsm": 1.0}
    lines = [curve(name, 0.6 + at / 10) for at, name in enumerate(constants)]
    lines += [steep(name, constant) for name, constant in constants.items()]
    every, natural = markdown.tables(lines).split("over the 3 natural ones among them")
    assert "over these 4 networks" in every
    assert rows(every, "Lipschitz")["constant"] == ["-0.20", "-0.20"]
    assert rows(f"### Natural{natural}", "Natural")["constant"] == ["1.00", "1.00"]


def test_the_last_of_equal_lines_counts_and_scales_do_not_mix():
    old, new = attacked(PLAIN, 0, 0.1, 0.1), attacked(PLAIN, 0, 0.3, 0.1)
    short = attacked(PLAIN, 1, 0.9, 0.9, scale=0.25)
    assert rows(markdown.tables([old, new, short]), "Table 7")["Natural, FGSM"][1] == "30.0 (18.82)"
    text = markdown.tables([old, new, short], 0.25)
    assert text.startswith("Schedules × 0.25: shorter than the recipes'.")
    assert rows(text, "Table 7")["Natural, FGSM"][1] == "90.0 (18.82)"
    assert (collect([short, short, new]).scale, collect([short]).scale) == (1, 0.25)
    with pytest.raises(ValueError, match="no lines of a study; dcnets study FOLDER makes them"):
        markdown.tables([])


def test_spreads_and_ranks():
    assert (spread([]), spread([3.04]), spread([1.0, 3.0])) == ("–", "3.0", "2.0 ± 1.4")
    assert ranks([5, 1, 5, 9]) == [2.5, 1, 2.5, 4]
    assert rank_correlation([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(0.8)
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None
    assert rank_correlation([1, 2], [1, 2]) is None
    assert (correlated([1, 2, 3], [1, 3, 2]), correlated([1, 2], [1, 2])) == ("0.50", "–")
    assert correlated(range(14), [10, 6, 7, 2, 12, 9, 0, 1, 4, 5, 11, 13, 8, 3]) == "0.00"  # -0.0022, without its sign
