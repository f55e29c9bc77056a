"""`dcnets evaluate` and `dcnets convert`, and the networks that are rebuilt from checkpoints."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from command_line import SMALL, call, ok, refused
from PIL import Image

from dcnets.decoupled import Decoupled
from dcnets.experiments import checkpoint, data, recipes
from dcnets.experiments import weights as weights_module
from dcnets.experiments.checkpoint import CheckpointError
from dcnets.experiments.data.resident import in_order
from dcnets.experiments.evaluate import evaluate
from dcnets.experiments.rebuild import blank, rebuild, recipe_of
from dcnets.experiments.run import run
from dcnets.experiments.settings import Settings
from dcnets.experiments.weights import load_weights, open_checkpoint, weights

DIGITS = "mnist-subset-features2d"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A plain network that has learned a little, and a decoupled one that has learned nothing."""
    folder = tmp_path_factory.mktemp("runs")
    plain = recipes.get(DIGITS).override({"width": 4, "batch": 64, "iterations": 150, "rate": 0.02})
    plain_outcome = run(plain, folder=folder / "plain", device="cpu", settings=Settings(quiet=True))
    sphere = recipes.get(f"{DIGITS}-sphere-cosine").override({"width": 2, "batch": 32, "iterations": 2, "decouple": "all"})
    run(sphere, folder=folder / "sphere", device="cpu", settings=Settings(quiet=True))
    return folder, plain_outcome


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def json_line(*arguments):
    return json.loads(ok("evaluate", *arguments, "--json"))


# -- evaluate ----------------------------------------------------------------------------------------------------------


def test_the_test_error_is_that_of_training(runs):
    folder, outcome = runs
    shown = ok("evaluate", folder / "plain")
    head, row = shown.splitlines()
    assert head.split() == ["network", "top-1", "error", "top-5", "error", "loss", "images"]
    scores = outcome.scores
    assert row.startswith(f"{outcome.recipe.name}, update 150 ")
    numbers = [f"{100 * (1 - scores.top1):.2f}", "%", f"{100 * (1 - scores.top5):.2f}", "%", f"{scores.loss:.4f}", "1,000"]
    assert row.split()[-6:] == numbers
    assert scores.top1 > 0.3  # it has learned, so that other weights would show


@pytest.mark.parametrize("batch", [None, 64])
def test_a_line_of_json(runs, batch):
    folder, outcome = runs
    (file,) = (folder / "plain").glob("*.safetensors")
    line = json_line(file, *([] if batch is None else ["--batch", batch]))
    scores = outcome.scores
    assert {**line, "loss": None, "top1_error": None, "top5_error": None} == {
        "checkpoint": str(file), "step": 150, "recipe": outcome.recipe.name, "data": "mnist-subset", "top1_error": None,
        "top5_error": None, "loss": None, "images": 1000,
    }  # fmt: skip
    assert line["top1_error"] == pytest.approx(100 * (1 - scores.top1))
    assert line["top5_error"] == pytest.approx(100 * (1 - scores.top5))
    assert line["loss"] == pytest.approx(scores.loss)


def test_a_line_of_json_is_strict_where_the_loss_is_not_a_number(runs, tmp_path):
    shutil.copytree(runs[0] / "plain", tmp_path / "run")
    saved = checkpoint.latest(tmp_path / "run")
    spoiled = {name: t * math.nan if name.endswith("weight") else t for name, t in saved.tensors.items()}
    checkpoint.save(tmp_path / "run", saved.step, spoiled, saved.state)
    line = json.loads(ok("evaluate", tmp_path / "run", "--json"), parse_constant=pytest.fail)
    assert line["loss"] == "nan"


def test_a_damaged_newest_checkpoint_is_passed_over_aloud(runs, tmp_path):
    shutil.copytree(runs[0] / "plain", tmp_path / "run")
    (tmp_path / "run" / "step-000000151.safetensors").write_bytes(b"torn")
    shown = call("evaluate", tmp_path / "run")
    assert shown.exit_code == 0
    assert "going on from step-000000150.safetensors" in shown.stderr


def test_what_is_no_run_is_refused(runs, tmp_path):
    assert "holds no checkpoint; give the folder of a run" in refused(1, "evaluate", tmp_path)
    other = tmp_path / "best.safetensors"
    other.write_bytes(b"x")
    assert "best.safetensors is no checkpoint, whose name is step-….safetensors" in refused(1, "evaluate", other)
    torn = tmp_path / "step-000000007.safetensors"
    torn.write_bytes(b"x")
    assert "step-000000007.safetensors is cut short" in refused(1, "evaluate", torn)
    assert "no good checkpoint in" in refused(1, "evaluate", tmp_path)
    assert "--batch is a whole number" in refused(2, "evaluate", runs[0] / "plain", "--batch", "0")
    assert "--crop is for data sets" in refused(2, "evaluate", runs[0] / "plain", "--crop", "28")


def test_data_that_is_not_there(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("dcnets.experiments.data.download.urlopen", no_network)
    found = open_checkpoint(runs[0] / "plain")
    recipe = dataclasses.asdict(recipe_of(found)) | {"data": "mnist"}
    checkpoint.save(tmp_path / "run", 1, found.tensors, {"recipe": recipe})
    told = refused(1, "evaluate", tmp_path / "run", "--data", tmp_path)
    assert "cannot download train-images-idx3-ubyte.gz" in told
    assert "by other means and put it at" in told


def no_network(*_, **__):
    raise OSError("no network")


# -- rebuild -----------------------------------------------------------------------------------------------------------


def test_a_rebuilt_network_is_the_trained_one(runs):
    folder, outcome = runs
    rebuilt = rebuild(folder / "plain")
    assert rebuilt.recipe == outcome.recipe
    assert rebuilt.num_classes == 10
    assert not rebuilt.model.training
    for name, tensor in rebuilt.model.state_dict().items():
        assert torch.equal(tensor, rebuilt.checkpoint.tensors[f"model.{name}"])
    digits = data.load()
    assert evaluate(rebuilt.model, in_order(digits.test, 1000, mean=digits.mean, std=digits.std)) == outcome.scores


def test_a_decoupled_network_comes_back_with_all_its_layers(runs):
    rebuilt = rebuild(runs[0] / "sphere")
    assert rebuilt.recipe.decouple == "all"
    assert isinstance(rebuilt.model.classifier, Decoupled)
    assert isinstance(rebuilt.recipe.drops, tuple)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({}, "has no recipe that this dcnets can read"),
        ({"recipe": {"name": "x", "bach": 3}}, "unknown field 'bach'; did you mean 'batch'"),
        ({"recipe": {"name": "x", "batch": "many"}}, "batch is a whole number"),
    ],
)
def test_a_recipe_that_cannot_be_read(runs, tmp_path, state, told):
    checkpoint.save(tmp_path, 1, open_checkpoint(runs[0] / "plain").tensors, state)
    with pytest.raises(CheckpointError, match=told):
        rebuild(tmp_path)


def test_a_checkpoint_without_our_network(runs, tmp_path):
    checkpoint.save(tmp_path, 1, {"model.x": torch.zeros(1)}, open_checkpoint(runs[0] / "plain").state)
    with pytest.raises(CheckpointError, match=r"no classifier\.weight"):
        rebuild(tmp_path)


def test_weights_that_lack_something_say_what(runs):
    found = open_checkpoint(runs[0] / "plain")
    recipe = recipe_of(found)
    assert set(weights(found)) == set(blank(recipe).state_dict())
    del found.tensors["model.classifier.weight"]
    with pytest.raises(CheckpointError, match=r"classifier\.weight is not among them"):
        load_weights(blank(recipe), found)


# -- convert -----------------------------------------------------------------------------------------------------------


def test_a_converted_network_is_calibrated_saved_and_trained_further(runs):
    folder, outcome = runs
    shown = ok("convert", folder / "plain", "--operator", "tanh-cosine", "--out", "converted")
    before, after = shown.splitlines()[-3:-1]
    plain = f"{100 * (1 - outcome.scores.top1):.2f}"
    assert before.split()[:2] == ["before", plain]
    assert float(after.split()[1]) < 50  # uncalibrated it is at chance, see below
    assert shown.count("→ DecoupledConv2d  replaced") == 7
    assert "skipped: not selected" in shown
    assert shown.endswith("7 layers replaced; the network is in converted/step-000000000.safetensors\n")
    line = json_line("converted")
    assert f"{line['top1_error']:.2f}" == after.split()[1]
    assert line["recipe"] == f"{outcome.recipe.name}-converted_tanh-cosine"
    arguments = ["--start", "converted", "--width", "4", "--batch", "32", "--iterations", "1", "--quiet", "--rate", "1e-30"]
    tuned = ok("train", f"{DIGITS}-tanh-cosine", *arguments, "--bn-momentum", "0")
    assert float(tuned.split("test error ")[1].split()[0]) < 50
    was, now = (checkpoint.latest(place).tensors for place in (Path("converted"), next(Path("runs").iterdir())))
    torch.testing.assert_close(now["model.classifier.weight"], was["model.classifier.weight"])
    counted = "model.stage1.conv1.conv.num_batches_tracked"
    assert (int(was[counted]), int(now[counted])) == (20, 21)  # the running norms go on too


def test_without_calibration_the_statistics_are_those_of_the_plain_network(runs):
    folder, _ = runs
    shown = ok("convert", folder / "plain", "--operator", "tanh-cosine", "--calibrate", "0", "--out", "converted")
    assert float(shown.splitlines()[-2].split()[1]) > 60
    tensors = checkpoint.latest(Path("converted")).tensors
    name = "model.stage1.conv1.bn.running_mean"
    assert torch.equal(tensors[name], checkpoint.latest(folder / "plain").tensors[name])


@pytest.mark.parametrize(("layers", "count"), [("convolutions", 7), ("all", 9)])
def test_which_layers_are_converted(runs, layers, count):
    arguments = ["--operator", "segmented(beta=0.3)-cosine", "--layers", layers, "--calibrate", "1", "--out", "converted"]
    assert f"{count} layers replaced" in ok("convert", runs[0] / "plain", *arguments)
    rebuilt = rebuild(Path("converted"))
    assert sum(isinstance(module, Decoupled) for module in rebuilt.model.modules()) == count
    assert rebuilt.recipe.operator == "segmented(beta=0.3)-cosine"


def test_what_convert_refuses(runs, tmp_path):
    folder, _ = runs
    keep = sorted(path.name for path in (folder / "plain").iterdir())
    to = ["--out", tmp_path / "out"]
    assert "unknown magnitude 'tnh'; did you mean 'tanh'" in refused(
        1, "convert", folder / "plain", "--operator", "tnh-cosine", *to
    )
    assert "is already decoupled (sphere-cosine)" in refused(
        1, "convert", folder / "sphere", "--operator", "tanh-cosine", *to
    )
    assert "already holds checkpoints, which would be lost" in refused(
        1, "convert", folder / "plain", "--operator", "tanh-cosine", "--out", folder / "plain"
    )
    assert "unknown layers 'al'; did you mean 'all'" in refused(
        2, "convert", folder / "plain", "--operator", "tanh-cosine", "--layers", "al", *to
    )
    assert "--calibrate is a whole number, 0 or more" in refused(
        2, "convert", folder / "plain", "--operator", "tanh-cosine", "--calibrate", "-1", *to
    )
    assert sorted(path.name for path in (folder / "plain").iterdir()) == keep
    assert not (tmp_path / "out").exists()


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path):
    """Six classes of flat colours, 20×20."""
    for split, count in (("train", 4), ("val", 2)):
        for label in range(6):
            place = tmp_path / "images" / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (20, 20), (40 * label, 10 * number, 200)).save(place / f"{number}.png")
    return tmp_path / "images"


def test_a_folder_of_images_from_training_to_conversion(images):
    square = ["--resize", "20", "--crop", "16", "--workers", "0"]
    fields = ["--data-set", "folder", "--width", "2", "--batch", "4", "--iterations", "3"]
    shown = ok("train", DIGITS, *fields, *square, "--data", images, "--folder", "run", "--quiet")
    line = json_line("run", "--data", images, *square)
    assert f"test error {line['top1_error']:.2f} %" in shown
    assert line["images"] == 12
    assert rebuild(Path("run"), crop=16).num_classes == 6
    told = refused(1, "evaluate", "run", "--data", images, "--workers", "0")
    assert "do not fit the network: fc.conv.weight is (16, 8, 2, 2), expected (16, 8, 28, 28)" in told
    converted = ok("convert", "run", "--operator", "ball-cosine", "--out", "converted", "--data", images, *square)
    assert "7 layers replaced" in converted
    assert json_line("converted", "--data", images, *square)["images"] == 12
    for split in ("train", "val"):
        shutil.rmtree(images / split / "class5")
    told = refused(1, "evaluate", "run", "--data", images, *square)
    assert "knows 6 classes, the data has 5; give the data that it was trained on" in told
    assert "there is no folder" in refused(1, "evaluate", "run", "--data", images / "train", *square)


def test_a_bad_image_is_an_error_unless_it_may_be_skipped(images):
    (images / "val" / "class0" / "0.png").write_bytes(b"no image")
    square = ["--resize", "20", "--crop", "16", "--workers", "0"]
    fields = ["--data-set", "folder", *SMALL[:2], "--batch", "4", "--iterations", "1"]
    arguments = ["train", DIGITS, *fields, *square, "--data", images, "--folder", "run", "--quiet"]
    assert "0.png: unreadable image" in refused(1, *arguments)
    ok(*arguments, "--skip-bad", "--fresh")
    assert json_line("run", "--data", images, *square, "--skip-bad")["images"] == 11


# -- weights -----------------------------------------------------------------------------------------------------------


def test_networks_without_what_training_needs_are_as_good_to_evaluate_and_to_start_from(runs, tmp_path):
    folder, outcome = runs
    shown = ok("weights", folder, "--out", tmp_path / "networks")
    assert shown.splitlines()[-1] == f"2 networks are in {tmp_path / 'networks'}"
    rows = {row.split()[0]: row.split()[1:] for row in shown.splitlines()[1:-1]}
    assert rows["plain"][0] == "150"
    saved, whole = (checkpoint.latest(place / "plain") for place in (tmp_path / "networks", folder))
    assert (saved.step, saved.path.name) == (150, whole.path.name)
    assert saved.path.stat().st_size < whole.path.stat().st_size / 2
    assert all(torch.equal(tensor, whole.tensors[name]) for name, tensor in saved.tensors.items())
    assert weights(saved).keys() == weights(whole).keys()
    kept = {"recipe", "history", "seconds", "divergence"}
    assert {name: whole.state[name] for name in kept} == saved.state
    lines = [json_line(place / "plain") for place in (tmp_path / "networks", folder)]
    assert {**lines[0], "checkpoint": None} == {**lines[1], "checkpoint": None}
    recipe = outcome.recipe.override({"iterations": 3})
    run(
        recipe,
        folder=tmp_path / "further",
        start=tmp_path / "networks" / "plain",
        device="cpu",
        settings=Settings(quiet=True),
    )


def test_a_run_that_has_ended_is_known_by_its_network_alone_and_one_on_its_way_cannot_go_on(runs, tmp_path):
    folder, outcome = runs
    results = tmp_path / "runs.jsonl"
    ok("weights", folder / "plain", "--out", tmp_path / "networks")
    again = run(outcome.recipe, folder=tmp_path / "networks" / "plain", device="cpu", settings=Settings(quiet=True),
                results_file=results)  # fmt: skip
    assert (again.updates, again.steps, again.scores.top1) == (0, 150, outcome.scores.top1)
    assert [json.loads(line)["top1_error"] for line in results.read_text().splitlines()] == [
        round(100 * (1 - outcome.scores.top1), 3)
    ]
    tensors, state = weights_module.alone(checkpoint.latest(folder / "plain"))
    checkpoint.save(tmp_path / "early", 100, tensors, state)
    told = "holds the network alone, and training cannot go on from update 100 of 150; use another folder, and --start"
    with pytest.raises(CheckpointError, match=told):
        run(outcome.recipe, folder=tmp_path / "early", device="cpu", settings=Settings(quiet=True))


def test_networks_are_taken_out_again_as_their_runs_go_on(runs, tmp_path):
    folder, _ = runs
    whole, out = checkpoint.latest(folder / "plain"), tmp_path / "networks"
    early = tmp_path / "runs" / "plain"
    checkpoint.save(early, 100, whole.tensors, whole.state)

    def taken(*paths):
        return {row.split()[0]: row.split()[1:] for row in ok("weights", *paths, "--out", out).splitlines()[1:-1]}

    first, rows = taken(early), taken(folder)
    assert [first["plain"][at] for at in (0, 3)] == ["100", "new"]
    assert {name: (row[0], row[3]) for name, row in rows.items()} == {
        "plain": ("150", "renewed"), **{name: (rows[name][0], "new") for name in rows if name != "plain"}
    }  # fmt: skip
    assert [file.name for file in checkpoint.found(out / "plain")] == [whole.path.name]
    files = {file: file.read_bytes() for file in out.rglob("*.safetensors")}
    for again in (taken(folder), taken(early) | taken(folder)):
        assert {" ".join(row[3:]) for row in again.values()} == {"there already"}
    assert {file: file.read_bytes() for file in out.rglob("*.safetensors")} == files


def test_networks_that_would_be_lost_or_mixed_up_are_refused(runs, tmp_path):
    folder, _ = runs
    (file,) = (folder / "plain").glob("*.safetensors")
    assert ok("weights", file, "--out", tmp_path / "one").splitlines()[-1] == f"1 network is in {tmp_path / 'one'}"
    lost = "error: {} already holds checkpoints, which would be lost; choose another --out"
    shutil.copytree(folder / "plain", tmp_path / "run" / "plain")
    told = refused(1, "weights", file, "--out", tmp_path / "run")  # what training could go on from
    assert told == lost.format(tmp_path / "run" / "plain")
    (other,) = (each for each in folder.iterdir() if each.name != "plain")
    shutil.copytree(other, tmp_path / "others" / "plain")
    whole = checkpoint.latest(folder / "plain")
    anew = whole.state | {"history": [{**test, "seconds": test["seconds"] + 1} for test in whole.state["history"]]}
    checkpoint.save(tmp_path / "anew" / "plain", whole.step, whole.tensors, anew)
    for another in ("others", "anew"):  # another recipe's network, and the same recipe trained another time
        told = refused(1, "weights", tmp_path / another / "plain", "--out", tmp_path / "one")
        assert told == lost.format(tmp_path / "one" / "plain")
    shutil.copytree(folder / "plain", tmp_path / "elsewhere" / "plain")
    told = refused(2, "weights", folder, tmp_path / "elsewhere", "--out", tmp_path / "two")
    assert told.endswith(f"would both be {tmp_path / 'two' / 'plain'}; give one of them")
    assert not (tmp_path / "two").exists()
    (tmp_path / "empty").mkdir()
    told = refused(1, "weights", tmp_path / "empty", "--out", tmp_path / "two")
    assert told == f"error: {tmp_path / 'empty'} holds no checkpoint; give runs, or a folder of runs"
    assert "missing FOLDER_OR_CHECKPOINT" in refused(2, "weights", "--out", tmp_path / "two")
