"""`make demo`: a quick run of it, the page that it writes, and that page in a browser."""

import base64
import io
import math
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from dcnets.experiments.recipe import Recipe
from dcnets.experiments.robustness import Curve
from dcnets.experiments.settings import Outcome
from dcnets.experiments.signals import StoppedError

for needed in ("matplotlib", "rich", "safetensors"):
    pytest.importorskip(needed)

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("demo", "features", "figures", "page", "curves")
OPERATORS = {"Ordinary convolution": None, "TanhConv": "tanh-cosine", "SphereConv": "sphere-cosine"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
WIDTHS = {"phone": 390, "desktop": 1280}
MEASURE = """<script>
const root = document.documentElement, beyond = (e) => e.getBoundingClientRect().right > innerWidth + 1;
const wide = [...document.querySelectorAll("body *")].filter((e) => beyond(e) && !e.closest(".scroll, pre"));
parent.postMessage([innerWidth, root.scrollWidth, wide.map((e) => e.tagName).join(" ") || "none",
  [...document.images].filter((i) => i.complete && i.naturalWidth > 0).length].join("; "), "*");
</script>"""
"""Tells the frame's parent its width, the page's width, what sticks out of it, and how many images can be seen."""
FRAME = """<script>addEventListener("message", (told) => document.documentElement.dataset.measured = told.data)</script>
<iframe src="{}" style="width: {}px; height: 2000px; border: 0"></iframe>"""
"""Chromium's window has 500 pixels at least, a frame as many as it is given."""


@pytest.fixture(scope="module")
def modules():
    """The example's modules by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield SimpleNamespace(**{name: __import__(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def shown(modules, tmp_path_factory):
    """A quick run: its networks, what it printed, and its page."""
    out, runs, printed, bars = tmp_path_factory.mktemp("demo") / "new" / "page", [], io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(bars):
        write = modules.page.write_page
        patch.setattr(modules.demo, "write_page", lambda folder, made: runs.extend(made) or write(folder, made))
        modules.demo.main(["--quick", "--seed", "3", "--out", str(out)])
    return SimpleNamespace(runs=runs, printed=printed.getvalue(), bars=bars.getvalue(), path=out / "index.html")


class Parts(HTMLParser):
    """The elements of a page, and the text of its table's cells row by row."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.rows, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        self.inside = tag in ("td", "th") or (self.inside and tag in ("b", "small"))
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "small":
            self.rows[-1][-1] += " | "

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def parts(shown):
    return Parts(shown.path.read_text(encoding="utf-8"))


def test_the_three_networks_are_trained_by_their_recipes(shown):
    assert {run.name: run.outcome.recipe.operator for run in shown.runs} == OPERATORS
    for run in shown.runs:
        recipe = run.outcome.recipe
        assert (recipe.network, recipe.data, recipe.seed, run.outcome.steps) == ("features2d", "mnist-subset", 3, 4)
        assert run.epochs == pytest.approx([2 * recipe.batch / 6000, 4 * recipe.batch / 6000])
        assert run.features.shape == (1000, 2)
        assert run.accuracy == pytest.approx(run.outcome.scores.top1, abs=1e-6)
        assert f"{recipe.name}: step 4/4" in shown.bars


def test_the_table_has_the_numbers_of_the_runs(shown, parts):
    head, *rows = parts.rows
    assert head == ["network", "test accuracy", "epochs to 90\xa0%", "epochs to 95\xa0%", "training seconds"]
    for row, run in zip(rows, shown.runs, strict=True):
        operator = OPERATORS[run.name] or "nn.Conv2d"
        accuracy, seconds = f"{100 * run.outcome.scores.top1:.1f}\xa0%", f"{run.outcome.seconds:.1f}"
        assert row == [f"{run.name} | {operator}", accuracy, "–", "–", seconds]
        line = next(line for line in shown.printed.splitlines() if line.strip().startswith(run.name) and "%" in line)
        assert line.split()[-5:] == [*accuracy.split("\xa0"), "–", "–", seconds]
    assert str(shown.path) in shown.printed


def test_the_page_has_all_its_parts_and_needs_nothing_else(modules, shown, parts):
    text = shown.path.read_text(encoding="utf-8")
    for heading in (
        "Three networks",
        "Two features",
        "How they converge",
        "What an attack leaves",
        "Every magnitude h",
        "Every angular function g",
    ):
        assert f"<h2>{heading}" in text
    assert "$" not in text
    assert "One seed and 1,000 test digits decide little" in " ".join(text.split())
    assert not {"script", "link", "iframe", "object", "video"} & {tag for tag, _ in parts.elements}
    assert not re.search(r"@import|url\(", text)
    images = parts.all("img")
    assert len(images) == 3 + 2 + 1 + len(modules.curves.magnitude_curves()) + len(modules.curves.angular_curves())
    for image in images:
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        svg = ElementTree.fromstring(base64.b64decode(data))
        links = [value for element in svg.iter() for key, value in element.attrib.items() if key.endswith("href")]
        assert all(link.startswith("#") for link in links)
    told = [image["alt"] for image in images]
    assert len(set(told)) == len(told)
    for name in OPERATORS:
        assert f"{name}: the 1,000 test digits by their two features, each digit in a colour of its own" in told


def test_the_attack_leaves_what_it_says(modules, shown, parts):
    text, count = shown.path.read_text(encoding="utf-8"), modules.features.ATTACKED
    at = modules.features.GRID.index(modules.features.ATTACK.eps)
    for run in shown.runs:
        found = run.withstood
        right = (run.guesses == run.labels)[:count]
        assert torch.equal(found.outcomes[0].survived, right)
        assert (found.eps, found.outcomes[0].count) == (modules.features.GRID, count)
        assert list(found.accuracies) == sorted(found.accuracies, reverse=True)
        assert f"{run.name} {100 * found.accuracies[at]:.0f}\xa0%" in text
    assert f"the first {count} test digits" in " ".join(text.split())
    assert any(image["alt"].startswith("digits still right under PGD by ε; at ε = 0.2: ") for image in parts.all("img"))
    assert sum(run.withstood.outcomes[-1].right < run.withstood.outcomes[0].right for run in shown.runs) > 0


def test_the_page_is_made_for_phones_too(parts):
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in parts.all("meta")
    assert not any("width" in attrs or "width" in attrs.get("style", "") for _, attrs in parts.elements)


@browser
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_browser_shows_the_page_without_scrolling_sideways(shown, parts, tmp_path, width):
    text = shown.path.read_text(encoding="utf-8")
    page, frame, picture = (tmp_path / name for name in ("page.html", "frame.html", "picture.png"))
    page.write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    frame.write_text(FRAME.format(page.as_uri(), width), encoding="utf-8")

    def browse(*words):
        common = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'home'}")
        command = [CHROMIUM, *common, f"--window-size={width},2000", "--virtual-time-budget=5000", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    dom = browse("--dump-dom", frame.as_uri())
    assert re.findall('data-measured="(.*?)"', dom) == [f"{width}; {width}; none; {len(parts.all('img'))}"]
    browse(f"--screenshot={picture}", shown.path.as_uri())
    seen = pytest.importorskip("PIL.Image").open(picture).convert("RGB")
    assert seen.size == (width, 2000)
    colours = {colour for _, colour in seen.getcolors(2**24)}
    assert {(255, 255, 255), (0xF5, 0xF7, 0xF9), (0x1D, 0x23, 0x2B)} <= colours  # cards, page and ink


# -- what is counted and drawn -----------------------------------------------------------------------------------------


def run_of(modules, features, guesses, labels, accuracies=(0.5,)):
    """A run with these results."""
    history = [{"epoch": float(i), "test_top1": accuracy} for i, accuracy in enumerate(accuracies, 1)]
    outcome = Outcome(Recipe("made up"), len(history), None, history, 1.0, 0.0)
    tensors = (torch.tensor(values) for values in (features, guesses, labels))
    return modules.features.Run("made up", outcome, *tensors, Curve("PGD", (), ()))


def test_epochs_to_an_accuracy_are_those_of_the_first_test_that_reached_it(modules):
    run = run_of(modules, [[1.0, 0.0]], [0], [0], accuracies=(0.5, 0.9, 0.89, 0.949))
    assert [run.epochs_to(goal) for goal in (0.5, 0.9, 0.95)] == [1.0, 2.0, None]
    assert modules.page.cells(run)[2:4] == ["2", "–"]


def test_angles_and_mistakes_of_features(modules):
    labels = list(range(10)) * 2
    angle = [2 * math.pi * digit / 10 for digit in labels]
    turn = [math.radians(6 if i < 10 else -6) for i in range(20)]
    norm = [1.0 + i for i in range(10)] * 2
    features = [[n * math.cos(a + t), n * math.sin(a + t)] for n, a, t in zip(norm, angle, turn, strict=True)]
    guesses = [5 if i in (0, 10, 11, 9) else label for i, label in enumerate(labels)]
    run = run_of(modules, features, guesses, labels)
    assert run.angles().tolist() == pytest.approx([6.0] * 20, abs=1e-3)
    assert run.mistakes_by_norm(4) == (3, 1)
    assert run.accuracy == pytest.approx(0.8)
    assert "3 among" not in modules.page.caption(run)  # its tenths are two digits each
    assert "Mistakes: 2 among the 2 shortest features, 1 among the 2 longest." in modules.page.caption(run)
    assert "is 6°" in modules.page.caption(run)


def test_labels_on_the_rim_keep_their_distance(modules):
    angles = torch.tensor([3.1, 0.0, -3.1, 0.01, 1.5, -1.5, 0.02])
    moved = modules.figures.spread(angles, 0.2)
    order = moved.sort().values
    gaps = torch.cat([order.diff(), order[:1] + 2 * math.pi - order[-1:]])
    assert gaps.min() > 0.2 - 1e-3
    assert (moved - angles).abs().max() < 0.25
    assert torch.equal(moved[4:6], angles[4:6])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--epochs", "2", "--quick"], "not allowed with argument --epochs"),
        (["--epochs", "many"], "invalid int value: 'many'"),
        (["--out", str(EXAMPLES / "demo.py")], "cannot write to --out"),
    ],
)
def test_wrong_arguments_are_refused_before_training(modules, words, told, capsys):
    with pytest.raises(SystemExit) as refusal:
        modules.demo.main(words)
    assert refusal.value.code == 2
    assert told in capsys.readouterr().err


def test_epochs_take_the_place_of_the_recipes_own(modules):
    recipe = modules.features.recipe_for("TanhConv", seed=1)
    assert modules.features.recipe_for("TanhConv", seed=1, epochs=3) == recipe.override({"epochs": 3})
    assert recipe == modules.features.recipes.get("mnist-subset-features2d-tanh-cosine").override({"seed": 1})


def test_a_package_that_is_missing_is_named(modules, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.table", None)
    with pytest.raises(SystemExit, match=r"the demo needs rich, which is not installed; run: pip install dcnets\[demo\]"):
        runpy.run_path(str(EXAMPLES / "demo.py"))


def test_a_loss_that_is_not_finite_ends_the_demo(modules, monkeypatch, tmp_path):
    def diverge(model, source, recipe, test):
        return Outcome(recipe, 7, None, [], 1.0, 0.0, "the loss of update 7 was not finite")

    monkeypatch.setattr(modules.features, "fit", diverge)
    with pytest.raises(
        SystemExit, match="no page was written: mnist-subset-features2d: the loss of update 7 was not finite"
    ):
        modules.demo.main(["--quick", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_an_interruption_ends_with_the_signals_exit_code(modules, monkeypatch, tmp_path, capsys):
    def stop(name, recipe):
        raise StoppedError(2, "stopped after 5 of 1200 updates")

    monkeypatch.setattr(modules.demo, "train", stop)
    with pytest.raises(SystemExit) as end:
        modules.demo.main(["--out", str(tmp_path)])
    assert end.value.code == 130
    assert "no page was written: stopped after 5 of 1200 updates" in capsys.readouterr().err
