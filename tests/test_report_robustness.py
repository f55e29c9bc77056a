"""The figure of accuracies over ε: which lines count, what is told of the others, and steps of one length."""

import json

import pytest
from reported import attack_line, curve_line, run_line

from dcnets.experiments.report import page
from dcnets.experiments.report.collect import collect, read
from dcnets.experiments.report.figures import Sources, picture
from dcnets.experiments.report.figures.robustness import curves

NAME, TANH = "cifar10-cnn9_attack", "cifar10-cnn9_attack-tanh-cosine"
USUAL = curve_line(NAME, (90, 30, 2))


def changed(**fields):
    """The same line with all its accuracies 0, and other fields, those of the recipe in a dict."""
    recipe = USUAL["recipe"] | fields.pop("recipe", {})
    return curve_line(NAME, (0, 0, 0)) | {"recipe": recipe} | fields


OTHERS = {
    "of dcnets 0.0.9, not 0.1.0": changed(dcnets="0.0.9"),
    "of attacks in bfloat16": changed(precision="bfloat16"),
    "of a network whose recipe is changed (label_smoothing, rate)": changed(
        recipe={"rate": 0.5, "label_smoothing": 0.3, "name": f"{NAME}-rate_0.5-label_smoothing_0.3"}
    ),
    "of a network whose recipe is changed (name)": changed(recipe={"name": f"{NAME}-mine"}),
    "of a network whose recipe is changed (bn_momentum, drops, iterations, patience)": changed(
        recipe={"name": f"{NAME}-scale_0.5"}
    ),
    "of attacks in L2, which are not shown": changed(attacks=[{**each, "norm": "l2"} for each in USUAL["attacks"]]),
    "of a network that was not at its end": changed(step=5),
    "of images that are not the first": changed(first=1000),
    "of a recipe that this dcnets does not have": changed(recipe={"name": "cifar10-cnn99"}),
    "that this dcnets cannot read (unknown adversary 'awp')": changed(recipe={"adversary": "awp"}),
    "that this dcnets cannot read (unknown field 'sharpness')": changed(recipe={"sharpness": 0.05}),
    "that this dcnets cannot read (unknown attack 'apgd')": changed(
        attacks=[{**each, "attack": "apgd"} for each in USUAL["attacks"]]
    ),
    "that this dcnets cannot read (it has no step)": {"part": "curves", "dcnets": "0.2.0"},
}


@pytest.mark.parametrize("why", OTHERS)
def test_a_line_that_does_not_count_is_told_and_changes_no_curve(why):
    lines = [USUAL, curve_line(TANH, (80, 40, 3))]
    alone, mixed = curves(lines), curves([OTHERS[why], *lines, OTHERS[why]])
    assert mixed.charts == alone.charts
    assert alone.missing == ()
    assert mixed.missing == (f"Left out: 2 lines {why}.",)
    assert mixed.told == f"{alone.told} {mixed.missing[0]}"


def test_lines_that_are_left_out_alone_are_told_too():
    made = curves([OTHERS["of attacks in bfloat16"]])
    assert made.missing == ("No network is attacked at several ε yet.", "Left out: 1 line of attacks in bfloat16.")


def test_the_version_is_that_of_the_page_or_of_most_lines_that_would_count():
    new = changed(dcnets="0.2.0")
    assert curves([USUAL, new, new | {"step": 5}]).missing == (
        "Left out: 1 line of dcnets 0.1.0, not 0.2.0; 1 line of a network that was not at its end.",
    )  # of as many the newest
    assert curves([USUAL, USUAL, new]).missing == ("Left out: 1 line of dcnets 0.2.0, not 0.1.0.",)
    assert curves([USUAL, new, new], "0.1.0").missing == ("Left out: 2 lines of dcnets 0.2.0, not 0.1.0.",)


def test_the_page_goes_on_and_tells_what_it_leaves_out_once(tmp_path):
    later = {"part": "tables", "dcnets": "0.2.0", "recipe": {"name": NAME, "adversary": "awp"}, "attacks": [{"eps": 1}]}
    nameless = {"part": "tables", "recipe": {}, "attacks": []}
    shown = [run_line(NAME, 20.0), attack_line(NAME, 6, 1), changed(dcnets="0.2.0"), USUAL, later, nameless]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in [*shown, *OTHERS.values()]))
    found = collect(read([file]))
    assert found.torn == (f"{file}, lines of tables: Left out: 2 lines that this dcnets cannot read (it has no step).",)
    made = picture("robustness", Sources(found))
    assert "1 line of dcnets 0.2.0, not 0.1.0" in made.told
    assert [series.points[0] for chart in made.charts for series in chart.series] == [(0, 90)]
    text = page.write(found, [made])
    assert text.count("Left out: 1 line that this dcnets cannot read") == 1
    assert "lines of tables: Left out: 2 lines" in text


def test_steps_of_one_length_at_each_eps_make_one_chart():
    made = curves([curve_line(NAME, (90, 30, 2, 1), attack={"attack": "bim", "steps": 5, "step": 0.05})])
    assert [chart.title for chart in made.charts] == ["natural: BIM, 5 steps of 0.05"]
    ((series,),) = (chart.series for chart in made.charts)
    assert [round(y, 6) for _, y in series.points] == [90, 30, 2, 1]
    both = curve_line(NAME, (90, 30, 2))
    same = curve_line(NAME, (90, 20, 1), attack={"attack": "bim", "steps": 10, "step": 0.01})
    made = curves([both | {"attacks": [*both["attacks"], *same["attacks"]]}])
    assert [chart.title for chart in made.charts] == ["natural: BIM, 10 steps of 0.01", "natural: BIM, 10 steps of ε/4"]


def test_attacks_of_another_seed_have_their_own_chart():
    pgd = [{"attack": "pgd", "steps": 10, "restarts": 1, "seed": seed} for seed in (0, 3)]
    made = curves([curve_line(NAME, (90, 30, 2), attack=pgd[0]), curve_line(NAME, (90, 29, 1), attack=pgd[1])])
    assert [chart.title for chart in made.charts] == [
        "natural: PGD, 10 steps of ε/4",
        "natural: PGD, 10 steps of ε/4, seed 3",
    ]
