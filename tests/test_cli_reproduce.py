"""`dcnets reproduce`: what a person names, what is said beforehand, what is done, and how it ends."""

import dataclasses
import fcntl
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import call, environment, ok, refused
from studied import QUICK as LEARNED

from dcnets.cli import reproducing, supply, tables
from dcnets.experiments import checkpoint, paper, recipes, results
from dcnets.experiments.data import DataError
from dcnets.experiments.paper import FIGURES, OWN_ROWS, TABLES, Cell, Table
from dcnets.experiments.paper.beside import FC_RELU
from dcnets.experiments.report import rule
from dcnets.experiments.reproduce import plan, warmup
from dcnets.experiments.reproduce.local import LOG, Local
from dcnets.experiments.reproduce.perform import Order

PLAIN, TANH = "mnist-subset-features2d", "mnist-subset-features2d-tanh-cosine"
TINY = Table(
    1, "digits", "top1_error", ("Baseline", "TanhConv"), ("Cosine", "Linear"),
    (Cell(1, "Baseline", "Cosine", 50.0, PLAIN), Cell(1, "Baseline", "Linear", None),
     Cell(1, "TanhConv", "Cosine", 40.0, TANH), Cell(1, "TanhConv", "Linear", "N/C", TANH)),
)  # fmt: skip
QUICK = ("--scale", "0.002", "--threads", "1", "--device", "cpu")
"""Two updates a run."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def paced(alone, together=None):
    """Stands for `timing.timed`: seconds of an update alone, and of one beside others; it takes no time."""
    pace = {False: warmup.Pace(alone, 1.0, 0.25), True: warmup.Pace(together or alone, 1.0, 0.25)}
    return lambda recipes, turns, *_: [[pace[len(turn) > 1]] * len(turn) for turn in turns]


@pytest.fixture
def tiny(monkeypatch):
    """A paper of one small table, and a warm-up that takes no time."""
    monkeypatch.setattr(paper, "TABLES", {"table1": TINY})
    monkeypatch.setattr(warmup, "timed", paced(0.5))


# -- names -------------------------------------------------------------------------------------------------------------


def test_tables_and_cells_by_name_or_pattern():
    every = [cell for table in TABLES.values() for cell in (*table.cells, *OWN_ROWS.get(table.name, ()))]
    assert tables.chosen(["all"], []) == every
    assert [cell.table for cell in tables.chosen(["table2", "table1", "table2"], [])] == [2] * 12 + [1] * 6
    assert [tables.read_table(text) for text in ("table3", "3", "Table3", "all")] == ["table3"] * 3 + ["all"]

    def names(*patterns):
        return [cell.name for cell in tables.chosen(["table3"], patterns)]

    assert names("segconv/sq_cosine_without_relu") == ["segconv/sq_cosine_without_relu"]
    assert len(names("SegConv")) == 4
    assert len(names("segconv/*", "tanhconv/cosine*")) == 6
    assert names("cifar100-cnn9-log-cosine") == ["logconv/cosine_without_relu", "logconv/cosine_with_relu"]
    assert names("*-log-cosine") == ["logconv/cosine_with_relu"]
    beside = tables.chosen(["pgd", "variants"], ["*_bim/tanhconv"])
    assert len(beside) == 7
    assert {cell.published for cell in beside} == {None}
    (second,) = tables.chosen(["table3"], ["fc_relu"])
    assert (second.row, second.recipe) == (FC_RELU.row, "cifar100-cnn9-no_relu-fc_relu")
    for number in (4, 6, 7):
        assert [cell.recipe for cell in tables.chosen([f"fig{number}"], [])] == list(FIGURES[number].recipes)
    assert len(tables.chosen(["fig4", "table4"], [])) == len(TABLES["table4"].cells)  # none twice


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "error: missing TABLE..., such as table3; all is every table; see dcnets reproduce --help"),
        (["tabel3"], "error: unknown table 'tabel3'; did you mean 'table3'? choose one of all, fig4, fig6, fig7, pgd"),
        (["9"], "error: unknown table 'table9'; did you mean 'table"),
        (
            ["table2", "--cells", "segconf/cosine"],
            "error: no cell 'segconf/cosine' in table2; did you mean 'segconv/cosine'? choose one of baseline/cosine,",
        ),
        (["table4", "--cells", "tanhconv/*", "--cells", "x*"], "error: no cell 'x*' in table4; choose one of"),
        (
            ["table4", "--cells", "sphereconf"],
            "error: no cell 'sphereconf' in table4; did you mean 'sphereconv'? choose one of ballconv, baseline, linearconv",
        ),
        (["table5", "--cells", "resnet_110"], "error: none of these cells can be run: the paper has a dash there"),
        (["table1", "--scale", "2"], "error: --scale is a number above 0 and at most 1, got '2'"),
        (["table1", "--scale", "half"], "error: --scale is a number above 0 and at most 1, got 'half'"),
        (["table1", "--seeds", "0"], "error: --seeds is a whole number, 1 or more, got '0'"),
        (["table1", "--jobs", "none"], "error: --jobs is a whole number, 1 or more, got 'none'"),
        (["table1", "--engine", "rai"], "error: unknown engine 'rai'; did you mean 'ray'? choose one of local, ray"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments, told):
    assert refused(2, "reproduce", *arguments).startswith(told)


# -- what is said ------------------------------------------------------------------------------------------------------


def test_the_plan_is_said_first_and_a_dry_run_does_nothing(tiny):
    shown = ok("reproduce", "table1", "--dry-run", "--seeds", "3", "--jobs", "2", *QUICK)
    assert re.search(rf"1 +tanhconv/cosine +40.00 +{TANH} +0 +3\n", shown)
    assert re.search(rf"1 +tanhconv/linear +N/C +{TANH} +0 +3\n", shown)
    assert "baseline/linear" not in shown
    assert "left out: 1 that are dashes, or that the paper took from elsewhere\n" in shown
    # 2 updates of 0.5 s, a test of 1 s and 0.25 s before: 2.25 s a run, two at once
    assert re.search(r"3 cells, 3 seeds: 6 runs, of which 0 are there and 6 to do, in about 6.75 s on .*, 2 at once", shown)
    assert "schedules × 0.002: these numbers are not the paper's" in shown
    assert sorted(path.name for path in Path("runs").iterdir()) == [warmup.FILE]
    assert not Path("results").exists()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_cell_has_its_name_on_every_terminal(monkeypatch, width):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    shown = ok("reproduce", "table7", "--seeds", "2", "--dry-run", "--no-warm-up", COLUMNS=str(width))
    assert all(cell.name in shown for cell in TABLES["table7"].cells)
    assert "paper" in shown or width == 60


def test_a_row_of_our_own_and_the_networks_of_figures_are_planned(monkeypatch):
    monkeypatch.setattr(warmup, "timed", paced(0.5))
    shown = ok("reproduce", "table3", "--cells", "fc_relu", "--dry-run", "--device", "cpu")
    assert f"not in the paper, a row of our own: {FC_RELU.name}\n" in shown
    assert "1 cell, 1 seed: 1 run, of which 0 are there and 1 to do" in shown
    shown = ok("reproduce", "fig6", "fig7", "--cells", "tanhconv", "--dry-run", "--device", "cpu")
    assert re.search(r"fig6 +natural/tanhconv +– +mnist-features2d-tanh-cosine +0 +1\n", shown)
    assert re.search(r"fig7 +fgsm_trained/tanhconv +– +mnist-features2d-tanh-cosine-fgsm +0 +1\n", shown)
    found = json.loads(ok("reproduce", "fig6", "fig4", "--json", "--dry-run", "--device", "cpu"))
    assert [(each["table"], each["figure"], each["metric"]) for each in found["cells"]] == [
        *[(None, 6, "top1_error")] * 4, *[(4, None, "top1_error")] * 8,
    ]  # fmt: skip


def test_the_time_told_is_that_of_all_devices_together(tiny, monkeypatch):
    monkeypatch.setattr(Local, "width", 3)
    shown = ok("reproduce", "table1", "--dry-run", "--seeds", "3", *QUICK)
    assert "6 runs, of which 0 are there and 6 to do, in about 4.5 s on" in shown  # 6 × 2.25 s, three at a time
    assert ", 3 at once" in shown
    assert "in about 2.25 s on" in ok("reproduce", "table1", "--dry-run", *QUICK)  # no run is shared


def test_what_does_not_pay_is_not_done(tiny, monkeypatch):
    monkeypatch.setattr(warmup, "timed", paced(0.5, 0.95))
    result = call("reproduce", "table1", "--dry-run", "--jobs", "2", *QUICK)
    assert f"warm-up: 2 runs at once do 1.05 times the updates of one ({PLAIN}-scale_0.002): one at a time" in result.stderr
    assert "at once" not in result.stdout


def test_without_a_warm_up_nothing_is_timed_and_as_many_run_as_were_asked_for(tiny, monkeypatch):
    monkeypatch.setattr(warmup, "timed", lambda *_: pytest.fail("timed"))
    widths = []
    monkeypatch.setattr(Local, "start", lambda self, *_: pytest.fail("started"))
    monkeypatch.setattr(Local, "close", lambda self: widths.append(self.width))
    shown = ok("reproduce", "table1", "--dry-run", "--no-warm-up", "--jobs", "2", *QUICK)
    assert "2 runs, of which 0 are there and 2 to do; 2 are not timed beforehand\n" in shown
    assert widths == [2]
    assert not Path("runs").exists()


def test_lines_of_other_settings_are_shown(tiny):
    ok("train", PLAIN, "--width", "2", "--iterations", "1", "--quiet", "--device", "cpu")
    shown = ok("reproduce", "1", "--dry-run", *QUICK)
    (told,) = re.findall("there, but not the same: (.*)", shown)
    assert told.startswith(f"{PLAIN}-width_2-iterations_1, seed 0, of 20")
    assert "width 2, not 8" in told
    assert "2 runs, of which 0 are there" in shown


def test_a_cluster_is_not_measured_from_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(warmup, "paces", lambda *_: pytest.fail("measured"))
    assert reproducing.expected(["a run"], Order("cuda"), Path(), pytest.fail) == {"a run": None}


def test_numbers_as_they_are_shown():
    assert rule.mean_of([26.5]) == "26.50"
    assert rule.mean_of([26.0, 27.0, "N/C"]) == "26.50 ± 0.71, 1 × N/C"
    assert rule.mean_of(["N/C"]) == "N/C"
    assert [rule.printed(number) for number in (21.6, "N/C", None)] == ["21.60", "N/C", "–"]


# -- what is done ------------------------------------------------------------------------------------------------------


def test_cells_are_run_and_found_again(tiny):
    result = call("reproduce", "table1", *QUICK)
    assert result.exit_code == 0, result.stderr
    plain, tanh = results.read(Path("results/runs.jsonl"))
    assert [line["recipe"]["name"] for line in (plain, tanh)] == [f"{PLAIN}-scale_0.002", f"{TANH}-scale_0.002"]
    assert plain["steps"] == 2
    assert f"{PLAIN}-scale_0.002, seed 0: {plain['top1_error']:.2f} (paper 50.00)" in result.stderr
    assert f"seed 0: {tanh['top1_error']:.2f} (paper 40.00), {tanh['top1_error']:.2f} (paper N/C)" in result.stderr
    assert re.search(rf"baseline/cosine +50.00 +{plain['top1_error']:.2f} +1\n", result.stdout)
    assert f"their lines in {Path('results/runs.jsonl')}" in result.stdout
    again = call("reproduce", "table1", *QUICK)
    assert "2 runs, of which 2 are there and 0 to do\n" in again.stdout
    assert (again.exit_code, again.stderr) == (0, "")
    assert len(results.read(Path("results/runs.jsonl"))) == 2
    folder = Path("runs") / f"{PLAIN}-scale_0.002-seed0"
    shutil.rmtree(folder)
    assert "2 runs, of which 2 are there and 0 to do\n" in ok("reproduce", "table1", *QUICK)  # its line will do,
    assert "2 runs, of which 1 is there and 1 to do" in ok("reproduce", "table1", "--networks", *QUICK)  # unless asked for
    assert checkpoint.found(folder)
    assert len(results.read(Path("results/runs.jsonl"))) == 2
    found = json.loads(ok("reproduce", "table1", "--json", "--seeds", "2", "--dry-run", *QUICK))
    assert (found["runs"], found["missing"], found["seconds"]) == (4, 2, 4.5)
    assert found["cells"][0]["runs"][0] == {
        "recipe": f"{PLAIN}-scale_0.002", "seed": 0, "there": True, "value": plain["top1_error"],
    }  # fmt: skip
    assert found["cells"][0]["runs"][1]["value"] is None


def test_accuracies_under_attack_are_measured_and_shown(tiny, monkeypatch):
    cells = (Cell(7, "Natural, FGSM", "TanhConv", 52.6, TANH, attack="fgsm"),
             Cell(7, "Natural, BIM", "TanhConv", 10.18, TANH, attack="bim", substitute=PLAIN))  # fmt: skip
    table = Table(7, "", "accuracy", ("Natural, FGSM", "Natural, BIM"), ("TanhConv",), cells)
    monkeypatch.setattr(paper, "TABLES", {"table7": table})
    short = {name: dataclasses.replace(recipes.get(name), **LEARNED) for name in (PLAIN, TANH)}
    monkeypatch.setattr(recipes, "get", short.__getitem__)
    monkeypatch.setattr(
        "dcnets.experiments.reproduce.plan.make.__kwdefaults__", plan.make.__kwdefaults__ | {"get": short.get}
    )
    command = ("reproduce", "table7", "--threads", "1", "--device", "cpu", "--images", "40")
    torch.set_num_threads(2)
    result = call(*command)
    assert result.exit_code == 0, result.stderr
    assert torch.get_num_threads() == 1  # attacks have as many threads as runs
    assert "attacks: 1 measurements to do, in about" in result.stderr
    (line,) = results.read(Path("results/attacks.jsonl"))
    fgsm, bim = (100 * each["accuracy"] for each in line["attacks"])
    assert re.search(rf"natural_fgsm/tanhconv +52.60 +{fgsm:.2f} +1\n", result.stdout)
    assert re.search(rf"natural_bim/tanhconv +10.18 +{bim:.2f} +1\n", result.stdout)
    again = call(*command)
    assert (again.exit_code, again.stderr) == (0, "")
    assert len(results.read(Path("results/attacks.jsonl"))) == 1
    found = json.loads(ok(*command, "--json"))
    assert [cell["runs"][0]["value"] for cell in found["cells"]] == [pytest.approx(fgsm), pytest.approx(bim)]
    whole = json.loads(ok("reproduce", "table7", "--device", "cpu", "--dry-run", "--json"))
    assert [cell["runs"][0]["value"] for cell in whole["cells"]] == [None, None]  # measured on fewer images


@pytest.mark.parametrize(("option", "path"), [("--results", "taken/runs.jsonl"), ("--folder", "taken/runs")])
def test_what_cannot_be_kept_is_told_before_the_work(tiny, option, path):
    Path("taken").write_text("a file\n")
    told = refused(1, "reproduce", "table1", option, path, *QUICK)
    assert told == f"error: {Path('taken').absolute()}: Not a directory"
    assert not list(Path.cwd().glob("**/metrics.jsonl"))
    assert ok("reproduce", "table1", option, path, "--dry-run", "--no-warm-up", *QUICK)


def test_images_that_are_not_there_are_told_and_the_rest_go_on(tiny, monkeypatch, tmp_path):
    cells = (Cell(1, "Baseline", "Cosine", 12.63, "imagenet-resnet18"), TINY.cells[0])
    monkeypatch.setattr(paper, "TABLES", {"table1": Table(1, "", "top1_error", ("Baseline",), ("Cosine", "Digits"), cells)})
    result = call("reproduce", "table1", "--data", tmp_path / "nothing", "--json", *QUICK)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: 1 of 2 runs failed: its images are not there (data set folder)")
    found = json.loads(result.stdout)
    assert list(found["failed"]) == ["imagenet-resnet18-scale_0.002, seed 0"]
    assert found["missing"] == 1
    assert len(results.read(Path("results/runs.jsonl"))) == 1


def test_a_download_that_fails_is_told_and_the_rest_go_on(tiny, monkeypatch):
    def fetched(remote, folder, report):
        raise DataError(f"cannot download {remote.path}; put it there yourself")

    cells = (Cell(1, "Baseline", "Cosine", 26.01, "cifar100-cnn9"), TINY.cells[0])
    monkeypatch.setattr(paper, "TABLES", {"table1": Table(1, "", "top1_error", ("Baseline",), ("Cosine", "Digits"), cells)})
    monkeypatch.setattr(supply, "fetch", fetched)
    result = call("reproduce", "table1", "--data", "nothing", "--json", *QUICK)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: 1 of 2 runs failed: cannot download cifar-100")
    assert list(json.loads(result.stdout)["failed"]) == ["cifar100-cnn9-scale_0.002, seed 0"]
    assert len(results.read(Path("results/runs.jsonl"))) == 1


def test_a_gpu_that_is_not_there(tiny, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert refused(1, "reproduce", "table1", "--device", "cuda").startswith("error: torch sees no GPU here")


# -- processes ---------------------------------------------------------------------------------------------------------

LONG = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_cli_reproduce import TINY, paced, warmup
from dcnets.experiments import paper
paper.TABLES = {{"table1": TINY}}
warmup.timed = paced(0.5)
from dcnets.cli import main
main()
"""
SLOW = (
    "reproduce",
    "table1",
    "--scale",
    "0.5",
    "--threads",
    "1",
    "--device",
    "cpu",
    "--save-seconds",
    "0",
    "--cells",
    "tanh*",
)


@pytest.fixture
def begun():
    """Begin the command and wait until its run is beyond some updates; what still runs at the end is killed."""
    processes = []

    def begin(folder, beyond=3):
        command = [sys.executable, "-c", LONG, *SLOW]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=environment(), **pipes))
        for _ in range(600):
            if max(map(checkpoint.step_of, checkpoint.found(folder)), default=0) > beyond:
                return processes[-1]
            time.sleep(0.05)
        return pytest.fail("no run began")

    yield begin
    for process in processes:
        process.kill()
        process.communicate(timeout=60)


def free(folder):
    """Wait until nobody holds a folder."""
    with open(folder / "lock") as file:
        for _ in range(600):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.05)
    pytest.fail("the run goes on without its command")


def test_a_signal_saves_and_even_a_kill_leaves_nothing_running(begun):
    folder = Path(f"runs/{TANH}-scale_0.5-seed0")
    process = begun(folder)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert told.splitlines()[-1] == "stopped after 0 of 1 runs; the same command goes on"
    assert "Traceback" not in told
    assert not Path("results").exists()
    before = checkpoint.latest(folder).step
    assert before > 3

    process = begun(folder, before)  # goes on with it
    process.kill()
    process.communicate(timeout=60)
    free(folder)
    assert f"going on after update {before} of 600" in (folder / LOG).read_text()
    assert before < checkpoint.latest(folder).step < 600
