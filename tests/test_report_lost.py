"""What did not converge, in the claims, the curves and the charts of the page: told in words, never as nan or inf."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reported import made, of, run_line

import dcnets.experiments.report
from dcnets.experiments.report import page
from dcnets.experiments.report.charts import Axis, Chart, Picture, Series
from dcnets.experiments.report.figures import curves
from dcnets.experiments.report.paper_claims import CLAIMS

WITH = "Cosine with ReLU"
JUDGES = {claim.key: claim.judge for claim in CLAIMS}
NODE = shutil.which("node")
LOST = [{(table, row, "*"): "N/C"} for table in range(1, 9) for row in ("*", "Baseline")]


@pytest.mark.parametrize("changes", [*LOST, {(table, "*", "*"): "N/C" for table in range(1, 9)}], ids=str)
def test_no_sentence_has_a_number_that_is_not_finite(changes):
    for key, judge in JUDGES.items():
        assert not re.search(r"\b(nan|inf)\b", judge(made(changes)).told), key


def test_nothing_breaks_down_beside_a_baseline_that_did_not_converge():
    told = JUDGES["breaks-down"](made({(3, "*", "*"): "N/C"}))
    assert (told.status, told.told) == (
        "does not hold", "The baseline with ReLU did not converge, N/C: none is 20 points above it.",
    )  # fmt: skip
    told = JUDGES["breaks-down"](made({(3, "*", "Cosine without ReLU"): "N/C"}))
    assert told.status == "holds"
    assert told.told.startswith("20 points above the baseline with ReLU, 26.01: with no ReLU anywhere N/C, with a")


def test_a_cell_that_did_not_converge_is_near_to_nothing():
    own, both = (JUDGES["sphere"](made({(3, row, WITH): "N/C"})) for row in ("SphereConv", "*"))
    assert (own.status, own.told) == ("does not hold", "N/C beside 26.01 of our baseline.")
    assert (both.status, both.told) == ("does not hold", "N/C beside N/C of our baseline.")


def test_a_network_that_did_not_converge_is_not_faster():
    usual = [run_line("cifar100-resnet32", 31.0)]
    at_once = run_line("cifar100-resnet32-sphere-cosine", "N/C", history=[])
    later = run_line("cifar100-resnet32-tanh-cosine", "N/C")  # it had been below the baseline's last error
    told = JUDGES["convergence"](of(*usual, at_once, later))
    assert told.told.startswith("Not before the end: SphereConv N/C, TanhConv N/C; not yet run: BallConv")
    shown = curves.resnet32(of(*usual, at_once))
    assert shown.missing == (
        "Not yet run: BallConv, TanhConv, LinearConv, SegConv, LogConv, MixConv.",
        "Ended before its first test, as what does not converge (N/C): SphereConv.",
    )


def test_a_seed_that_did_not_converge_does_not_end_the_curve_of_the_others():
    lost = run_line("cifar100-resnet32", "N/C", seed=1, history=[{"step": 10_000, "test_top1": 0.01, "loss": 4.6}])
    shown = curves.resnet32(of(run_line("cifar100-resnet32", 26.0), lost))
    assert shown.charts == curves.resnet32(of(run_line("cifar100-resnet32", 26.0))).charts
    assert shown.told.endswith("Seeds: Baseline 1.")


def test_the_words_beside_a_curve_have_no_number_that_is_not_finite():
    history = [{"step": 1, "test_top1": 0.1, "loss": 2.0}, {"step": 2, "test_top1": 0.01, "loss": "nan"}]
    (_, loss) = curves.resnet32(of(run_line("cifar100-resnet32", "N/C", history=history))).charts
    assert loss.alt == "training loss: training loss by update. Baseline ends at no finite number"


def test_the_data_of_a_chart_is_strict_json():
    nan = float("nan")
    chart = Chart("a", Axis("x", reach=(-nan, nan)), Axis("y"), (Series("s", ((nan, 1.0), (0.0, 1.0)), "dots"),), "alt")
    text = page.write(of(), [Picture("1", "T", "told", (chart,))])
    data = re.search(r'<script type="application/json">(.*?)</script>', text)[1]
    found = json.loads(data, parse_constant=lambda word: pytest.fail(word))
    assert found["x"]["reach"] is None
    assert found["series"][0]["points"] == [[None, 1.0], [0.0, 1.0]]
    broken = Chart("a", Axis("x", ticks=((nan, "?"),)), Axis("y"), (), "alt")
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.write(of(), [Picture("1", "T", "told", (broken,))])


STUB = """
const figure = (text) => ({shown: [], querySelector(name) { return name === "script" ? {textContent: text}
  : {replaceChildren: (...all) => this.shown.push(...all)}; }});
const figures = ["{\\"reach\\":[NaN]}", "torn"].map(figure);
globalThis.document = {querySelectorAll: () => figures, createElement: () => ({})};
globalThis.addEventListener = () => {};
"""


@pytest.mark.skipif(NODE is None, reason="there is no Node here")
def test_a_chart_that_cannot_be_drawn_does_not_stop_the_others():
    script = (Path(dcnets.experiments.report.__file__).parent / "page.js").read_text(encoding="utf-8")
    asked = f"{STUB}{script}\nconsole.log(figures.map((each) => each.shown.map((p) => p.textContent).join()).join('\\n'));"
    done = subprocess.run([NODE, "-e", asked], capture_output=True, text=True, timeout=60, check=True)
    told = done.stdout.strip().splitlines()
    assert [line.partition(":")[0] for line in told] == ["This chart cannot be drawn"] * 2
