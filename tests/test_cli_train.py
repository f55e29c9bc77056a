"""`dcnets train`: fields as options, where a run is kept, how it ends, and the weights that it starts from."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import SMALL, call, environment, ok, refused, start

from dcnets.cli import options
from dcnets.cli.program import program
from dcnets.cli.recipe_options import SPOKEN, changed, default_folder
from dcnets.experiments import checkpoint, recipes, results
from dcnets.experiments.recipe import Recipe, kind_of, optional
from dcnets.experiments.reproduce.plan import folder_of, named
from dcnets.experiments.run import run

DIGITS = "mnist-subset-features2d"
PLAIN = f"{DIGITS}-width_2-batch_32-iterations_3"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """What `run` is called with, in place of a run."""
    calls = []

    def note(recipe, **keywords):
        calls.append((recipe, keywords))
        raise ValueError("enough")

    monkeypatch.setattr("dcnets.experiments.run.run", note)
    return calls


def recipe_of(*arguments, asked):
    refused(1, "train", *arguments)
    return asked[-1][0]


# -- fields ------------------------------------------------------------------------------------------------------------


def test_every_field_is_an_option_with_its_help():
    shown = {option: parameter for parameter in program.commands["train"].params for option in parameter.opts}
    for each in dataclasses.fields(Recipe):
        parameter = shown["--" + SPOKEN.get(each.name, each.name.replace("_", "-"))]
        assert parameter.help.lower() == each.metadata.get("help", "name of the run").lower() + "."
        assert bool(parameter.secondary_opts) == (kind_of(each.name) is bool and not optional(each.name))


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (["--no-relu", "--batch-norm"], {"relu": False, "batch_norm": True}),
        (["--drops", "100,2_000"], {"drops": (100, 2000)}),
        (["--drops", ""], {"drops": ()}),
        (["--operator", "none", "--penalty", "none"], {"operator": None, "penalty": None}),
        (["--operator", "segmented(beta=0.3)-cosine"], {"operator": "segmented(beta=0.3)-cosine"}),
        (["--fc-relu", "yes"], {"fc_relu": True}),
        (["--fc-relu", "none"], {"fc_relu": None}),
        (["--width", "8", "--width", "none"], {"width": None}),
        (["--rate", "1e-2", "--schedule", "plateau"], {"rate": 0.01, "schedule": "plateau"}),
        (["--epochs", "2"], {"epochs": 2.0, "iterations": None}),
        (["--iterations", "9"], {"iterations": 9, "epochs": None}),
        (["--data-set", "mnist-subset", "--seed", "5"], {"data": "mnist-subset", "seed": 5}),
    ],
)
def test_fields_are_read_and_the_rest_stays(arguments, fields, asked):
    base = recipes.get(f"{DIGITS}-tanh-cosine")
    got = dataclasses.asdict(recipe_of(base.name, *arguments, asked=asked))
    expected = dataclasses.asdict(dataclasses.replace(base, **fields))
    assert {**got, "name": ""} == {**expected, "name": ""}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            [],
            "error: missing RECIPE, such as mnist-subset-features2d, whose data is inside the package; dcnets recipes",
        ),
        (
            ["mnist-subset-featurs2d"],
            "error: unknown recipe 'mnist-subset-featurs2d'; did you mean 'mnist-subset-features2d'",
        ),
        (
            [DIGITS, "--iteration", "3"],
            "error: unknown option --iteration; did you mean --iterations? see dcnets train --help",
        ),
        (
            [DIGITS, "--optimiser", "adm"],
            "error: unknown optimiser 'adm'; did you mean 'adam'? choose one of adam, adamw, sgd",
        ),
        ([DIGITS, "--penalty", "orthonormall"], "error: unknown penalty 'orthonormall'; did you mean 'orthonormal'?"),
        ([DIGITS, "--batch", "x"], "error: batch is a whole number, got 'x'"),
        ([DIGITS, "--width", "2.5"], "error: width is a whole number, or none, got '2.5'"),
        ([DIGITS, "--drops", "1,b"], "error: drops is whole numbers above 0, as 100,200, got '1,b'"),
        ([DIGITS, "--fc-relu", "perhaps"], "error: fc_relu is true or false, or none, got 'perhaps'"),
        ([DIGITS, "--batch", "-3"], "error: batch must be above 0, got -3"),
        ([DIGITS, "--epochs", "inf"], "error: epochs must be finite, got inf"),
        ([DIGITS, "--evaluate-every", "inf"], "error: evaluate_every must be finite, got inf"),
        ([DIGITS, "--drops", "20,10"], "error: drops must rise, got (20, 10)"),
        ([DIGITS, "--iterations", "3", "--epochs", "2"], "error: give iterations or epochs, the other being none"),
        ([DIGITS, "--rate"], "error: option '--rate' requires an argument"),
        ([DIGITS, "--device", "gpu"], "error: unknown device 'gpu'; did you mean 'cpu'? choose one of auto, cpu, cuda"),
        ([DIGITS, "--accumulate", "0"], "error: --accumulate is a whole number, 1 or more, got '0'"),
        ([DIGITS, "--threads", "many"], "error: --threads is a whole number, 1 or more, got 'many'"),
        ([DIGITS, "--workers", "-1"], "error: --workers is a whole number, 0 or more, got '-1'"),
        ([DIGITS, "--save-seconds", "x"], "error: --save-seconds: 'x' is not a valid float"),
        ([DIGITS, "--crop", "32"], "error: --crop is for data sets folder and webdataset, and mnist-subset lies in memory"),
        ([DIGITS, "--skip-bad"], "error: --skip-bad is for data sets folder and webdataset"),
        ([DIGITS, "--start", "nowhere"], "error: --start: Path 'nowhere' does not exist"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments, told):
    assert refused(2, "train", *arguments).startswith(told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--network", "cnn8"], "error: unknown network 'cnn8'; did you mean 'cnn9'?"),
        (["--operator", "tanhh-cosine"], "error: unknown magnitude 'tanhh'; did you mean 'tanh'?"),
        (["--data-set", "cifar1"], "error: unknown data set 'cifar1'; did you mean 'cifar10'?"),
        (["--capture"], "error: --capture makes CUDA graphs of one process"),
        (["--batch", "6001"], "error: a batch of 6001 is larger than the training set of 6000 images"),
        (
            ["--batch", "32", "--accumulate", "3"],
            "error: a batch of 32 does not divide by 1 processes × 3 accumulated pieces",
        ),
    ],
)
def test_what_only_the_run_can_know_is_one_line_too(arguments, told):
    assert refused(1, "train", DIGITS, *arguments).startswith(told)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refused(1, "train", DIGITS, "--device", "cuda").startswith("error: torch sees no GPU here; use --device cpu")


def test_a_wrong_network_is_told_before_its_data_is_downloaded(monkeypatch, tmp_path):
    monkeypatch.setattr("dcnets.cli.supply.fetch", lambda *_: pytest.fail("downloaded"))
    told = refused(1, "train", "cifar100-cnn9", "--network", "cnn8", "--data", tmp_path)
    assert told.startswith("error: unknown network 'cnn8'")


# -- how it is carried out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("train", DIGITS), ("reproduce", "fig6")])
@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_a_time_between_checkpoints_that_is_none_is_refused(command, seconds):
    told = refused(1, *command, "--save-seconds", seconds)
    assert told == f"error: save_seconds must be 0 or more, got {float(seconds)}"


def test_settings_reach_the_run(asked, tmp_path):
    refused(
        1, "train", DIGITS, "--compile", "--accumulate", "2", "--sync-bn", "--sync-radius", "--save-seconds", "5", "--fresh",
        "--quiet", "--tensorboard", "--data", tmp_path, "--folder", "here", "--results", "there.jsonl", "--device", "cpu",
    )  # fmt: skip
    _, keywords = asked[-1]
    settings = dataclasses.asdict(keywords.pop("settings"))
    assert settings == {
        "compiled": True, "captured": False, "pieces": 2, "sync_bn": True, "sync_radius": True, "save_seconds": 5.0,
        "fresh": True, "quiet": True, "tensorboard": True,
    }  # fmt: skip
    assert keywords == {
        "data_folder": tmp_path, "folder": Path("here"), "results_file": Path("there.jsonl"), "start": None, "device": "cpu",
    }  # fmt: skip


def test_without_options_a_cpu_neither_compiles_nor_captures(asked):
    refused(1, "train", DIGITS, "--device", "cpu")
    settings = asked[-1][1]["settings"]
    assert (settings.compiled, settings.captured, settings.pieces, settings.fresh) == (False, False, 1, False)
    assert asked[-1][1]["folder"] == Path(f"runs/{DIGITS}-seed0")
    assert asked[-1][1]["results_file"] == Path("results/runs.jsonl")


def test_what_is_compiled_and_captured_by_default():
    assert options.how("cuda", None, None) == (True, True)
    assert options.how("cuda", None, None, simple=False) == (True, False)
    assert options.how("cuda", False, None) == (False, True)
    assert options.how("cuda", None, False) == (True, False)
    assert options.how("cpu", None, None) == (False, False)
    assert options.how("cpu", True, False) == (True, False)
    for place, simple in (("cpu", True), ("cuda", False)):
        with pytest.raises(ValueError, match="CUDA graphs of one process"):
            options.how(place, None, True, simple=simple)


def test_torchrun_and_accumulated_streams_are_not_captured(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(options, "place", lambda _: "cuda")
    monkeypatch.setattr("dcnets.cli.train.place", lambda _: "cuda")
    refused(1, "train", DIGITS, "--accumulate", "2")
    assert asked[-1][1]["settings"].captured
    refused(1, "train", DIGITS, WORLD_SIZE="2")
    assert not asked[-1][1]["settings"].captured
    refused(1, "train", "imagenet-resnet18", "--accumulate", "2", "--data", tmp_path)
    assert not asked[-1][1]["settings"].captured
    refused(1, "train", "imagenet-resnet18", "--data", tmp_path, "--workers", "0", "--crop", "64", "--skip-bad")
    keywords = asked[-1][1]
    assert keywords["settings"].captured
    assert (keywords["workers"], keywords["crop"], keywords["skip_bad"]) == (0, 64, True)
    assert "resize" not in keywords


def test_threads():
    before = torch.get_num_threads()
    try:
        assert call("train", DIGITS, "--threads", "2", "--capture").exit_code == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# -- names and folders -------------------------------------------------------------------------------------------------


def test_a_name_tells_what_was_changed_and_the_folder_also_the_seed():
    base = recipes.get(DIGITS)
    assert changed(base, {"seed": "3", "batch": str(base.batch)}).name == DIGITS  # the batch is what it was
    reproduced = named(dataclasses.replace(base, precision="bf16"), 1, 3)
    assert changed(base, {"precision": "bf16", "seed": "3"}) == reproduced  # so that one goes on with the other's run
    assert default_folder(reproduced) == folder_of(reproduced, Path("runs"))
    new = changed(base, {"seed": "3", "relu": False, "rate": "0.5", "operator": "tanh-cosine", "penalty": "none"})
    assert new.name == f"{DIGITS}-operator_tanh-cosine-no_relu-rate_0.5-no_penalty"
    assert default_folder(new) == Path(f"runs/{new.name}-seed3")
    assert changed(base, {"drops": "1,2", "relu": False}).name == changed(base, {"relu": False, "drops": "1,2"}).name
    assert changed(base, {"drops": "1,2"}).name == f"{DIGITS}-drops_1+2"
    assert changed(base, {"name": "mine", "batch": "7"}).name == "mine"
    odd = changed(base, {"name": "../a b(c=1)"})
    assert default_folder(odd) == Path("runs/.._a_b_c=1_-seed0")


def test_a_name_tells_where_the_weights_came_from(tmp_path):
    (tmp_path / "other").mkdir()
    file = tmp_path / "other" / "step-000000001.safetensors"
    file.touch()
    for origin in (tmp_path / "other", file):
        assert changed(recipes.get(DIGITS), {}, origin).name == f"{DIGITS}-from_other"


# -- real runs ---------------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_summary_a_folder_and_a_line():
    shown = ok("train", DIGITS, *SMALL, "--quiet")
    (line,) = results.read(Path("results/runs.jsonl"))
    first, second, third = shown.splitlines()
    assert first.startswith(f"{PLAIN}: 3 updates in ")
    assert second == f"test error {line['top1_error']:.2f} %, top-5 error {line['top5_error']:.2f} %"
    assert third == f"the run is in runs/{PLAIN}-seed0, its line in results/runs.jsonl"
    assert line["recipe"]["name"] == PLAIN
    assert line["recipe"]["width"] == 2
    assert line["steps"] == 3
    assert checkpoint.latest(Path(f"runs/{PLAIN}-seed0")).step == 3


def test_the_same_command_again_goes_on_and_another_recipe_is_refused():
    again = ["train", DIGITS, *SMALL, "--folder", "here"]
    ok(*again, "--quiet")
    shown = call(*again)
    assert shown.exit_code == 0
    assert "going on after update 3 of 3" in shown.stderr
    told = refused(1, *again, "--rate", "0.5")
    assert "was made with" in told
    assert f"rate={recipes.get(DIGITS).rate}" in told
    assert "use another folder or --fresh" in told
    assert "-rate_0.5-batch_32-iterations_3: 3 updates in " in ok(*again, "--rate", "0.5", "--fresh", "--quiet")


def test_a_finished_run_whose_line_is_missing_gets_it_and_no_second_one():
    command = ["train", DIGITS, *SMALL, "--folder", "here", "--quiet"]
    ok(*command)
    lines = Path("results/runs.jsonl")
    (first,) = results.read(lines)
    ok(*command)
    assert len(results.read(lines)) == 1
    lines.unlink()  # as if the process had been killed before it was written
    ok(*command)
    ok(*command)
    (again,) = results.read(lines)
    changing = dict.fromkeys(("date", "preparation", "commit"))
    assert {**again, **changing} == {**first, **changing}


def test_a_line_that_could_not_be_written_is_told_before_the_training():
    Path("taken").touch()
    told = refused(1, "train", DIGITS, *SMALL, "--folder", "here", "--results", "taken/runs.jsonl", "--quiet")
    assert "taken: Not a directory" in told
    assert not list(Path("here").glob("*.safetensors"))


def test_two_commands_for_one_run_take_turns():
    command = ["train", DIGITS, *SMALL, "--iterations", "60", "--folder", "here", "--quiet"]
    both = [start(*command) for _ in range(2)]
    shown = [process.communicate(timeout=240)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], shown
    assert sum("here is in use: waiting for process " in each for each in shown) == 1
    assert len(results.read(Path("results/runs.jsonl"))) == 1
    steps = [json.loads(line)["step"] for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


def test_a_run_that_diverges_says_so_and_exits_with_3():
    arguments = [
        "train",
        DIGITS,
        *SMALL,
        "--rate",
        "1e30",
        "--optimiser",
        "sgd",
        "--warmup",
        "0",
        "--folder",
        "here",
        "--quiet",
    ]
    told = refused(3, *arguments)
    assert told.startswith("did not converge: the loss of update ")
    assert told.endswith("; its line in results/runs.jsonl says N/C, its state is in here")
    assert results.read(Path("results/runs.jsonl"))[0]["top1_error"] == "N/C"
    again = call(*arguments)
    assert (again.exit_code, again.stderr.splitlines()[-1]) == (3, told)


def test_the_weights_of_another_run():
    ok("train", DIGITS, *SMALL, "--quiet", "--folder", "plain")
    ok("train", DIGITS, *SMALL, "--quiet", "--folder", "plain64", "--width", "4")
    given = checkpoint.latest(Path("plain")).tensors
    ok("train", f"{DIGITS}-tanh-cosine", *SMALL, "--quiet", "--start", "plain", "--rate", "1e-30", "--filters", "standard")
    (folder,) = Path("runs").iterdir()
    assert folder.name == f"{DIGITS}-tanh-cosine-width_2-rate_1e-30-batch_32-iterations_3-filters_standard-from_plain-seed0"
    came = checkpoint.latest(folder).tensors
    for name in ("model.stage1.conv1.conv.weight", "model.classifier.weight"):
        torch.testing.assert_close(came[name], given[name])
    assert "model.stage1.conv1.conv.raw_radius" in came
    told = refused(1, "train", DIGITS, *SMALL, "--start", "plain64")
    assert "do not fit the network: " in told
    assert ", expected (" in told
    told = refused(1, "train", DIGITS, *SMALL, "--start", folder)
    assert "num_batches_tracked is not of this network" in told


def test_the_start_is_where_training_begins_unless_there_is_a_run_to_go_on_with(tmp_path):
    small = recipes.get(DIGITS).override({"width": 2, "batch": 32, "iterations": 2})
    run(small, folder=tmp_path / "one", device="cpu")
    elsewhere = dataclasses.replace(small, seed=1, rate=1e-30)
    run(elsewhere, folder=tmp_path / "two", device="cpu", start=tmp_path / "one")
    one, two = (checkpoint.latest(tmp_path / name).tensors["model.classifier.weight"] for name in ("one", "two"))
    torch.testing.assert_close(one, two)
    run(dataclasses.replace(small, seed=2), folder=tmp_path / "three", device="cpu")
    before = checkpoint.latest(tmp_path / "three").tensors["model.classifier.weight"]
    run(dataclasses.replace(small, seed=2), folder=tmp_path / "three", device="cpu", start=tmp_path / "one")
    assert torch.equal(checkpoint.latest(tmp_path / "three").tensors["model.classifier.weight"], before)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_where(number):
    arguments = [
        "train",
        DIGITS,
        "--width",
        "2",
        "--batch",
        "32",
        "--epochs",
        "1000",
        "--folder",
        "here",
        "--save-seconds",
        "0",
    ]
    process = start(*arguments)
    for _ in range(600):
        if list(Path("here").glob("*.safetensors")):
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    last = told.splitlines()[-1]
    step = checkpoint.latest(Path("here")).step
    assert last == f"stopped after {step} of 187000 updates; the state is in here: the same command goes on"
    assert "Traceback" not in told
    assert not Path("results").exists()


def test_torchrun_trains_with_one_voice():
    code = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dcnets"]
    arguments = ["train", f"{DIGITS}-tanh-cosine", *SMALL, "--folder", "here"]
    done = subprocess.run(
        [sys.executable, *code, *arguments], env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("3 updates in ") == 1
    assert done.stderr.count("test error") == 1
    (line,) = results.read(Path("results/runs.jsonl"))
    assert line["processes"] == 2
    assert checkpoint.latest(Path("here")).step == 3


def test_a_run_writes_nothing_beside_what_it_says():
    ok("train", DIGITS, *SMALL, "--quiet", "--folder", "here", "--results", "line.jsonl")
    assert sorted(os.listdir()) == ["here", "line.jsonl"]
    assert json.loads(Path("line.jsonl").read_text())["recipe"]["name"] == PLAIN
