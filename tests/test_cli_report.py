"""`dcnets report` and `dcnets figure`: what a person names, what is written, and what is refused."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command_line import SMALL, call, ok, refused
from reported import attack_line, curve_line, run_line

from dcnets.experiments import checkpoint
from dcnets.experiments.report.cells import Collected
from dcnets.experiments.report.figures import NAMES, Sources, picture

pytest.importorskip("matplotlib")

SEG, RESNET = "cifar100-cnn9-segmented-cosine", "cifar100-resnet32"
DIGITS = "mnist-subset-features2d"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with lines of results, and small runs of digits: ordinary, TanhConv, and one trained against FGSM."""
    folder = tmp_path_factory.mktemp("report")
    lines = [run_line(SEG, 24.5), run_line(SEG, 25.5, seed=1), run_line(RESNET, 27.0), run_line(SEG, 29.5, scale=0.25)]
    lines += [run_line("cifar100-cnn9", 26.5), run_line("cifar10-cnn9_attack", 20.0, scale=0.25)]
    (folder / "results").mkdir()
    (folder / "results" / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    attacked = [curve_line(f"cifar10-cnn9_attack{operator}", (90, 40, 1)) for operator in ("", "-tanh-cosine")]
    attacked.append(attack_line("cifar10-cnn9_attack", 6, 1, scale=0.25))
    (folder / "results" / "attacks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in attacked))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in (DIGITS, f"{DIGITS}-tanh-cosine", f"{DIGITS}-tanh-cosine-fgsm"):
            ok("train", name, *SMALL, "--quiet", "--device", "cpu", "--results", folder / "digits.jsonl")
    return folder


@pytest.fixture(autouse=True)
def _there(place, monkeypatch):
    monkeypatch.chdir(place)


# -- report ------------------------------------------------------------------------------------------------------------


def test_the_report_is_one_page_and_markdown(place):
    shown = ok("report", "--markdown", "docs/results.md")
    assert "3 of the 132 cells that can be run are run, 4 runs in all: 3 agree with the paper, 0 do not." in shown
    assert "The tables count runs of dcnets 0.1.0 in bfloat16, done on a GPU. 3 other lines stand apart" in shown
    assert "the page is report/index.html, the Markdown docs/results.md" in shown
    assert "25.00 ± 0.71, 2 runs (paper 24.96) +0.04 ✓" in (place / "docs/results.md").read_text()
    text = (place / "report/index.html").read_text()
    assert "<b>25.00 ± 0.71</b> <span>+0.04 ✓</span>" in text
    assert "schedule × 0.25: 80.00 (1 run)" in text  # Table 7, which has no whole run
    assert "29.50 · " in text
    charts = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    titles = [chart["title"] for chart in charts]
    assert titles.count("Ordinary convolution") == 2  # Figs. 1 and 6
    assert titles.count("TanhConv") == 3  # Figs. 2, 6 and 7
    assert {
        "magnitude h, ρ = 1",
        "test error, %",
        "training loss",
        "relative radius ρ by layer",
        "natural: BIM, 10 steps of ε/4",
    } <= set(titles)
    digits = next(chart for chart in charts if chart["title"] == "Ordinary convolution")
    assert sum(len(series["points"]) for series in digits["series"]) == 1000
    assert "a subset of MNIST" in text
    changes = "width 2, batch 32, iterations 3, where the recipe has width 8, batch 50, epochs 10"
    assert f"3 updates, seed 0; a subset of MNIST; {changes}." in text
    assert len(re.findall('<img class="mosaic"', text)) == 3
    assert "No run in runs for SphereConv, BallConv: dcnets train mnist-features2d-sphere-cosine makes one." in text
    assert "No run in runs for Ordinary convolution, SphereConv, BallConv: dcnets train mnist-features2d-fgsm" in text


def test_the_page_needs_no_matplotlib_and_a_figure_says_that_it_does(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ok("report", "--out", tmp_path / "page.html", "--runs", tmp_path)
    assert (tmp_path / "page.html").exists()
    told = refused(1, "figure", "2", "--out", tmp_path / "a.svg")
    assert told.startswith("error: a figure as a file needs matplotlib (")
    assert told.endswith("pip install 'dcnets[demo]'")


def test_files_of_results_may_be_given(place, tmp_path):
    other = tmp_path / "more.jsonl"
    other.write_text(json.dumps(run_line(SEG, 25.0, seed=2)) + "\n{torn\n")
    result = call("report", "--results", "results", "--results", other, "--out", tmp_path / "page.html", "--runs", tmp_path)
    assert result.exit_code == 0
    assert "5 runs in all" in result.stdout
    assert result.stderr == f"{other}, line 2 is torn and left out: b'{{torn'\n"


def test_what_is_not_there_is_refused(tmp_path, monkeypatch):
    assert refused(1, "report", "--results", "none.jsonl").startswith("error: none.jsonl does not exist; `dcnets reproduce`")
    assert refused(1, "report", "--results", tmp_path).startswith(f"error: {tmp_path} holds no .jsonl file; give the folder")
    assert refused(2, "report", "--runs", "elsewhere").startswith("error: --runs elsewhere does not exist; give the folder")
    assert refused(2, "figure", "6", "--runs", "elsewhere").startswith("error: --runs elsewhere does not exist")
    monkeypatch.chdir(tmp_path)
    assert refused(1, "report").startswith("error: results does not exist; `dcnets reproduce` writes results/runs.jsonl")


def copied(place, name, runs, folder, **fields):
    """A run's folder copied, with other fields in its recipe."""
    found = checkpoint.latest(place / "runs" / f"{name}-width_2-batch_32-iterations_3-seed0")
    recipe = found.state["recipe"] | fields
    (runs / folder).mkdir(parents=True)
    checkpoint.save(runs / folder, found.step, found.tensors, found.state | {"recipe": recipe})


def test_finished_networks_are_preferred_and_unfinished_ones_told(place, tmp_path):
    copied(place, DIGITS, tmp_path / "a", f"{DIGITS}-seed0", iterations=1067)
    copied(place, f"{DIGITS}-tanh-cosine", tmp_path / "a", f"{DIGITS}-tanh-cosine-seed0", iterations=4000)
    filters, radii = (picture(name, Sources(Collected({}), tmp_path / "a")) for name in ("filters", "radii"))
    assert filters.images[0].note.endswith("seed 0, unfinished: after 3 of 1,067 updates")
    ((series,),) = (chart.series for chart in radii.charts)
    assert series.name == f"{DIGITS}-tanh-cosine (unfinished: after 3 of 4,000 updates)"
    (panel, _) = picture("6", Sources(Collected({}), tmp_path / "a")).charts
    assert "unfinished: after 3 of 1,067 updates, seed 0" in panel.note
    copied(place, DIGITS, tmp_path / "a", f"{DIGITS}-seed1")
    copied(place, DIGITS, tmp_path / "a", f"{DIGITS}-seed2")
    shown = picture("filters", Sources(Collected({}), tmp_path / "a")).images[0]
    assert shown.note.endswith("seed 1, 3 updates")
    (panel, _) = picture("6", Sources(Collected({}), tmp_path / "a")).charts
    assert "3 updates, seed 0" not in panel.note


def lose(place, name, runs, folder):
    """A run's folder copied as one that did not converge: no weight is finite, and it tells so."""
    found = checkpoint.latest(place / "runs" / f"{name}-width_2-batch_32-iterations_3-seed0")
    tensors = {key: each * float("nan") if each.is_floating_point() else each for key, each in found.tensors.items()}
    (runs / folder).mkdir(parents=True)
    checkpoint.save(runs / folder, found.step, tensors, found.state | {"divergence": "the loss was not finite"})


def test_networks_that_did_not_converge_are_told_and_not_drawn(place, tmp_path):
    runs = tmp_path / "runs"
    for name in (DIGITS, f"{DIGITS}-tanh-cosine", f"{DIGITS}-tanh-cosine-fgsm"):
        lose(place, name, runs, f"{name}-seed0")
    told = {name: f"{name}-seed0 did not converge (N/C) and is not shown." for name in (DIGITS, f"{DIGITS}-tanh-cosine")}
    one, natural, filters, radii = (picture(name, Sources(Collected({}), runs)) for name in ("1", "6", "filters", "radii"))
    assert (one.charts, one.missing) == ((), (told[DIGITS],))
    assert natural.charts == ()
    assert natural.missing[:2] == tuple(told.values())
    assert natural.missing[2].startswith(f"No run in {runs} for SphereConv, BallConv: dcnets train")
    assert (filters.images, radii.charts) == ((), ())
    assert set(told.values()) <= set(filters.missing)
    assert told[f"{DIGITS}-tanh-cosine"] in radii.missing
    assert refused(1, "figure", "1", "--runs", runs) == f"error: nothing to draw: {told[DIGITS]}"
    copied(place, DIGITS, runs, f"{DIGITS}-seed1")
    one, filters = (picture(name, Sources(Collected({}), runs)) for name in ("1", "filters"))
    assert "3 updates, seed 1" in one.charts[0].note
    assert one.missing == (told[DIGITS],)
    assert [image.note[-17:] for image in filters.images] == ["seed 1, 3 updates"]
    ok("report", "--runs", runs, "--out", tmp_path / "page.html")
    data = re.findall(r'<script type="application/json">(.*?)</script>', (tmp_path / "page.html").read_text())
    for text in data:
        json.loads(text, parse_constant=lambda word: pytest.fail(word))


def test_features_that_are_not_finite_are_told(place, tmp_path):
    found = checkpoint.latest(place / "runs" / f"{DIGITS}-width_2-batch_32-iterations_3-seed0")
    tensors = {key: each * 1e38 if each.is_floating_point() else each for key, each in found.tensors.items()}
    checkpoint.save(tmp_path / f"{DIGITS}-seed0", found.step, tensors, found.state)
    one = picture("1", Sources(Collected({}), tmp_path))
    assert one.charts == ()
    assert one.missing == (f"Ordinary convolution: {DIGITS}-seed0 has features that are not finite, which cannot be drawn.",)


def test_absolute_radii_have_a_chart_of_their_own(place, tmp_path, monkeypatch):
    copied(place, f"{DIGITS}-tanh-cosine", tmp_path / "runs", f"{DIGITS}-tanh-cosine-seed0")
    monkeypatch.chdir(tmp_path)
    radius = ("--operator", "tanh(radius=absolute)-cosine", "--folder", f"runs/{DIGITS}-ball-cosine-seed0")
    ok("train", f"{DIGITS}-ball-cosine", *SMALL, *radius, "--quiet", "--device", "cpu")
    charts = picture("radii", Sources(Collected({}), tmp_path / "runs")).charts
    assert [chart.title for chart in charts] == [f"{kind} radius ρ by layer" for kind in ("relative", "absolute")]
    assert [[each.name for each in chart.series] for chart in charts] == [
        [f"{DIGITS}-tanh-cosine"],
        [f"{DIGITS}-ball-cosine"],
    ]


def test_where_there_is_no_folder_of_runs_that_is_said():
    nothing = Sources(Collected({}))
    assert picture("radii", nothing).missing == (
        "There is no folder of runs; `dcnets reproduce` and `dcnets train` keep theirs in runs/.",
    )
    (told,) = picture("1", nothing).missing
    assert told == (
        "There is no folder of runs, and so no network for Ordinary convolution: dcnets train mnist-features2d makes one."
    )


# -- figure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_drawn(name, tmp_path):
    result = call("figure", name, "--out", tmp_path / "deep" / "a.svg")
    assert result.exit_code == 0, result.stderr
    root = ElementTree.parse(tmp_path / "deep" / "a.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter())) > 50
    call("figure", name, "--out", tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "deep" / "a.svg").read_bytes()


def test_a_figure_has_its_own_name_and_other_formats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ok("figure", "fig2") == "Fig. 2: the geometry of each operator: fig2.svg\n"
    assert Path("fig2.svg").exists()
    ok("figure", "3", "--out", "a.png")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_of_one_scale_leaves_out_the_others(tmp_path):
    assert call("figure", "attacks", "--out", tmp_path / "a.svg").exit_code == 0
    assert call("figure", "attacks", "--scale", "0.25", "--out", tmp_path / "b.svg").exit_code == 0
    assert "× 0.25" in (tmp_path / "b.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")
    told = refused(1, "figure", "attacks", "--scale", "1", "--out", tmp_path / "c.svg")
    assert told == "error: nothing to draw: No network of Tables 7 and 8 is attacked yet."
    assert call("figure", "robustness", "--scale", "1", "--out", tmp_path / "d.svg").exit_code == 0
    told = refused(1, "figure", "robustness", "--scale", "0.25", "--out", tmp_path / "e.svg")
    assert told.startswith("error: nothing to draw: No network is attacked at several ε yet.")


def test_a_figure_marks_networks_that_are_not_the_papers(tmp_path):
    ok("figure", "6", "--out", tmp_path / "a.svg")
    drawn = "".join(re.findall("<!-- (.*?) -->", (tmp_path / "a.svg").read_text()))
    assert f"Ordinary convolution{DIGITS}-width_2-batch_32-iterations_3" in drawn
    assert f"TanhConv{DIGITS}-tanh-cosine-width_2-batch_32-iterations_3" in drawn


def test_a_long_title_stands_within_a_narrow_figure(tmp_path):
    from matplotlib.image import imread

    from dcnets.experiments.report.charts import Axis, Chart, Picture, Series
    from dcnets.experiments.report.drawing import draw

    chart = Chart("", Axis("x"), Axis("y"), (Series("a", ((0.0, 0.0), (1.0, 1.0)), kind="dots"),), "", equal=True)
    draw(Picture("1", "a title of many words " * 5, "", (chart,)), tmp_path / "a.png")
    pixels = imread(tmp_path / "a.png")
    assert pixels[:, [0, -1], :3].min() == 1
    assert pixels.min() < 1


def test_what_a_figure_lacks_is_said(tmp_path):
    result = call("figure", "4", "--out", tmp_path / "a.svg")
    assert result.stderr == "Not yet run: SphereConv, BallConv, TanhConv, LinearConv, SegConv, LogConv, MixConv.\n"
    told = refused(1, "figure", "6", "--runs", tmp_path, "--out", tmp_path / "b.svg")
    assert told.startswith(f"error: nothing to draw: No run in {tmp_path} for Ordinary convolution, SphereConv, BallConv")
    assert not (tmp_path / "b.svg").exists()


def test_a_checkpoint_that_cannot_be_read_is_told_and_the_rest_is_drawn(place, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    for folder in (place / "runs").iterdir():
        (runs / folder.name).symlink_to(folder)
    damaged = runs / f"{DIGITS}-sphere-cosine-seed0"
    damaged.mkdir()
    (damaged / "step-000000003.safetensors").write_bytes(b"nothing")
    result = call("figure", "filters", "--runs", runs, "--out", tmp_path / "a.svg")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"{DIGITS}-sphere-cosine-seed0 cannot be read: no good checkpoint")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, f"error: missing N, one of {', '.join(NAMES)}; see dcnets figure --help"),
        (["2", "--scale", "1"], 2, "error: --scale chooses among lines of results, for figures agreement, 4, curves"),
        (
            ["5"],
            2,
            "error: Fig. 5 cannot be drawn: in the appendix; none of our sources shows it or has its caption",
        ),
        (
            ["9"],
            2,
            "error: unknown figure '9'; choose one of 1, 2, 3, 4, 6, 7, agreement, attacks, curves, filters, radii",
        ),
        (["radi"], 2, "error: unknown figure 'radi'; did you mean 'radii'?"),
        (["2", "--out", "a.jpg"], 2, "error: a figure is one of .svg, .png, .pdf, got 'a.jpg'; name the file so"),
    ],
)
def test_wrong_arguments(arguments, code, told):
    assert refused(code, "figure", *arguments).startswith(told)
