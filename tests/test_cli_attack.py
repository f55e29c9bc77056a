"""`dcnets attack`: what it measures, prints, writes and refuses."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from command_line import call, ok, refused
from hardened import FAULTS, Built
from PIL import Image

from dcnets import attacks
from dcnets.cli.attack_words import amounts, step_length
from dcnets.experiments import checkpoint, data, recipes, results
from dcnets.experiments.rebuild import rebuild, recipe_of
from dcnets.experiments.robustness import GRID
from dcnets.experiments.robustness.subjects import pixels_of, subject
from dcnets.experiments.run import run
from dcnets.experiments.settings import Settings
from dcnets.experiments.weights import open_checkpoint

DIGITS = "mnist-subset-features2d"
STEPS = ("--step", "eps/4", "--steps", "5", "--images", "40")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two networks that have learned a little."""
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, seed in (("plain", DIGITS, 0), ("tanh", f"{DIGITS}-tanh-cosine", 1)):
        short = recipes.get(recipe).override({"width": 4, "batch": 32, "iterations": 80, "rate": 0.02, "seed": seed})
        run(short, folder=folder / name, device="cpu", settings=Settings(quiet=True))
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lines(*arguments):
    return [json.loads(line) for line in ok("attack", *arguments, "--json").splitlines()]


def in_pixels(path):
    digits = data.load("mnist-subset")
    return attacks.Normalised(rebuild(path).model, digits.mean, digits.std, scale=255)


def accuracy(model, name, count=40, **settings):
    """The share of test digits that are right before and after an attack."""
    test = data.load("mnist-subset").test
    x, y = test.images[:count] / 255, test.labels[:count]
    right = ~attacks.fooled(model, x, y)
    after = ~attacks.fooled(model, getattr(attacks, name)(model, x[right], y[right], **settings), y[right])
    return after.sum().item() / count


# -- what it measures --------------------------------------------------------------------------------------------------


def test_the_accuracies_are_those_of_the_attacks(runs):
    (line,) = lines(runs / "plain", "--eps", "0.05", *STEPS, "--attack", "fgsm,bim")
    model = in_pixels(runs / "plain")
    fgsm, bim = line["attacks"]
    assert fgsm["accuracy"] == accuracy(model, "fgsm", eps=0.05)
    assert bim["accuracy"] == accuracy(model, "bim", eps=0.05, step=0.0125, steps=5)
    assert line["clean"] == accuracy(model, "fgsm", eps=0.0)
    assert line["clean"] > fgsm["accuracy"] > 0  # it has learned, and the attack works
    assert line["worst"]["0.05"] <= min(fgsm["accuracy"], bim["accuracy"])


def test_a_line_says_what_was_done_to_what(runs, tmp_path):
    command = (runs / "tanh", "--eps", "0,8/255", *STEPS, "--attack", "pgd", "--restarts", "2", "--seed", "7")
    (line,) = lines(*command, "--results", "new/r.jsonl")
    (read,) = results.read(tmp_path / "new" / "r.jsonl")
    assert read == line
    assert line["recipe"] == json.loads(json.dumps(dataclasses.asdict(rebuild(runs / "tanh").recipe)))
    assert (line["network"], line["step"], line["images"], line["precision"]) == ("tanh", 80, 40, "float32")
    assert {"date", "torch", "device", "commit", "seconds"} <= line.keys()
    none, some = line["attacks"]
    assert none["accuracy"] == line["clean"]
    assert {**some, "accuracy": 0, "error": 0} == {
        "attack": "pgd", "eps": 8 / 255, "norm": "linf", "step": 2 / 255, "steps": 5, "restarts": 2, "seed": 7,
        "accuracy": 0, "error": 0,
    }  # fmt: skip


def test_the_same_command_gives_the_same_numbers_and_bf16_others(runs):
    command = (runs / "tanh", "--eps", "0.5", "--norm", "l2", "--attack", "pgd", "--lipschitz", *STEPS)
    first, second, rounded = lines(*command)[0], lines(*command)[0], lines(*command, "--precision", "bf16")[0]
    kept = ("clean", "attacks", "worst", "lipschitz", "recipe", "precision")
    assert {name: first[name] for name in kept} == {name: second[name] for name in kept}
    assert rounded["precision"] == "bfloat16"
    assert rounded["lipschitz"]["constant"] != first["lipschitz"]["constant"]


def test_a_table_for_people(runs):
    shown = call("attack", runs / "plain", runs / "tanh", "--eps", "0,0.05,0.1", *STEPS)
    assert shown.exit_code == 0
    head, *rows = shown.stdout.splitlines()
    assert head.split() == ["network", "attack", "ε", "0", "ε", "0.05", "ε", "0.1"]
    assert [row.split()[0] for row in rows[:8]] == ["plain", "BIM", "PGD", "worst", "tanh", "BIM", "PGD", "worst"]
    worst = [float(word) for word in rows[3].split() if word[0].isdigit()]
    assert worst == sorted(worst, reverse=True)
    assert "40 images, ±" in shown.stdout
    assert "BIM, L∞, 5 steps of ε/4\nPGD, L∞, 5 steps of ε/4, seed 0" in shown.stdout
    assert "attack: attack 12/12" in shown.stderr


def test_a_picture_of_the_curves(runs, tmp_path):
    pytest.importorskip("matplotlib")
    told = ok("attack", runs / "plain", "--eps", "0,0.1", "--attack", "fgsm", "--images", "10", "--out", "new/c.svg")
    assert "the curves are drawn in new/c.svg" in told
    assert ElementTree.parse(tmp_path / "new" / "c.svg").getroot().tag.endswith("svg")


# -- black boxes -------------------------------------------------------------------------------------------------------


def test_a_substitute_attacks_from_outside(runs):
    (line,) = lines(runs / "tanh", "--substitute", runs / "plain", "--eps", "0.1", *STEPS, "--attack", "fgsm,bim")
    assert line["transfer"]["attack"] == "bim"
    test = data.load("mnist-subset").test
    x, y = test.images[:40] / 255, test.labels[:40]
    models = in_pixels(runs / "plain"), in_pixels(runs / "tanh")
    moved = attacks.transfer(*models, x, y, attack=attacks.bim, eps=0.1, step=0.025, steps=5)
    right = ~attacks.fooled(models[1], x, y) & ~moved.fooled
    assert line["transfer"]["accuracy"] == {"plain": right.sum().item() / 40}
    told = ok("attack", runs / "tanh", "--substitute", runs / "plain", "--eps", "0.1", *STEPS, "--attack", "fgsm,bim")
    assert "accuracy on examples made on another network: BIM, ε = 0.1, 5 steps of 0.025" in told


def test_the_matrix_has_every_pair(runs):
    command = (runs / "plain", runs / "tanh", "--matrix", "--eps", "0,0.1", "--at", "0.1", *STEPS, "--attack", "bim")
    plain, tanh = lines(*command)
    assert list(plain["transfer"]["accuracy"]) == list(tanh["transfer"]["accuracy"]) == ["plain", "tanh"]
    assert plain["transfer"]["accuracy"]["plain"] == plain["attacks"][1]["accuracy"]
    assert tanh["transfer"]["accuracy"]["plain"] > tanh["transfer"]["accuracy"]["tanh"]


# -- masking and slopes ------------------------------------------------------------------------------------------------


def test_the_report_of_a_network(runs):
    command = (runs / "plain", "--substitute", runs / "tanh", "--masking", "--lipschitz", "--eps", "0.1", *STEPS)
    told = ok("attack", *command, "--attack", "fgsm", "--queries", "20")
    for part in ("masking report of plain", "growing ε", "Square with 20 queries", "5 restarts", "verdict: ",
                 "a lower bound", "not made: it was not asked for", "after everything tried",
                 "- restarts: restarts of PGD gain more than 5 points over BIM and one run"):  # fmt: skip
        assert part in told
    (line,) = lines(*command, "--attack", "fgsm", "--queries", "20", "--restarts", "3")
    masking, slopes = line["masking"], line["lipschitz"]
    assert masking["plan"]["restarts"] == 3
    assert masking["attacks"]["FGSM"] == line["attacks"][0]["accuracy"]
    assert "transfer from tanh" in masking["attacks"]
    assert masking["robust"] <= min(masking["attacks"].values())
    assert slopes["constant"]["q10"] < slopes["constant"]["q50"] < slopes["constant"]["q90"]
    assert masking["verdict"] in told


@pytest.fixture
def _hidden(monkeypatch):
    """The network named plain has gradients that are not finite."""

    def built(name, *rest):
        found = subject(name, *rest)
        return dataclasses.replace(found, model=Built(found.model, **FAULTS["broken"])) if name == "plain" else found

    monkeypatch.setattr("dcnets.cli.attacking.subject", built)


@pytest.mark.usefixtures("_hidden")
def test_a_network_whose_gradients_cannot_be_followed_gets_its_report(runs):
    command = (runs / "plain", runs / "tanh", "--masking", "--eps", "0.1", *STEPS, "--queries", "20")
    told = ok("attack", *command, "--attack", "fgsm,square")
    right = lines(runs / "plain", "--eps", "0", "--attack", "fgsm", "--images", "40")[0]["clean"] * 40
    why = f"the model's gradient in x is not finite for {right:g} of {right:g} images"
    rows = [row.split() for row in told.splitlines()]
    assert rows[1][:2] == ["plain", "Square"]
    assert rows[2] == ["FGSM", "–"]
    assert [row[0] for row in rows[3:6]] == ["tanh", "Square", "worst"]
    assert f"FGSM on plain was not made: {why}" in told
    assert "after FGSM, BIM and PGD (not made: FGSM, BIM, PGD), " in told
    assert "masked (gradients" in told
    plain, tanh = lines(*command, "--attack", "fgsm,square")
    assert [each["attack"] for each in plain["attacks"]] == ["square"]
    assert why in plain["blocked"]["FGSM"]
    assert (plain["worst"], tanh["blocked"]) == ({}, {})
    assert f"verdict: {plain['masking']['verdict']}" in told
    alone = call("attack", *command[:2], "--eps", "0.1", "--attack", "fgsm", "--images", "40")
    assert alone.exit_code == 1
    assert f"error: {why}" in alone.stderr


@pytest.mark.usefixtures("_hidden")
def test_a_network_without_all_its_curves_is_not_in_the_picture(runs):
    pytest.importorskip("matplotlib")
    command = ("--masking", "--eps", "0,0.1", "--at", "0.1", *STEPS, "--queries", "5", "--attack", "fgsm", "--out", "c.svg")
    told = ok("attack", runs / "plain", runs / "tanh", *command)
    assert "the curves are drawn in c.svg, without plain" in told
    shown = call("attack", runs / "plain", *command)
    assert (shown.exit_code, shown.stderr.splitlines()[-1]) == (
        1, "error: c.svg is not drawn: there is no network of which all attacks could be made",
    )  # fmt: skip
    assert "verdict: " in shown.stdout


def test_autoattack_on_request(runs):
    pytest.importorskip("pyautoattack")
    (line,) = lines(runs / "plain", "--eps", "0.2", "--attack", "autoattack", "--images", "4")
    assert line["attacks"][0]["attack"] == "autoattack"
    assert line["attacks"][0]["accuracy"] < line["clean"]


# -- words -------------------------------------------------------------------------------------------------------------


def test_distances_are_read_as_people_write_them():
    assert amounts("--eps").read("8/255") == [8 / 255]
    assert amounts("--eps").read("0.2, 0,8/255,0.2") == [0.0, 8 / 255, 0.2]
    assert amounts("--eps").read("grid") == list(GRID)
    assert step_length().read("eps/4").at(0.2) == pytest.approx(0.05)
    assert step_length().read("eps").at(0.2) == 0.2
    assert step_length().read("2/255").at(0.2) == 2 / 255


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "missing --eps"),
        (("--eps", "eight"), "--eps is a number, 0 or more, as 8/255 or 0.03, got 'eight'"),
        (("--eps", "1/0"), "--eps is a number"),
        (("--eps", "-0.1"), "--eps is a number"),
        (("--eps", "8"), "did you mean 8/255"),
        (("--eps", "0.1"), "bim needs --step and --steps, as --step eps/4 --steps 10; there is no honest default"),
        (("--eps", "0.1", "--attack", "pgd", "--steps", "3"), "pgd needs --step and --steps"),
        (("--eps", "0.1", "--attack", "fgms"), "unknown attack 'fgms'; did you mean 'fgsm'?"),
        (("--eps", "0.1", "--step", "eps/0", "--steps", "3"), "--step is a number or a part of ε, as eps/4, got 'eps/0'"),
        (("--eps", "0.1", "--step", "0.01", "--steps", "3"), "3 steps of 0.01 reach 0.03, which is less than ε = 0.1"),
        (("--eps", "0,0.1,0.2", *STEPS, "--masking"), "are done at one ε above 0, and --eps has 3; say which with --at"),
        (("--eps", "0", *STEPS, "--lipschitz"), "are done at one ε above 0"),
        (("--eps", "0.1", *STEPS, "--at", "0.1"), "--at is the ε of --substitute"),
        (("--eps", "0.1", *STEPS, "--matrix"), "--matrix compares networks; give two or more"),
        (("--eps", "0.1", *STEPS, "--out", "c.svg"), "--out draws a curve, which needs two ε or more"),
        (("--eps", "grid", *STEPS, "--out", "c.gif"), "--out is a picture, one of .svg, .png, .pdf, got 'c.gif'"),
        (("--eps", "0.1", *STEPS, "--norm", "l1"), "unknown norm 'l1'"),
        (("--eps", "0.1", *STEPS, "--images", "0"), "--images is a whole number, 1 or more"),
        (("--eps", "0.1", *STEPS, "--crop", "3"), "--crop is for data sets"),
        (("--eps", "0.1", "--attack", "fgsm", "--restarts", "3"), "--restarts means nothing to fgsm; leave it out, or add"),
        (
            ("--eps", "0.1", *STEPS, "--attack", "fgsm"),
            "--step means nothing to fgsm; leave it out, or add one of bim, pgd",
        ),
        (("--eps", "0.1", *STEPS, "--attack", "fgsm,bim", "--seed", "1"), "--seed means nothing to fgsm and bim"),
        (("--eps", "0.1", *STEPS, "--queries", "9", "--lipschitz"), "--queries means nothing to fgsm and bim and pgd"),
    ],
)
def test_wrong_arguments(runs, arguments, told):
    assert told in refused(2, "attack", runs / "plain", *arguments)


def test_substitutes_that_cannot_be(runs):
    plain, command = runs / "plain", ("--eps", "0.1", *STEPS)
    assert "its own substitute" in refused(2, "attack", plain, *command, "--substitute", plain)
    assert "plain is given 2 times" in refused(2, "attack", plain, plain, *command, "--substitute", runs / "tanh")
    around = runs / "tanh" / ".." / "plain"
    assert "its own substitute" in refused(2, "attack", plain, *command, "--substitute", around)
    assert "plain is given 2 times" in refused(2, "attack", plain, around, *command)
    newest = checkpoint.found(plain)[-1]
    assert "its own substitute" in refused(2, "attack", plain, *command, "--substitute", newest)
    told = refused(2, "attack", plain, "--substitute", runs / "tanh", "--eps", "0.1", "--attack", "square")
    assert "examples to transfer are made by one of pgd, bim, fgsm; add it to --attack" in told


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("matplotlib", ("--attack", "fgsm", "--out", "c.svg")), ("pyautoattack", ("--attack", "autoattack"))],
)
def test_a_missing_package_is_told_before_anything_is_computed(runs, monkeypatch, package, arguments):
    for name in (package, f"{package}.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("dcnets.cli.attacking.opened_subjects", None)
    told = refused(1, "attack", runs / "plain", "--eps", "0,0.1", *arguments)
    assert f"needs {package}" in told or f"needs the package {package}" in told
    assert "pip install 'dcnets[" in told


def test_a_full_memory_names_the_cure(runs, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("much")

    monkeypatch.setattr("dcnets.experiments.robustness.evaluation.evaluate", full)
    told = call("attack", runs / "plain", "--eps", "0.1", "--attack", "fgsm").stderr
    assert "the GPU's memory is full; a smaller --batch needs less of it" in told


def test_networks_of_other_data(runs, tmp_path):
    found = open_checkpoint(runs / "plain")
    recipe = dataclasses.asdict(recipe_of(found)) | {"data": "mnist"}
    checkpoint.save(tmp_path / "other", 1, found.tensors, {"recipe": recipe})
    told = refused(1, "attack", runs / "plain", tmp_path / "other", "--eps", "0.1", *STEPS)
    assert "other was trained on mnist with 10 classes, plain on mnist-subset with 10" in told
    assert "holds no checkpoint" in refused(1, "attack", tmp_path, "--eps", "0.1", *STEPS)


def test_runs_of_one_name_are_told_apart_by_their_paths(runs, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "b" / "plain")
    found = lines(runs / "plain", "b/plain", "--eps", "0.1", "--attack", "fgsm", "--images", "5")
    assert [line["network"] for line in found] == [str(runs / "plain"), "b/plain"]


# -- streams -----------------------------------------------------------------------------------------------------------


def test_images_of_a_stream_are_taken_from_all_classes(tmp_path):
    for split, count in (("train", 4), ("val", 6)):
        for label in range(4):
            place = tmp_path / "images" / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (32, 32), (60 * label, 10 * number, 100)).save(place / f"{number}.png")
    recipe = recipes.get(DIGITS).override({"data": "folder", "width": 2, "batch": 4, "iterations": 1, "evaluate_every": 1.0})
    options = {"crop": 28, "resize": 28, "workers": 0}
    run(
        recipe,
        data_folder=tmp_path / "images",
        folder=tmp_path / "run",
        device="cpu",
        settings=Settings(quiet=True),
        **options,
    )
    command = ("run", "--data", "images", "--crop", "28", "--resize", "28", "--workers", "0", "--eps", "0.1")
    (line,) = lines(*command, "--attack", "fgsm", "--images", "12")
    assert line["images"] == 12
    stream = data.stream("folder", tmp_path / "images", batch=4, device="cpu", seed=0, **options)
    x, y = pixels_of(stream, 12)
    assert y.bincount().tolist() == [3, 3, 3, 3]
    assert torch.equal(x[0], torch.tensor([0, 0, 100]).view(3, 1, 1).expand(3, 28, 28) / 255)


@pytest.mark.parametrize("option", [("--results", "x.jsonl"), ("--out", "x.svg")])
def test_a_file_that_cannot_be_written_is_told_before_the_attack(runs, option, monkeypatch):
    begun = lambda *_, **__: pytest.fail("the attack has begun")
    monkeypatch.setattr("dcnets.experiments.robustness.evaluation.evaluate", begun)
    name, file = option
    Path("taken").touch()
    told = refused(1, "attack", runs / "plain", "--eps", "0.1,0.2", *STEPS, name, f"taken/{file}")
    assert "taken: Not a directory" in told


def test_what_was_measured_is_shown_and_kept_where_the_picture_fails(runs, monkeypatch):
    def broken(*_, **__):
        raise OSError("no picture")

    monkeypatch.setattr("dcnets.experiments.robustness.picture.draw", broken)
    shown = call("attack", runs / "plain", "--eps", "0.1,0.2", *STEPS, "--out", "x.svg", "--results", "lines.jsonl")
    assert (shown.exit_code, shown.stderr.splitlines()[-1]) == (1, "error: no picture")
    assert "right as they are: " in shown.stdout
    assert len(results.read(Path("lines.jsonl"))) == 1
