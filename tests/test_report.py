"""The report: which lines count, what colour a cell has, what is said of each claim, its Markdown, page and figures."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from reported import CELLS, HISTORY, attack_line, curve_line, made, of, paper_lines, run_line

from dcnets.experiments.paper import TABLES
from dcnets.experiments.paper.beside import FC_RELU
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.ranks import rank_correlation
from dcnets.experiments.report import lowest, markdown, page, summary
from dcnets.experiments.report.cells import Collected, Standard
from dcnets.experiments.report.charts import Axis, Chart, Picture, Series, plain
from dcnets.experiments.report.collect import collect, read
from dcnets.experiments.report.figures import (
    NAMES,
    Sources,
    agreement,
    attacks,
    curves,
    networks,
    operators,
    picture,
    robustness,
)
from dcnets.experiments.report.paper_claims import CLAIMS
from dcnets.experiments.report.rule import RULE, TOLERANCE, judge, ours, runs, shortened, signed

PLAIN, SEG, TANH = "cifar100-cnn9", "cifar100-cnn9-segmented-cosine", "cifar100-cnn9-tanh-cosine"
WITH = "Cosine with ReLU"
JUDGES = {claim.key: claim for claim in CLAIMS}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def at(found, row, column=WITH, table=3):
    return found.at(table, row, column)


# -- which lines count -------------------------------------------------------------------------------------------------


def test_the_mean_and_spread_of_the_seeds():
    found = of(*(run_line(PLAIN, error, seed=seed) for seed, error in enumerate((26.0, 26.4, 27.1))), run_line(SEG, 25.0))
    result = at(found, "Baseline")
    assert result.seeds == (0, 1, 2)
    assert result.mean == pytest.approx(26.5)
    assert result.std == pytest.approx(statistics.stdev((26.0, 26.4, 27.1)))
    assert (ours(result), runs(result)) == ("26.50 ± 0.56", "3 runs, seeds 0, 1, 2")
    assert (ours(at(found, "SegConv")), runs(at(found, "SegConv"))) == ("25.00", "1 run, seed 0")
    assert (ours(at(found, "TanhConv")), runs(at(found, "TanhConv"))) == ("not run", "")
    assert found.standard == Standard("0.1.0", "bfloat16")


def test_shortened_runs_stand_apart():
    found = of(run_line(SEG, 25.0), run_line(SEG, 29.0, scale=0.25), run_line(TANH, 31.0, scale=0.5))
    assert ours(at(found, "SegConv")) == "25.00"
    assert [(each.value, each.why, each.scale) for each in at(found, "SegConv").asides] == [(29.0, "schedule × 0.25", 0.25)]
    tanh = at(found, "TanhConv")
    assert (ours(tanh), judge(tanh).colour) == ("not run", "grey")
    text = page.write(found, [])
    assert "29.00 (1 run)" not in text  # where there is a whole run, it alone stands in the cell
    assert "29.00 · cifar100-cnn9-segmented-cosine-scale_0.25, seed 0, 2026-01-02 · schedule × 0.25" in text
    assert '<small class="scaled">schedule × 0.5: 31.00 (1 run)</small>' in text


def test_shortened_numbers_are_means_each_scale_on_its_own_and_without_the_substitute():
    name = "cifar10-cnn9_attack"
    seeds = [(0, 20.0), (1, 22.0), (SUBSTITUTE_SEED, 40.0)]
    runs_ = [run_line(name, error, seed=seed, scale=scale) for scale in (0.08, 0.2) for seed, error in seeds]
    under = [attack_line(name, 10 * (seed + 1), 0, seed=seed, scale=0.08, images=2000) for seed in (0, 1)]
    found = of(*runs_, run_line(name, 90.0, seed=2, scale=0.2, precision="float32"), run_line(SEG, 25.0), attacks=under)
    clean, fgsm = (at(found, f"Natural, {row}", "Baseline", 7) for row in ("no attack", "FGSM"))
    assert list(shortened(clean)) == [f"schedule × {scale}: 79.00 ± 1.41 (2 runs)" for scale in (0.2, 0.08)]
    assert list(shortened(fgsm)) == ["schedule × 0.08: 15.00 ± 7.07 (2 runs, 2,000 images)"]
    assert list(shortened(at(of(run_line(name, 9.0), attacks=[attack_line(name, 7, 0, images=500)]), "Natural, FGSM",
                             "Baseline", 7))) == ["whole schedule: 7.00 (1 run, 500 images)"]  # fmt: skip
    text = markdown.write(found)
    assert "| not run (paper 18.82); schedule × 0.08: 15.00 ± 7.07 (2 runs, 2,000 images) |" in text
    assert "schedule × 0.2; makes images for others" in text
    shown = page.write(found, []).split('<section id="table7"')[1].split("</section>")[0]
    assert '<small class="scaled">schedule × 0.08: 15.00 ± 7.07 (2 runs, 2,000 images)</small>' in shown
    assert "<summary>11 numbers of 9 lines apart: not counted, not mixed in</summary>" in shown


def test_other_versions_arithmetics_settings_and_repeats_stand_apart():
    usual = [run_line(SEG, 25.0, seed=seed) for seed in (0, 1)]
    others = {
        "dcnets 0.0.9": run_line(SEG, 30.0, seed=2, dcnets="0.0.9"),
        "float32": run_line(SEG, 31.0, seed=3, precision="float32"),
        "rate 0.01, not 0.001": run_line(SEG, 32.0, seed=4, recipe={"rate": 0.01}),
        "processes 2, not 1": run_line(SEG, 33.0, seed=5, processes=2),
        "seed 1 again": run_line(SEG, 34.0, seed=1),
    }
    found = of(*usual, *others.values())
    result = at(found, "SegConv")
    assert (ours(result), result.seeds) == ("25.00 ± 0.00", (0, 1))
    assert {aside.why: aside.value for aside in result.asides} == {why: line["top1_error"] for why, line in others.items()}
    shown, text = page.write(found, []), markdown.write(found)
    for why, line in others.items():
        assert f"segconv/cosine_with_relu: {line['top1_error']:.2f} · " in shown
        assert f"{line['top1_error']:.2f} ({why})" in text
    assert "5 other lines stand apart" in summary.standard(found)


def test_the_standard_is_what_most_runs_have_and_the_newest_of_as_many():
    old, new = run_line(PLAIN, 27.0, dcnets="0.9.0"), run_line(SEG, 25.0, dcnets="0.10.0")
    assert of(old, new).standard == Standard("0.10.0", "bfloat16")
    assert of(old, new, run_line(TANH, 25.0, dcnets="0.9.0")).standard == Standard("0.9.0", "bfloat16")
    assert of(run_line(PLAIN, 27.0, scale=0.5)).standard is None
    assert of().standard is None
    assert "No line is a whole run" in summary.standard(of())


def test_runs_of_several_devices_are_told_with_their_numbers():
    one = of(run_line(SEG, 25.0, device="a GPU"))
    assert "in bfloat16, done on a GPU." in summary.standard(one)
    several = of(*(run_line(SEG, 25.0, seed=seed, device="a CPU" if seed == 1 else "a GPU") for seed in range(3)))
    assert "in bfloat16, 2 done on a GPU, 1 on a CPU." in summary.standard(several)


def test_a_network_that_did_not_converge():
    found = of(run_line(PLAIN, 26.0), run_line(PLAIN, "N/C", seed=1), run_line(SEG, "N/C"))
    assert ours(at(found, "Baseline")) == "26.00, 1 × N/C"
    assert (judge(at(found, "Baseline")).colour, judge(at(found, "Baseline")).words) == ("red", "1 of 2 did not converge")
    assert (ours(at(found, "SegConv")), judge(at(found, "SegConv")).words) == ("N/C", "converged in the paper, not here")
    name = "cifar100-cnn9-segmented-square_cosine-no_bn"
    column = {"row": "SegConv", "column": "Sq. Cosine", "table": 2}
    assert judge(at(of(run_line(name, "N/C")), **column)).colour == "green"
    assert judge(at(of(run_line(name, 30.0)), **column)).words == "converged here, not in the paper"


def test_both_variants_of_the_baseline_without_relu():
    found = of(run_line("cifar100-cnn9-no_relu", 38.2), run_line("cifar100-cnn9-no_relu-fc_relu", 45.1))
    assert ours(at(found, "Baseline", "Cosine without ReLU")) == "38.20"
    assert ours(found.results[FC_RELU]) == "45.10"
    for text in (markdown.write(found), page.write(found, [])):
        assert "45.10" in text
        assert FC_RELU.row in text


def test_the_ordinary_network_without_relu_is_judged_by_both_variants():
    bare, own = (3, "Baseline", "Cosine without ReLU"), (3, FC_RELU.row, "Cosine without ReLU")
    found = made({bare: 38.02, own: 34.91, (3, "Baseline", WITH): 26.75})
    down, below = (JUDGES[key].judge(found) for key in ("breaks-down", "without-relu"))
    assert down.status == "does not hold"
    assert down.told == (
        "Not 20 points above the baseline with ReLU, 26.75: with no ReLU anywhere 38.02 (+11.27), with a ReLU after the "
        "fully connected layer alone 34.91 (+8.16)."
    )
    assert below.status == "partly"
    assert below.told == (
        "7 of 7 below 38.02, the baseline with no ReLU anywhere; 6 of 7 below 34.91, the baseline with a ReLU after the "
        "fully connected layer alone: not LinearConv 36.49."
    )
    assert JUDGES["without-relu"].judge(made({bare: 38.02, own: None})).told.startswith("7 of 7 below 38.02, the baseline")
    assert JUDGES["without-relu"].judge(made({bare: 38.02, own: None})).status == "holds"
    assert JUDGES["breaks-down"].judge(made({bare: 46.01, own: 30.0})).status == "holds"  # the bar itself, in one of them
    assert JUDGES["breaks-down"].judge(made({bare: 38.02, own: None})).status == "not yet run"


def test_accuracies_under_attack():
    name, substitute = "cifar10-cnn9_attack-tanh-cosine", "cifar10-cnn9_attack"
    lines = [
        attack_line(name, 52.0, 10.0),
        attack_line(name, 54.0, 12.0, seed=1),
        attack_line(name, 1.0, 1.0, seed=2, images=500),
        attack_line(name, 3.0, 3.0, seed=3, step=7),
        attack_line(name, 50.0, 29.0, substitute=substitute),
    ]
    trained = [run_line(name, 8.5, seed=seed) for seed in range(4)] + [run_line(substitute, 9.0, seed=SUBSTITUTE_SEED)]
    found = of(*trained, attacks=lines)
    assert ours(at(found, "Natural, FGSM", "TanhConv", 7)) == "53.00 ± 1.41"
    assert ours(at(found, "Natural, BIM", "TanhConv", 7)) == "11.00 ± 1.41"
    assert ours(at(found, "Natural, no attack", "TanhConv", 7)) == "91.50 ± 0.00"
    assert ours(at(found, "Natural, BIM", "TanhConv", 8)) == "29.00"
    asides = at(found, "Natural, FGSM", "TanhConv", 7).asides
    assert [each.why for each in asides] == ["500 test images, not all", "after 7 of 20000 updates"]
    maker = of(run_line(substitute, 9.0), run_line(substitute, 30.0, seed=SUBSTITUTE_SEED))
    assert ours(at(maker, "Natural, no attack", "Baseline", 7)) == "91.00"
    assert [each.why for each in at(maker, "Natural, no attack", "Baseline", 7).asides] == ["makes images for others"]
    weaker = attack_line(name, 60.0, 20.0)
    for each in weaker["attacks"]:
        each["eps"] = 1 / 255
    assert ours(at(of(run_line(name, 8.5), attacks=[weaker]), "Natural, FGSM", "TanhConv", 7)) == "not run"


def test_attacked_networks_and_makers_are_those_of_their_lines():
    name, substitute = "cifar10-cnn9_attack-tanh-cosine", "cifar10-cnn9_attack"
    white, black = attack_line(name, 52.0, 10.0), attack_line(name, 50.0, 29.0, substitute=substitute)
    run, maker = run_line(name, 8.5), run_line(substitute, 9.0, seed=SUBSTITUTE_SEED)
    usual = [run_line(PLAIN, 26.0), run_line(SEG, 25.0), run_line(TANH, 25.0)]  # the tables are those of bfloat16

    def why(table, *lines, attacks):
        found = at(of(*usual, *lines, attacks=attacks), "Natural, FGSM", "TanhConv", table)
        assert len(found.samples) + len(found.asides) == 1
        return found.asides[0].why if found.asides else None

    assert why(7, run, attacks=[white]) is None
    assert why(8, run, maker, attacks=[black]) is None
    assert why(7, run | {"precision": "float32"}, attacks=[white]) == "trained in float32"
    assert why(7, attacks=[white]) == "trained in an arithmetic that no line tells"
    both = why(7, run, run | {"precision": "float32"}, attacks=[white])
    assert both == "trained in an arithmetic that no line tells"
    asked = [line | {"recipe": line["recipe"] | {"precision": "bf16"}} for line in (run, white)]
    assert why(7, asked[0], attacks=asked[1:]) is None  # an arithmetic that was asked for is the same
    assert "the maker’s precision 'float32', not" in why(8, run, maker | {"precision": "float32"}, attacks=[black])
    (key,) = black["makers"]
    early = black | {"makers": {key: black["makers"][key] | {"step": 7}}}
    assert why(8, run, maker, attacks=[early]) == "the maker’s updates 7, not 20000"
    other = black["makers"][key]["recipe"] | {"rate": 0.5}
    told = why(8, run, maker, attacks=[black | {"makers": {key: black["makers"][key] | {"recipe": other}}}])
    assert "the maker’s rate 0.5, not 0.001" in told


def test_a_network_that_diverged_is_not_converged_under_attack_and_never_the_best():
    name = "cifar10-cnn9_attack-tanh-cosine"
    found = of(run_line(name, "N/C"), run_line(name, 10.0, seed=1), attacks=[attack_line(name, 50.0, 10.0, seed=1)])
    result = at(found, "Natural, FGSM", "TanhConv", 7)
    assert (ours(result), judge(result).colour) == ("50.00, 1 × N/C", "red")
    assert ours(at(of(run_line(name, "N/C")), "Natural, BIM", "TanhConv", 8)) == "N/C"
    assert ours(at(of(run_line(name, 10.0)), "Natural, BIM", "TanhConv", 8)) == "not run"
    lost = JUDGES["white-box-tanh"].judge(made({(7, "Natural, FGSM", "TanhConv"): "N/C"}))
    assert lost.status == "partly"
    assert "not above all others: TanhConv under FGSM N/C against 50.47 of BallConv" in lost.told
    lost = JUDGES["white-box-tanh"].judge(made({(7, "*", "BallConv"): "N/C"}))
    assert lost.status == "holds"


def test_the_best_of_a_table_is_so_under_each_attack_and_who_stands_above_it_is_told():
    judged = JUDGES["black-box"].judge
    lost = judged(made({(8, "Natural, FGSM", "TanhConv"): 57.0}))
    assert lost.told == (
        "Above all others: SphereConv under BIM 43.10 against 36.22 of the baseline; "
        "not above all others: SphereConv under FGSM 56.71 against 57.00 of TanhConv."
    )
    beaten = {(8, f"Natural, {attack}", "TanhConv"): 90.0 for attack in ("FGSM", "BIM")}
    assert [judged(made(beaten | {(8, "*", "BallConv"): other})).status for other in (10.0, None)] == ["does not hold"] * 2
    even = {(8, "Natural, FGSM", "TanhConv"): 56.71, (8, "Natural, BIM", "Baseline"): 43.1}
    assert judged(made(even)).status == "does not hold"


def test_a_comparison_that_cannot_be_made_tells_which_network_is_missing():
    sphere = (7, "FGSM-trained, BIM", "SphereConv")
    told = JUDGES["white-box-sphere"].judge(made({(7, "FGSM-trained, BIM", "BallConv"): None})).told
    assert "Not yet run: SphereConv against BallConv under BIM." in told
    told = JUDGES["white-box-sphere"].judge(made({sphere: None})).told
    assert told == "Not yet run: SphereConv under BIM."


def history_of(*errors):
    """A history of these errors in percent."""
    return [{"step": step, "test_top1": 1 - error / 100} for step, error in enumerate(errors)]


def test_below_a_table_stands_what_each_runs_lowest_test_would_say():
    found = of(
        run_line(PLAIN, 27.0, history=history_of(26.5, 27.0)), run_line(PLAIN, 26.2, seed=1, history=history_of(30.0, 26.2)),
        run_line(SEG, 25.96, history=history_of(25.16, 25.96)), run_line(TANH, 25.05, history=history_of(25.05)),
    )  # fmt: skip
    told = lowest.told(found, TABLES["table3"])  # the paper: SegConv 24.96, TanhConv 25.15
    assert "2 of 2 decoupled cells would lie within 0.7 points of the paper’s and not 1" in told
    assert "with a mean difference of +0.05 and not +0.45; the baseline’s 26.60 would be 26.35." in told
    assert told in markdown.write(found)
    assert told in page.write(found, [])
    assert lowest.told(found, TABLES["table4"]) is None
    assert lowest.told(found, TABLES["table7"]) is None


def test_runs_without_tests_and_runs_that_diverged_have_no_lowest_test():
    assert lowest.told(of(run_line(SEG, 25.0, history=[])), TABLES["table3"]) is None
    assert lowest.told(of(run_line(SEG, 25.0, history=[{"step": 1, "loss": 1.0}])), TABLES["table3"]) is None
    lost, other = run_line(SEG, "N/C", history=history_of(90.0)), run_line(TANH, 26.0, history=history_of(25.0, 26.0))
    assert lowest.told(of(lost), TABLES["table3"]) is None
    assert "1 of 1 decoupled cell would" in lowest.told(of(lost, other), TABLES["table3"])
    assert "1 of 1 decoupled cell would lie within 0.7 points of the paper’s, as now, with" in lowest.told(
        of(run_line(TANH, 25.3, history=history_of(25.2, 25.3))), TABLES["table3"]
    )


def test_the_papers_own_numbers_agree_with_the_paper_everywhere():
    runs_, attacks = paper_lines()
    found = of(*runs_, attacks=attacks)
    judged = {cell: judge(found.results[cell]) for cell in CELLS if cell.recipe}
    assert len(judged) == 132
    assert {each.colour for each in judged.values()} == {"green"}
    assert {round(each.difference, 6) for each in judged.values() if each.difference is not None} == {0}
    assert summary.counts(found)[:2] == (132, 132)
    assert summary.statuses(found) == {"holds": 27, "partly": 1}


def test_files_folders_and_what_is_torn(tmp_path):
    line = run_line(SEG, 25.0)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({"recipe": {"name": "x"}}) + "\n{torn")
    attack = attack_line("cifar10-cnn9_attack", 1.0, 2.0)
    (tmp_path / "c.jsonl").write_text(json.dumps(attack) + "\n")
    found = read([tmp_path, tmp_path / "a.jsonl"])
    assert (found.runs, found.attacks) == ((json.loads(json.dumps(line)),), (json.loads(json.dumps(attack)),))
    assert [told.partition(" is torn")[0] for told in found.torn] == [f"{tmp_path / each}.jsonl, line 3" for each in "ab"]
    assert "line 3 is torn" in page.write(collect(found), [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no \.jsonl file; give the folder of results"):
        read([tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match="does not exist; `dcnets reproduce` writes"):
        read([tmp_path / "none.jsonl"])


def test_lines_of_no_cell_are_counted():
    found = of(run_line("mnist-subset-features2d", 1.0), run_line(SEG, 25.0), run_line(f"{SEG}-sgd", 24.0))
    assert len(found.elsewhere) == 2
    assert f"<li>{SEG}-sgd, seed 0, 2026-01-02: top-1 error 24.00</li>" in page.write(found, [])
    assert "2 more lines are of no cell" in summary.standard(found)


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "colour", "difference", "words"),
    [
        (26.01, "green", "+0.00", ""),
        (26.01 + TOLERANCE, "green", "+0.70", ""),
        (26.01 - TOLERANCE, "green", "−0.70", ""),
        (26.73, "red", "+0.72", "worse"),
        (25.29, "red", "−0.72", "better"),
    ],
)
def test_the_colour_is_that_of_the_printed_rule(error, colour, difference, words):
    judged = judge(at(of(run_line(PLAIN, error)), "Baseline"))
    assert (judged.colour, signed(judged.difference), judged.words) == (colour, difference, words)
    assert judged.mark == {"green": "✓", "red": "✗"}[colour]
    shown = page.write(of(run_line(PLAIN, error)), [])
    assert f'<span class="value {colour}" title="1 run, seed 0"><b>{error:.2f}</b> <span>{difference}' in shown
    assert f"within {TOLERANCE:g} points" in RULE
    assert RULE in shown
    assert RULE in markdown.write(of())


def test_more_accuracy_is_better():
    row = "Natural, no attack"
    found = [of(run_line("cifar10-cnn9_attack", error)) for error in (10.0, 20.0)]
    assert [judge(at(each, row, "Baseline", 7)).words for each in found] == ["better", "worse"]


# -- claims ------------------------------------------------------------------------------------------------------------

NOT_RUN = {(number, "*", "*"): None for number in range(1, 9)}
FAILS = {
    "baseline": ({(3, "Baseline", WITH): 26.72}, "does not hold"),
    "cells": ({(3, row, "*"): 40.0 for row in ("SegConv", "LogConv")}, "does not hold"),
    "mean": ({(3, "SphereConv", "*"): 33.0}, "does not hold"),
    "operators": ({(3, "Baseline", WITH): 25.0}, "does not hold"),
    "sphere": ({(3, "SphereConv", WITH): 26.42}, "does not hold"),
    "square-cosine": ({(3, "Baseline", WITH): 24.92}, "does not hold"),
    "best-without-relu": ({(3, "LinearConv", WITH): 24.0}, "partly"),
    "breaks-down": ({(3, "*", "Cosine without ReLU"): 46.0}, "does not hold"),
    "without-relu": ({(3, "Baseline", "Cosine without ReLU"): 33.0}, "partly"),
    "order-3": ({(3, "SphereConv", WITH): 20.0, (3, "LinearConv", WITH): 30.0, (3, "SegConv", WITH): 29.0}, "partly"),
    "without-bn": ({(2, "Baseline", "Cosine"): 33.0}, "partly"),
    "not-converged": ({(2, "SegConv", "Sq. Cosine"): 31.0}, "partly"),
    "resnet": ({(4, "TanhConv", "Linear"): 27.0}, "partly"),
    "order-4": ({(4, "SegConv", "*"): 30.0, (4, "BallConv", "*"): 31.0, (4, "SphereConv", "*"): 10.0}, "does not hold"),
    "convergence": ({(4, "Baseline", "Cosine"): 20.0}, "does not hold"),
    "tricks": ({(1, "Weight projection", "*"): 23.0}, "partly"),
    "weighted": ({(1, "Linearly weighted", "*"): 22.0}, "partly"),
    "state-of-the-art": ({(5, "*", "*"): 24.0}, "does not hold"),
    "imagenet": ({(6, "TanhConv", "Standard, BN"): 12.7}, "partly"),
    "imagenet-modified": ({(6, "*", "Modified, BN"): 12.1}, "does not hold"),
    "imagenet-without-bn": ({(6, "Baseline", "Modified, no BN"): 12.0}, "partly"),
    "white-box": ({(7, "Natural, FGSM", "Baseline"): 60.0, (7, "Natural, BIM", "Baseline"): 60.0}, "does not hold"),
    "white-box-tanh": ({(7, "Natural, FGSM", "BallConv"): 60.0}, "partly"),
    "white-box-trained": ({(7, "FGSM-trained, FGSM", "Baseline"): 83.0}, "partly"),
    "white-box-sphere": ({(7, "FGSM-trained, BIM", "SphereConv"): 1.0}, "does not hold"),
    "black-box": ({(8, "Natural, FGSM", "BallConv"): 60.0}, "partly"),
    "black-box-trained": ({(8, "FGSM-trained, BIM", "Baseline"): 81.0}, "partly"),
    "black-box-sphere": ({(8, "FGSM-trained, FGSM", "SphereConv"): 78.0}, "partly"),
}
"""Numbers under which each claim does not hold, or not whole, the others being the paper's."""


@pytest.mark.parametrize("key", JUDGES)
def test_each_claim_is_judged_both_ways_and_told_to_be_open(key):
    judged = JUDGES[key].judge
    assert judged(made()).status == ("partly" if key == "white-box" else "holds")  # the paper's own BallConv under BIM
    changes, status = FAILS[key]
    assert judged(made(changes)).status == status
    assert judged(made(NOT_RUN)).status == "not yet run"
    for verdict in (judged(made()), judged(made(changes)), judged(made(NOT_RUN))):
        assert re.fullmatch(r"[A-Z0-9].*\.", verdict.told)


def test_the_sentences_have_the_numbers():
    told = {key: claim.judge(made({(3, "LogConv", WITH): None})) for key, claim in JUDGES.items()}
    assert told["operators"].status == "holds"
    assert told["operators"].told == (
        "Below our baseline, 26.01: SphereConv 26.00, BallConv 25.18, TanhConv 25.15, LinearConv 24.81, SegConv 24.96, "
        "MixConv 25.27; not yet run: LogConv."
    )
    assert told["best-without-relu"].told == (
        "24.29 is below 14 of 15; the nearest is LinearConv’s 24.81 (Cosine with ReLU); 1 not yet run."
    )
    best = JUDGES["best-without-relu"]
    assert best.judge(made()).told == "24.29 is below all 15; the nearest is LinearConv’s 24.81 (Cosine with ReLU)."
    worse = best.judge(made({(3, "LogConv", WITH): 24.0})).told
    assert worse == "24.29 is below 14 of 15; the best is LogConv’s 24.00 (Cosine with ReLU)."
    assert told["baseline"].told == "26.01 beside 26.01 of the paper: +0.00."
    assert told["cells"].told == "27 of 27 cells lie within 0.7 points; 1 not yet run."
    assert told["mean"].status == "not yet run"
    assert told["order-3"].status == "holds so far"
    assert (
        "SphereConv after 20,000 of 42,500 updates" in JUDGES["convergence"].judge(made({(4, "Baseline", "*"): 31.0})).told
    )


def seeds(*errors, name="cifar100-cnn9"):
    return [run_line(name, error, seed=seed) for seed, error in enumerate(errors)]


def test_a_difference_that_seeds_alone_can_make_is_called_so():
    usual, sphere = seeds(26.0, 26.5, 27.0), "cifar100-cnn9-sphere-cosine"
    assert (
        JUDGES["operators"]
        .judge(of(*usual, *seeds(26.3, 26.3, 26.3, name=sphere)))
        .told.startswith("Below our baseline, 26.50 ± 0.50: SphereConv 26.30 ± 0.00 (may be chance); not yet run:")
    )
    surely = JUDGES["operators"].judge(of(*usual, *seeds(25.8, 25.9, 26.0, name=sphere))).told  # 0.60 and an error of 0.29
    assert "SphereConv 25.90 ± 0.10; not yet run" in surely
    assert "SphereConv 25.00; not yet run" in JUDGES["operators"].judge(of(*usual, *seeds(25.0, name=sphere))).told
    assert "SphereConv 26.20" not in JUDGES["operators"].judge(of(*usual, *seeds(26.2, "N/C", name=sphere))).told
    near = JUDGES["sphere"].judge(of(*usual, *seeds(26.2, 26.6, name=sphere)))
    assert (near.status, near.told) == ("holds", "26.40 ± 0.28 beside 26.50 ± 0.50 of our baseline: −0.10.")


def test_accuracies_under_attack_are_told_with_their_seeds():
    names = ("cifar10-cnn9_attack", "cifar10-cnn9_attack-tanh-cosine")
    lines = [run_line(name, 10.0, seed=seed) for name in names for seed in range(2)]
    attacks = [attack_line(name, 10.0 + at + seed, 1.0, seed=seed) for at, name in enumerate(names) for seed in range(2)]
    told = JUDGES["white-box"].judge(of(*lines, attacks=attacks)).told
    assert "Not above the baseline: TanhConv under FGSM 11.50 ± 0.71 against 10.50 ± 0.71 (may be chance)" in told


def under_bim(**accuracies):
    """The verdict on SphereConv, trained on FGSM's images, of the accuracies under BIM by operator, seed by seed."""
    names = {row: f"cifar10-cnn9_attack{'' if row == 'baseline' else f'-{row}-cosine'}-fgsm" for row in accuracies}
    pairs = [(names[row], seed, bim) for row, values in accuracies.items() for seed, bim in enumerate(values)]
    lines = [run_line(name, 10.0, seed=seed) for name, seed, _ in pairs]
    return JUDGES["white-box-sphere"].judge(
        of(*lines, attacks=[attack_line(name, 50.0, bim, seed=seed) for name, seed, bim in pairs])
    )


def test_the_best_of_a_table_is_so_beyond_chance():
    others = {"baseline": (1.0, 1.2), "ball": (2.0, 2.2)}
    surely = under_bim(sphere=(9.0, 9.2), tanh=(3.0, 3.2), **others)
    assert (surely.status, surely.told) == (
        "holds", "Above all others: SphereConv under BIM 9.10 ± 0.14 against 3.10 ± 0.14 of TanhConv.",
    )  # fmt: skip
    perhaps = under_bim(sphere=(9.0, 9.2), tanh=(0.0, 14.0), **others)
    assert perhaps.status == "does not hold"
    assert "9.10 ± 0.14 against 7.00 ± 9.90 of TanhConv (may be chance)" in perhaps.told
    wider = under_bim(sphere=(9.0, 9.2), tanh=(7.0, 7.2), baseline=(0.0, 13.0), ball=(2.0, 2.2))
    assert wider.status == "does not hold"
    assert "against 6.50 ± 9.19 of the baseline (may be chance)" in wider.told


def test_bars_are_met_exactly_at_their_numbers():
    below = {(3, row, WITH): 26.0 for row in TABLES["table3"].rows[1:7]} | {(3, "MixConv", WITH): 27.0}
    assert JUDGES["operators"].judge(made(below)).status == "holds"
    assert JUDGES["operators"].judge(made(below | {(3, "LogConv", WITH): 26.5})).status == "does not hold"
    assert JUDGES["operators"].judge(made(below | {(3, "LogConv", WITH): "N/C"})).status == "does not hold"
    four = {(3, row, column): 1.0 for row in ("SphereConv",) for column in TABLES["table3"].columns}
    assert JUDGES["cells"].judge(made(four)).status == "holds"
    assert JUDGES["cells"].judge(made(four | {(3, "MixConv", WITH): 1.0})).status == "does not hold"
    assert JUDGES["sphere"].judge(made({(3, "SphereConv", WITH): 25.61})).status == "holds"


def test_rank_correlation():
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)
    assert rank_correlation([1, 2, float("inf")], [1, 2, 3]) == pytest.approx(1)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


# -- Markdown and page -------------------------------------------------------------------------------------------------


def test_the_markdown_is_stable_and_has_every_number():
    lines = [run_line(PLAIN, 27.0), run_line(SEG, 25.0), run_line(SEG, 25.5, seed=1)]
    text = markdown.write(of(*lines))
    assert text == markdown.write(of(*lines))
    assert "| Baseline | not run (paper 58.24) | – | 27.00, 1 run (paper 26.01) +0.99 ✗ worse | – |" in text
    assert "| 25.25 ± 0.35, 2 runs (paper 24.96) +0.29 ✓ |" in text
    assert "not run (paper N/C)" in text
    assert all(f"### Table {number}: " in text for number in range(1, 9))
    assert all(claim.says in text for claim in CLAIMS)
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| SegConv")}
    assert widths == {5, 6}  # Tables 2 and 4, Table 3


class Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def pictures(found, folder=None):
    return [picture(name, Sources(found, folder)) for name in NAMES]


def test_the_page_needs_nothing_else():
    found = of(run_line(PLAIN, 27.0), run_line("cifar100-resnet32", 26.0))
    text = page.write(found, pictures(found))
    elements = Elements(text).found
    assert not {tag for tag, _ in elements} & {"link", "iframe", "object", "video", "base"}
    for tag, attrs in elements:
        assert "src" not in attrs or attrs["src"].startswith("data:image/png;base64,")
        assert tag != "a" or re.fullmatch(r"#[a-z0-9-]+", attrs["href"])
    targets = {attrs["href"][1:] for tag, attrs in elements if tag == "a"}
    assert targets <= {attrs.get("id") for _, attrs in elements}
    assert set(re.findall(r"https?://[^\s\"']*", text)) == {
        "http://www.w3.org/2000/svg"
    }  # the name of SVG, which is not fetched
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\(", text)
    assert len(re.findall(r"prefers-color-scheme: dark|@media print|@media \(max-width", text)) == 3
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in elements
    for number in range(1, 9):
        assert f'<section id="table{number}"' in text


def test_what_lines_say_is_no_markup():
    found = of(run_line(SEG, 25.0, seed=1), run_line(SEG, 25.0, device="<b>GPU & co</b>", dcnets="<i>"))
    chart = Chart("a", Axis("x"), Axis("y"), (Series("</script><b>", ((0.0, 1.0),)),), "alt")
    text = page.write(found, [Picture("4", "T", "told", (chart,))])
    assert "<i>" not in text
    assert "</script><b>" not in text
    data = re.search(r'<script type="application/json">(.*?)</script>', text)[1]
    assert json.loads(data) == plain(chart)


def test_what_is_missing_is_said_in_its_place(tmp_path):
    text = page.write(of(), pictures(of(), tmp_path))
    assert text.count("None of its cells is run yet") == 8
    assert "28 claims whose runs are not there yet" in text
    for told in (
        "No network of Table 3 is run yet.",
        "No network is attacked at several ε yet.",
        "for Ordinary convolution",
        "holds no run of an operator with a radius",
    ):
        assert told in text
    assert "Not yet run: Baseline, SphereConv, BallConv, TanhConv, LinearConv, SegConv, LogConv, MixConv." in text
    assert "None of its cells" not in page.write(of(run_line(SEG, 25.0)), []).split('id="table3"')[1].split("</section>")[0]


def test_the_committed_results_make_a_page():
    lines = read([Path(__file__).parent.parent / "results"])
    found = collect(lines)
    text = page.write(found, [])
    shown = [result for result in found.results.values() if result.samples]
    assert len(shown) >= 3
    assert all(f"<b>{ours(result)}</b>" in text for result in shown)
    seen = [id(each.line) for each in (*found.samples, *found.asides)] + [id(line) for line in found.elsewhere]
    assert {id(line) for line in lines.runs} <= set(seen)  # every run counts, stands apart or is of no cell


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_geometry_is_what_the_operators_compute():
    charts = {chart.title: {each.name: each.points for each in chart.series} for chart in operators.geometry().charts}
    assert list(charts) == ["SphereConv", "BallConv", "TanhConv", "LinearConv", "SegConv", "LogConv", "MixConv"]
    lengths = {
        "SphereConv": lambda n: torch.ones_like(n), "BallConv": lambda n: n.clamp(max=1), "TanhConv": torch.tanh,
        "LinearConv": lambda n: n, "SegConv": lambda n: torch.where(n < 1, n, 0.5 * n + 0.5), "LogConv": torch.log1p,
        "MixConv": lambda n: n + torch.log1p(n),
    }  # fmt: skip
    for title, series in charts.items():
        x = torch.tensor(series["x"], dtype=torch.float64)
        y = torch.tensor(series["h(‖x‖)·x/‖x‖"], dtype=torch.float64)
        n = x.norm(dim=1, keepdim=True)
        torch.testing.assert_close(y, lengths[title](n) * x / n, atol=1e-6, rtol=1e-6)
        way = torch.tensor(series["way"], dtype=torch.float64)
        assert torch.equal(way[0::2], x)
        assert torch.equal(way[1::2], y)


def test_the_functions_are_those_of_the_paper():
    h, g = operators.functions().charts
    assert [each.name for each in g.series] == ["linear", "cosine", "sigmoid", "square cosine"]
    assert len(h.series) == 7
    for series in g.series:
        assert [series.points[place][1] for place in (0, 60, 120)] == pytest.approx([1, 0, -1], abs=1e-3)
    ball = dict(h.series[1].points)
    assert max(ball.values()) == pytest.approx(1)


def test_curves_are_means_over_seeds_with_their_reach():
    other = [dict(row, test_top1=row["test_top1"] - 0.1) for row in HISTORY[1:]]
    made_of = of(run_line("cifar100-resnet32", 26.0), run_line("cifar100-resnet32", 27.0, seed=1, history=other))
    shown = curves.resnet32(made_of)
    error, loss = shown.charts
    assert error.series[0].name == "Baseline"
    assert [x for x, _ in error.series[0].points] == [20_000, 42_500]
    assert [y for _, y in error.series[0].points] == pytest.approx([31.0, 30.0])
    assert error.series[0].band[1] == pytest.approx((25.0, 35.0))
    assert (loss.y.log, error.y.log) == (True, False)
    assert "means over 1,000 updates" in shown.told
    assert "means over 1,000 updates" in curves.cnn9(made_of).told
    assert shown.missing == ("Not yet run: SphereConv, BallConv, TanhConv, LinearConv, SegConv, LogConv, MixConv.",)
    diverged = [*HISTORY[:1], {"step": 20_000, "test_top1": 0.01, "loss": "nan"}]
    (_, gap) = curves.resnet32(of(run_line("cifar100-resnet32", "N/C", history=diverged))).charts
    assert plain(gap)["series"][0]["points"] == [[10_000, 2.0], [20_000, None]]
    assert curves.cnn9(Collected(made(NOT_RUN).results)).empty
    charts = curves.cnn9(of(run_line(SEG, 25.0), run_line(PLAIN, 26.0), run_line("cifar100-cnn9-no_relu", 38.0))).charts
    shown = [(chart.title, [(each.name, each.colour) for each in chart.series]) for chart in charts]
    assert shown == [("Cosine without ReLU", [("Baseline", 0)]), (WITH, [("Baseline", 0), ("SegConv", 5)])]


def test_errors_stand_against_the_papers_and_those_far_away_in_words():
    row = {(3, "*", "*"): None, (3, "Baseline", "*"): 40.0, (3, "SegConv", "*"): 25.0, (4, "*", "*"): "N/C"}
    shown = agreement.tables(made(row))
    (chart,) = [each for each in shown.charts if each.title.startswith("Table 3")]
    assert not [each for each in shown.charts if each.title.startswith(("Table 4", "Table 7"))]
    line, *columns = chart.series
    assert [(each.name, each.points) for each in columns] == [
        (column, ((paper, 25.0),)) for column, paper in zip(TABLES["table3"].columns[1:], (24.29, 24.96, 25.04), strict=True)
    ]  # fmt: skip
    assert line.band[0][1] - line.points[0][1] == pytest.approx(0.7)
    assert "SegConv, Cosine without ReLU, 25.00 against 33.57" in shown.told
    assert agreement.tables(of()).missing == ("No table of errors has 2 cells that are run yet.",)


def test_tables_7_and_8_are_drawn_beside_the_papers():
    plain, tanh = "cifar10-cnn9_attack", "cifar10-cnn9_attack-tanh-cosine"
    short = {"scale": 0.5}
    runs = [run_line(plain, 20.0, **short), run_line(plain, 15.0, seed=1000, **short), run_line(tanh, 10.0, seed=1, **short)]
    runs += [run_line(tanh, 11.0, seed=2, **short), run_line(plain, 20.0)]
    under = [attack_line(plain, 6, 1, images=500, **short), attack_line(tanh, 8, 2, images=500, seed=1, **short)]
    assert attacks.tables(of(*runs)).missing == ("No network of Tables 7 and 8 is attacked yet.",)
    made = attacks.tables(of(*runs, attacks=[*under, attack_line(tanh, 9, 3, images=500, seed=2, **short)]))
    (chart,) = made.charts
    assert made.told.endswith(" Under attack are the first 500 test images after schedules × 0.5.")
    assert made.title == "Tables 7 and 8 beside the paper’s"
    assert chart.title.replace("\N{NO-BREAK SPACE}", " ") == "Table 7, white-box, natural, schedules × 0.5"
    found = {each.name: each for each in chart.series}
    assert found["no attack, ours"].points == ((0, 80), (3, 90), (3, 89))  # the substitute is no target
    assert found["BIM, ours"].points == ((0, 1), (3, 2), (3, 3))
    assert found["FGSM, paper"].points == ((0, 18.82), (1, 43.64), (2, 50.47), (3, 52.6))
    assert [each.kind for each in chart.series] == ["rings", "dots"] * 3
    assert "FGSM: Baseline 6, TanhConv 8.5;" in chart.alt
    whole = attacks.tables(of(*runs, attacks=[*under, attack_line(plain, 30, 20)]))
    assert [chart.title for chart in whole.charts] == ["Table 7, white-box, natural", chart.title]  # the longest first
    assert whole.charts[0].series[3].points == ((0, 30),)
    everyone = [attack_line(name, 30, 20) for name in (plain, tanh)]
    assert [chart.title for chart in attacks.tables(of(*runs, run_line(tanh, 9.0), attacks=[*under, *everyone])).charts] == [
        "Table 7, white-box, natural"
    ]  # the shorter schedule has nothing to add
    few = attacks.tables(of(*runs, attacks=[*under, attack_line(plain, 30, 20, images=700)]))
    assert few.told.endswith(
        " Under attack are the first 700 test images after whole schedules, the first 500 test images after schedules × 0.5."
    )
    assert whole.charts[0].series[1].points == ((0, 80),)
    lines, papers = paper_lines()
    assert len(attacks.tables(of(*lines, attacks=papers)).charts) == 4


def test_accuracies_over_eps_are_means_over_seeds_of_what_was_trained_alike(tmp_path):
    plain, tanh = "cifar10-cnn9_attack", "cifar10-cnn9_attack-tanh-cosine"
    lines = [
        curve_line(plain, (90, 30, 0)),
        curve_line(plain, (80, 50, 4), seed=1),
        curve_line(tanh, (91, 31, 1)),
        curve_line(f"{tanh}-fgsm", (85, 40, 20)),
        curve_line(tanh, (91, 60, 30), attack={"attack": "fgsm"}),
        curve_line(tanh, (91, 25)),  # one ε makes no curve
        attack_line(tanh, 1.0, 2.0),  # nor does a line of the tables
    ]
    file = tmp_path / "attacks.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    made = robustness.curves(collect(read([file])).attacked)
    assert [each.title for each in made.charts] == [
        "natural: FGSM", "natural: BIM, 10 steps of ε/4", "FGSM-trained: BIM, 10 steps of ε/4",
    ]  # fmt: skip
    bim = made.charts[1]
    assert {each.name: each.points for each in bim.series} == {
        "Baseline": ((0, pytest.approx(85)), (1 / 255, pytest.approx(40)), (8 / 255, pytest.approx(2))),
        "TanhConv": ((0, pytest.approx(91)), (1 / 255, pytest.approx(31)), (8 / 255, pytest.approx(1))),
    }
    assert [each.band for each in bim.series] == [tuple(map(pytest.approx, ((80, 90), (30, 50), (0, 4)))), ()]
    assert [label for _, label in bim.x.ticks] == ["0", "1", "8"]
    assert "CIFAR-10, cnn9_attack, the first 1,000 test images" in made.told
    assert made.beside == 2


def test_a_wide_grid_of_eps_has_equal_steps_and_other_data_its_own_charts():
    wide = curve_line("cifar10-cnn9_attack", (90, 30, 2, 0))
    digits = curve_line("mnist-features2d", (99, 30, 0))
    made = robustness.curves([wide, digits])
    assert [each.title.partition(",")[0] for each in made.charts] == ["CIFAR-10", "MNIST"]
    assert [place for place, _ in made.charts[0].x.ticks] == [0, 1, 2, 3]
    name = "cifar10-cnn9_attack"
    short = [curve_line(each, (80, 30, 2), scale=0.2) for each in (name, f"{name}-tanh-cosine")]
    assert [each.title.partition(", natural")[0] for each in robustness.curves([wide, *short]).charts] == [
        "CIFAR-10", "CIFAR-10, schedules × 0.2",
    ]  # fmt: skip
    assert robustness.curves([wide, short[0]]).charts == robustness.curves([wide]).charts
    assert robustness.curves([]).missing == ("No network is attacked at several ε yet.",)


def test_a_mosaic_of_filters():
    weight = torch.zeros(5, 1, 2, 2)
    weight[0, 0, 0, 0], weight[1, 0, 1, 1] = 2.0, -0.5
    pixels = networks.mosaic(weight)
    assert (len(pixels), len(pixels[0])) == (2 * 3 - 1, 4 * 3 - 1)
    assert pixels[0][0] == (255, 255, 255, 255)
    assert pixels[1][4] == (0, 0, 0, 255)
    assert pixels[0][1] == (128, 128, 128, 255)
    assert pixels[0][2] == (0, 0, 0, 0)
    colours = networks.mosaic(torch.tensor([1.0, 0.0, -1.0]).view(1, 3, 1, 1))
    assert colours == [[(255, 128, 0, 255)]]


def test_the_names_of_figures_need_no_torch():
    code = "import sys, dcnets.experiments.report.figures as f; assert '4' in f.NAMES; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


# -- in a browser ------------------------------------------------------------------------------------------------------

MEASURE = """<script>
const root = document.documentElement, beyond = (e) => e.getBoundingClientRect().right > innerWidth + 1;
const wide = [...document.querySelectorAll("body *")].filter((e) => beyond(e) && !e.closest("svg, thead"));
const figure = document.querySelector("#figure-4 figure");
const svg = figure.querySelector("svg"), button = figure.querySelector("button"), box = svg.getBoundingClientRect();
const curve = () => figure.querySelector("[data-series]").getAttribute("display");
const told = [innerWidth, root.scrollWidth, wide.map((e) => e.tagName).join(" ") || "none"];
const send = (type, x, y) => svg.dispatchEvent(new PointerEvent(type, {clientX: box.left + x * box.width,
  clientY: box.top + y * box.height, button: 0, pointerId: 1, pointerType: "mouse", bubbles: true}));
const charts = [...document.querySelectorAll("#figure-attacks figure svg[role]")];
const collide = (own) => own.some((e, at) => at && !e.getAttribute("transform")
  && e.getBBox().x < own[at - 1].getBBox().x + own[at - 1].getBBox().width);
told.push(charts.length, charts.some((e) => collide([...e.querySelectorAll(".tick")])));
const touch = (type) => svg.dispatchEvent(new PointerEvent(type, {clientX: box.left + .6 * box.width,
  clientY: box.top + .5 * box.height, pointerId: 2, pointerType: "touch", bubbles: true}));
touch("pointerdown"); touch("pointerup"); touch("pointerleave");
told.push(figure.querySelector("output").textContent.startsWith("update"));
const control = (text) => [...figure.querySelectorAll(".reset")].find((e) => e.textContent === text);
control("+").click(); told.push(figure.dataset.zoomed);
control("−").click(); told.push(figure.dataset.zoomed);
told.push(curve()); button.click(); told.push(curve(), button.getAttribute("aria-pressed"));
button.click(); told.push(curve());
const view = () => figure.dataset.view, first = view();
send("pointerdown", .4, .2); send("pointermove", .8, .7); send("pointerup", .8, .7);
told.push(figure.dataset.zoomed, view() !== first);
svg.dispatchEvent(new MouseEvent("dblclick", {bubbles: true})); told.push(figure.dataset.zoomed, view() === first);
svg.dispatchEvent(new KeyboardEvent("keydown", {key: "+"})); told.push(figure.dataset.zoomed);
svg.dispatchEvent(new KeyboardEvent("keydown", {key: "0"})); told.push(figure.dataset.zoomed);
send("pointermove", .99, .5); told.push(figure.querySelector("output").textContent);
parent.postMessage(told.join("; "), "*");
</script>"""
FRAME = """<script>addEventListener("message", (told) => document.documentElement.dataset.measured = told.data)</script>
<iframe src="{}" style="width: {}px; height: 2000px; border: 0"></iframe>"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_hides_zooms_and_does_not_scroll_sideways(tmp_path, width):
    runs_, attacks = paper_lines()
    found = of(*runs_, run_line(SEG, 29.0, scale=0.25), attacks=attacks)
    text = page.write(found, pictures(found))
    own, frame = tmp_path / "page.html", tmp_path / "frame.html"
    opened = text.replace("<details>", "<details open>")
    own.write_text(opened.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    frame.write_text(FRAME.format(own.as_uri(), width), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={tmp_path / 'home'}", f"--window-size={max(width, 500)},2000",
               "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (measured,) = re.findall('data-measured="(.*?)"', dom)
    *told, last = measured.split("; ")
    assert told == [
        str(width),
        str(width),
        "none",
        "4",
        "false",
        "true",
        "yes",
        "no",
        "inline",
        "none",
        "false",
        "inline",
        "yes",
        "true",
        "no",
        "true",
        "yes",
        "no",
    ]
    assert last.startswith("update 42,500: Baseline 25 · SphereConv 25")
