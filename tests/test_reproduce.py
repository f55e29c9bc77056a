"""Reproduction: what is missing, runs that go on after a kill, N/C and failures that stop nothing, one device or Ray."""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from command_line import environment

import dcnets
from dcnets.cli.reproduce import read_scale
from dcnets.experiments import checkpoint, data, jsonlines, recipes, results, scaling
from dcnets.experiments.lock import LOCK, held
from dcnets.experiments.paper import TABLES, Cell
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.reproduce import attacked, carry_out, lines, place, plan, timing, warmup
from dcnets.experiments.reproduce.local import LOG, PRELOADED, Local
from dcnets.experiments.reproduce.overall import Overall, progress_of
from dcnets.experiments.reproduce.perform import Ended, Order
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.study import lines as study
from dcnets.experiments.robustness.study import work
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.settings import Settings
from dcnets.experiments.signals import StoppedError

SMALL = recipes.get("mnist-subset-features2d").override(
    {"width": 2, "batch": 32, "iterations": 30, "warmup": 0, "evaluate_every": 0.1, "drops": ""}
)
KNOWN = {
    name: dataclasses.replace(SMALL, name=name, **changes)
    for name, changes in {
        "plain": {}, "tanh": {"operator": "tanh-cosine"}, "wild": {"rate": 1e30, "optimiser": "sgd"},
        "broken": {"batch": 6001},
    }.items()
}  # fmt: skip
TIMES = ("date", "seconds", "preparation", "commit")


def cell(recipe, number=1, **more):
    return Cell(number, recipe, "error", 1.0, recipe, **more)


def planned(names, tmp_path, found=(), attacks=(), get=KNOWN.__getitem__, **more):
    cells = [each if isinstance(each, Cell) else cell(each) for each in names]
    options = {"seeds": 1, "folder": tmp_path / "runs", "arithmetic": lambda _: "float32"} | more
    return plan.make(cells, list(found), attacks, get=get, **options)


def line_of(recipe, **changes):
    made = {"dcnets": dcnets.__version__, "precision": "float32", "processes": 1, "steps": 30, "top1_error": 5.0}
    return json.loads(json.dumps({**made, "recipe": dataclasses.asdict(recipe), "date": "2026-01-02T03:04:05", **changes}))


def timeless(line):
    """A line without what differs from run to run."""
    history = [{name: value for name, value in row.items() if name != "seconds"} for row in line["history"]]
    return {name: value for name, value in line.items() if name not in TIMES} | {"history": history}


def go(plan, folder, lanes=1, engine=None, order=None, **more):
    """Carry a plan out, quietly, on one thread."""
    order = order or Order(threads=1)
    return carry_out.carry_out(dict.fromkeys(plan.missing), engine or Local(lanes), order, folder / "runs.jsonl", **more)


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_each_run_is_planned_once_for_all_cells_that_need_it(tmp_path):
    found = planned(["plain", "tanh", cell("plain", 2)], tmp_path, seeds=2)
    assert [(job.recipe.name, job.recipe.seed) for job in found.jobs] == [
        ("plain", 0), ("tanh", 0), ("plain", 1), ("tanh", 1),
    ]  # fmt: skip
    assert found.cells[cell("plain")] == found.cells[cell("plain", 2)] == found.jobs[::2]
    assert found.missing == list(found.jobs)
    assert found.jobs[0].folder == tmp_path / "runs" / "plain-seed0"
    assert (found.jobs[0].updates, found.jobs[0].done) == (30, 0)
    assert planned([Cell(1, "a", "b", None)], tmp_path).jobs == ()


def test_a_line_counts_when_all_of_its_fields_are_the_same(tmp_path):
    wanted = planned(["plain"], tmp_path, seeds=2).jobs
    there = line_of(wanted[0].recipe)
    found = planned(["plain"], tmp_path, [there], seeds=2)
    assert found.there == {found.jobs[0]: there}
    assert found.missing == [found.jobs[1]]
    assert found.others == ()
    del there["recipe"]["pad_mode"]  # a line from before the field was there had its default
    assert planned(["plain"], tmp_path, [there]).missing == []
    assert planned(["plain"], tmp_path, [line_of(wanted[0].recipe, top1_error="N/C")]).missing == []


def test_an_arithmetic_counts_the_same_whether_it_was_asked_for_or_not(tmp_path):
    asked = planned(["plain"], tmp_path, precision="fp32")
    assert asked.jobs[0].recipe.precision == "fp32"
    assert planned(["plain"], tmp_path, [line_of(asked.jobs[0].recipe)]).missing == []
    assert planned(["plain"], tmp_path, [line_of(KNOWN["plain"])], precision="fp32").missing == []
    assert planned(["plain"], tmp_path, [line_of(asked.jobs[0].recipe, precision="bfloat16")]).missing != []


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"dcnets": "0.0.1"}, {"dcnets": ("0.0.1", dcnets.__version__)}),
        ({"precision": "bfloat16"}, {"precision": ("bfloat16", "float32")}),
        ({"processes": 4}, {"processes": (4, 1)}),
        ({"recipe": {"rate": 0.5}}, {"rate": (0.5, SMALL.rate)}),
        (
            {"recipe": {"name": "plain-iterations_3", "iterations": 3}},
            {"name": ("plain-iterations_3", "plain"), "iterations": (3, 30)},
        ),
    ],
)
def test_other_versions_and_settings_are_shown_and_never_counted(changes, differs, tmp_path):
    line = line_of(KNOWN["plain"])
    line |= {name: {**line["recipe"], **value} if name == "recipe" else value for name, value in changes.items()}
    found = planned(["plain", "tanh"], tmp_path, [line])
    assert found.there == {}
    assert [other.differences for other in found.others] == [differs]
    assert planned(["tanh"], tmp_path, [line]).others == ()  # of another recipe: no concern of this plan


def test_a_seed_that_nobody_asked_for_is_not_told(tmp_path):
    line = line_of(dataclasses.replace(KNOWN["plain"], seed=7))
    assert planned(["plain"], tmp_path, [line]).others == ()
    assert planned(["plain"], tmp_path, [{**line, "dcnets": "0.0.1"}]).others[0].differences.keys() == {"dcnets"}


def test_a_scaled_run_is_another_run(tmp_path):
    whole, half = planned(["plain"], tmp_path), planned(["plain"], tmp_path, scale=0.5)
    (job,) = half.jobs
    assert (job.recipe.name, job.recipe.iterations, job.updates) == ("plain-scale_0.5", 15, 15)
    assert job.folder != whole.jobs[0].folder
    found = planned(["plain"], tmp_path, [line_of(job.recipe)])
    assert found.there == {}
    assert found.others[0].differences["iterations"] == (15, 30)
    assert [scaling.scale_of(name) for name in ("plain", "plain-scale_0.5", "a-scale_0.25-from_b-scale_0.25-seed0")] == [
        1,
        0.5,
        0.25,
    ]


def test_a_scale_has_no_more_digits_than_the_name_of_its_run_tells():
    scale = read_scale("0.33333333")
    assert scale == scaling.scale_of(scaling.scaled_name("plain", scale)) == 0.333333


def test_first_weights_come_from_a_run_whose_network_is_there(tmp_path):
    cells = [dataclasses.replace(cell("tanh"), start="plain")]
    found = planned(cells, tmp_path, scale=0.5)
    source, job = found.jobs
    assert found.missing == [source, job]
    assert job.start == source.folder
    assert job.recipe.name == "tanh-scale_0.5-from_plain-scale_0.5-seed0"
    its, own = line_of(source.recipe, steps=15), line_of(job.recipe, steps=15)
    assert planned(cells, tmp_path, [its], scale=0.5).missing == [source, job]  # its line is there, its network is not
    assert planned(cells, tmp_path, [its, own], scale=0.5).missing == []  # nobody needs it any more
    checkpoint.save(source.folder, 15, {}, {})
    assert planned(cells, tmp_path, [its], scale=0.5).missing == [job]


def test_networks_are_trained_again_where_they_are_asked_for(tmp_path):
    names = ["plain", "tanh", "wild"]
    plain, tanh, wild = planned(names, tmp_path).jobs
    lines = [line_of(plain.recipe), line_of(tanh.recipe), line_of(wild.recipe, top1_error="N/C")]
    checkpoint.save(tanh.folder, 30, {}, {})
    assert planned(names, tmp_path, lines).missing == []
    found = planned(names, tmp_path, lines, networks=True)
    assert found.missing == [plain]  # the second is at hand, and there is nothing to do with one that did not converge
    assert planned(names, tmp_path, lines[:1], networks=True).missing == [plain, tanh, wild]


def test_networks_under_attack_have_to_be_there_and_black_boxes_need_another(tmp_path):
    def made(lines):
        options = {"seeds": 1, "folder": tmp_path, "arithmetic": lambda _: "float32", "scale": 0.5}
        return plan.make(TABLES["table8"].cells, lines, **options)

    found = made([])
    names = [(job.recipe.name.removesuffix("-scale_0.5"), job.recipe.seed) for job in found.jobs]
    assert {name for name, seed in names if seed == SUBSTITUTE_SEED} == {"cifar10-cnn9_attack", "cifar10-cnn9_attack-fgsm"}
    assert len(names) == len(found.missing) == 10
    lines = [line_of(job.recipe) for job in found.jobs]
    assert made(lines).missing == list(found.jobs)  # their lines are not enough
    assert attacked.tasks(made(lines), None) == ([], [])
    for job in found.jobs:
        checkpoint.save(job.folder, 30, {}, {})
    found = made(lines)
    assert found.missing == []
    targets = found.unmeasured
    assert len(targets) == 16
    assert {target.maker.folder.name for target in targets} == {"cifar10-cnn9_attack-scale_0.5-seed1000"}
    assert [bool(target.beside) for target in targets] == [False] * 8 + [True] * 8
    assert targets[-1].beside.folder.name == "cifar10-cnn9_attack-fgsm-scale_0.5-seed1000"
    assert targets[-1].job.folder.name == "cifar10-cnn9_attack-tanh-cosine-fgsm-scale_0.5-seed0"
    lost = [
        line | {"top1_error": "N/C"} if line["recipe"]["name"].startswith("cifar10-cnn9_attack-ball") else line
        for line in lines
    ]
    assert len(made(lost).unmeasured) == 12  # what did not converge is not attacked


def under(name, attack, substitute=None, number=7):
    return Cell(number, f"{attack}, {name}", "digits", 50.0, name, attack=attack, substitute=substitute)


def test_cells_under_attack_are_measured_once(tmp_path):
    cells = [under("plain", "none"), under("tanh", "fgsm"), under("tanh", "bim", "plain", 8)]
    wanted = planned(cells, tmp_path, scale=0.5)
    assert [job.recipe.seed for job in wanted.jobs] == [0, 0, SUBSTITUTE_SEED]
    go(wanted, tmp_path)
    runs = results.read(tmp_path / "runs.jsonl")
    found = planned(cells, tmp_path, runs, scale=0.5)
    targets = found.unmeasured
    assert [target.cell for target in targets] == cells[1:]
    (task,), told = attacked.tasks(found, 50)
    assert told == []
    assert [(exam.trial, exam.maker and exam.maker.recipe.seed) for exam in task.exams] == [
        (MAIN.fgsm, None), (MAIN.bim, SUBSTITUTE_SEED),
    ]  # fmt: skip
    file = attacked.beside_file(tmp_path / "runs.jsonl")
    assert file == tmp_path / "attacks.jsonl"
    arena = Arena(data.load("mnist-subset"), torch.device("cpu"), batch=50)
    assert work.carry_out([task], arena, file, str) == {}
    written = study.read(file)[0]
    assert written[0]["images"] == 50
    shares = [round(100 * each["accuracy"], 3) for each in written[0]["attacks"]]
    assert work.missing([task], written) == []
    there = planned(cells, tmp_path, runs, written, scale=0.5, images=50)
    assert list(there.measured.values()) == shares
    assert there.unmeasured == ()
    shutil.rmtree(tmp_path / "runs")
    assert planned(cells, tmp_path, runs, written, scale=0.5, images=50).missing == []  # the networks have been attacked
    assert planned(cells, tmp_path, runs, written, scale=0.5).missing == list(wanted.jobs[1:])  # on fewer images than all
    assert lines.accuracy(targets[0], targets[1].maker, written, 50, "float32", runs) is None  # nor made on that network
    (line,) = written
    for changed in ({"dcnets": "0.0.1"}, {"recipe": line["recipe"] | {"rate": 0.5}}, {"first": 7}, {"step": 14}):
        assert planned(cells, tmp_path, runs, [line | changed], scale=0.5, images=50).measured == {}
    ((key, maker),) = line["makers"].items()
    for changed in ({"step": 14}, {"recipe": maker["recipe"] | {"rate": 0.5}}):
        other = line | {"makers": {key: maker | changed}}
        assert list(planned(cells, tmp_path, runs, [other], scale=0.5, images=50).measured.values()) == shares[:1]
    asked = planned(cells, tmp_path, runs, written, scale=0.5, images=50, precision="fp32")
    assert list(asked.measured.values()) == shares  # the arithmetic counts, not how it was asked for
    for at, left in ((1, []), (2, shares[:1])):  # the line of the network's training, and of its maker's, tell theirs
        otherwise = [run | {"precision": "bfloat16"} if place == at else run for place, run in enumerate(runs)]
        assert list(planned(cells, tmp_path, otherwise, written, scale=0.5, images=50).measured.values()) == left


def test_the_value_of_a_cell():
    line = {"top1_error": 12.5, "top5_error": 3.25}
    assert lines.value(TABLES["table3"].cells[0], line) == 12.5
    assert lines.value(TABLES["table6"].cells[0], line) == 3.25
    clean, fgsm = (TABLES["table7"].cell(row, "Baseline") for row in ("Natural, no attack", "Natural, FGSM"))
    assert (lines.value(clean, line), lines.value(fgsm, line)) == (87.5, None)
    assert lines.value(clean, {"top1_error": "N/C"}) == "N/C"


def test_the_arithmetic_of_a_place():
    gpu, cpu = place.Place("cuda", "", True), place.Place("cpu", "", False)
    assert [gpu.arithmetic(SMALL), cpu.arithmetic(SMALL)] == ["bfloat16", "float32"]
    fixed = dataclasses.replace(SMALL, precision="fp32")
    assert [gpu.arithmetic(fixed), cpu.arithmetic(fixed)] == ["float32", "float32"]
    assert place.here("cpu").device == "cpu"


def test_torn_lines_are_told(tmp_path):
    file = tmp_path / "runs.jsonl"
    assert lines.runs_in(file) == ([], [])
    results.append(file, line_of(SMALL))
    results.append(file, {"recipe": "a bench", "ratio": 1})
    with open(file, "a") as stream:
        stream.write('{"rec')
    found, told = lines.runs_in(file)
    assert len(found) == 1
    assert "line 3 is torn" in told[0]


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All of the small runs one by one: folder and outcome."""
    folder = tmp_path_factory.mktemp("one")
    wanted = planned(["plain", "wild", "broken", "tanh"], folder)
    return folder, wanted, go(wanted, folder)


def test_what_diverges_is_recorded_what_fails_is_told_and_the_rest_go_on(done, capsys):
    folder, wanted, outcome = done
    found = results.read(folder / "runs.jsonl")
    assert [line["recipe"]["name"] for line in found] == ["plain", "wild", "tanh"]
    assert [line["top1_error"] == "N/C" for line in found] == [False, True, False]
    assert "not finite" in found[1]["divergence"]
    assert [job.recipe.name for job in outcome.failed] == ["broken"]
    (told,) = outcome.failed.values()
    assert told.startswith("ValueError: a batch of 6001 is larger than the training set")
    assert "Traceback" in (folder / "runs" / "broken-seed0" / LOG).read_text()
    again = planned(["plain", "wild", "broken", "tanh"], folder, found)
    assert [job.recipe.name for job in again.missing] == ["broken"]
    assert len(outcome.lines) == 3
    assert progress_of(wanted.jobs[0]) == 30


def test_two_at_once_give_the_same_lines(done, tmp_path):
    go(planned(["plain", "tanh", "wild"], tmp_path), tmp_path, lanes=2)
    one, two = (results.read(folder / "runs.jsonl") for folder in (done[0], tmp_path))
    by_name = [sorted((timeless(line) for line in found), key=lambda line: line["recipe"]["name"]) for found in (one, two)]
    assert by_name[0] == by_name[1]


def test_of_several_at_once_the_longest_are_begun_first(tmp_path):
    plain, tanh, wild, broken = planned(["plain", "tanh", "wild", "broken"], tmp_path).jobs
    ordered = carry_out.longest_first({plain: 1.0, tanh: 5.0, wild: None, broken: 5.0})
    assert list(ordered.items()) == [(wild, None), (tanh, 5.0), (broken, 5.0), (plain, 1.0)]


def test_runs_of_unknown_length_are_begun_by_how_much_there_is_to_do(tmp_path):
    eps, both = {"adversary_eps": 8 / 255}, {"clean_share": 0.5}
    ascent = eps | {"adversary_step": 2 / 255, "adversary_steps": 10}
    known = KNOWN | {
        name: dataclasses.replace(SMALL, name=name, **changes)
        for name, changes in {
            "fgsm": {"adversary": "fgsm", **eps, **both}, "pgd": {"adversary": "pgd", **ascent, "clean_share": 0.0},
            "trades": {"adversary": "trades", **ascent, "trades_weight": 6.0}, "long": {"iterations": 100},
        }.items()
    }  # fmt: skip
    jobs = planned(["plain", "fgsm", "pgd", "trades", "long", "tanh"], tmp_path, get=known.__getitem__).jobs
    ordered = [job.recipe.name for job in carry_out.longest_first(dict.fromkeys(jobs))]
    assert ordered == ["trades", "pgd", "long", "fgsm", "plain", "tanh"]


def killer(folder, number=signal.SIGKILL, step=5):
    """A thread that sends a signal to the process that runs in a folder, once it is beyond a step."""

    def kill():
        end = time.monotonic() + 120  # other runs may come first, and each process imports torch
        while time.monotonic() < end:
            at = max(map(checkpoint.step_of, checkpoint.found(folder)), default=0)
            if at >= step:
                os.kill(int((folder / LOCK).read_text()), number)
                killed.append(at)
                return
            time.sleep(0.005)

    killed = []
    thread = threading.Thread(target=kill)
    thread.start()
    return thread, killed


def test_a_killed_run_goes_on_within_its_cell(done, tmp_path, capsys):
    wanted = planned(["tanh"], tmp_path)
    thread, killed = killer(wanted.jobs[0].folder)
    outcome = go(wanted, tmp_path, order=Order(threads=1, settings=Settings(save_seconds=0, quiet=True)))
    thread.join(130)
    assert killed
    assert outcome.failed == {}
    assert "its process ended by signal 9" in capsys.readouterr().err
    (resumed,) = re.findall(r"going on after update (\d+) of 30", (wanted.jobs[0].folder / LOG).read_text())
    assert 5 <= int(resumed) < 30
    unbroken = next(line for line in results.read(done[0] / "runs.jsonl") if line["recipe"]["name"] == "tanh")
    (line,) = results.read(tmp_path / "runs.jsonl")
    assert timeless(line) == timeless(unbroken)


def test_a_run_that_ended_without_its_line_gets_it(done, tmp_path):
    folder, wanted, _ = done
    again = dataclasses.replace(wanted, there={}, jobs=wanted.jobs[:2])
    go(again, tmp_path, lanes=2)
    found = sorted(results.read(tmp_path / "runs.jsonl"), key=lambda line: line["recipe"]["name"])
    assert [timeless(line) for line in found] == [timeless(line) for line in results.read(folder / "runs.jsonl")[:2]]


def test_a_line_that_is_there_by_now_is_not_added_again(tmp_path, capsys):
    wanted = planned(["plain"], tmp_path)
    results.append(tmp_path / "runs.jsonl", line_of(wanted.jobs[0].recipe))
    outcome = go(wanted, tmp_path, engine=Scripted(lambda job, _: Ended(job, "done", line_of(job.recipe))))
    assert len(outcome.lines) == 1
    assert len(results.read(tmp_path / "runs.jsonl")) == 1


def test_who_comes_second_says_so_and_waits_for_the_folder(tmp_path, capsys):
    order = []

    def second():
        with held(tmp_path):
            order.append("second")

    with held(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(130)
    assert order == ["first", "second"]
    assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert capsys.readouterr().err == (
        f"{tmp_path} is in use: waiting for process {os.getpid()}, whose run this one goes on with\n"
    )


class Scripted:
    """An engine that hands back what a script says, run by run, and notes what it was asked."""

    lanes = width = 1

    def __init__(self, script):
        self.script, self.running, self.started, self.calls = script, [], [], []

    free = property(lambda self: not self.running)

    def start(self, job, order):
        self.started.append(job.recipe.name)
        self.running.append(job)

    def wait(self, seconds):
        ended = [self.script(job, self.started.count(job.recipe.name)) for job in self.running]
        self.running = [job for job, each in zip(self.running, ended, strict=True) if each is None]
        return [each for each in ended if each is not None]

    def stop(self):
        self.calls.append("stop")
        self.script = lambda job, _: Ended(job, "stopped")

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize("how", ["lost", "stopped"])
def test_a_process_that_is_killed_each_time_fails_in_the_end(how, tmp_path, capsys):
    def script(job, times):
        return Ended(job, how, told="gone") if job.recipe.name == "plain" else Ended(job, "done", line_of(job.recipe))

    engine = Scripted(script)
    outcome = go(planned(["plain", "tanh"], tmp_path), tmp_path, engine=engine)
    assert engine.started == ["plain"] * carry_out.TRIES + ["tanh"]
    assert list(outcome.failed.values()) == ["gone"]
    assert len(outcome.lines) == 1
    assert "close" in engine.calls


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_waits_for_its_first_weights_and_fails_with_them(fails, tmp_path, capsys):
    cells = [cell("wild"), dataclasses.replace(cell("tanh"), start="plain")]
    wanted = planned(cells, tmp_path)
    wanted = dataclasses.replace(wanted, jobs=(wanted.jobs[2], *wanted.jobs[:2]))  # the one that waits comes first

    def script(job, times):
        bad = fails and job.recipe.name == "plain"
        return Ended(job, "failed", told="no") if bad else Ended(job, "done", line_of(job.recipe))

    engine = Scripted(script)
    outcome = go(wanted, tmp_path, engine=engine)
    assert engine.started == (["wild", "plain"] if fails else ["wild", "plain", "tanh-from_plain-seed0"])
    assert len(outcome.failed) == (2 if fails else 0)
    assert not fails or "which failed" in list(outcome.failed.values())[1]


def test_the_server_that_runs_are_forked_from_touches_no_gpu():
    code = f"import torch\ntorch._C._cuda_getDeviceCount = None\nimport {PRELOADED}\nassert not torch.cuda.is_initialized()"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=60)


def test_first_weights_reach_the_run(tmp_path):
    still = {"iterations": 1, "rate": 1e-30, "filters": "standard"}
    quick = KNOWN | {"tanh": dataclasses.replace(KNOWN["tanh"], **still)}
    found = planned([dataclasses.replace(cell("tanh"), start="plain")], tmp_path, get=quick.__getitem__)
    assert go(found, tmp_path, lanes=2).failed == {}
    one, two = (checkpoint.latest(job.folder).tensors["model.classifier.weight"] for job in found.jobs)
    assert (one - two).abs().max() < 1e-6
    assert len(results.read(tmp_path / "runs.jsonl")) == 2


def test_a_signal_stops_all_and_says_how_to_go_on(tmp_path, capsys):
    def script(job, times):
        if job.recipe.name == "plain":
            return Ended(job, "done", line_of(job.recipe))
        os.kill(os.getpid(), signal.SIGTERM)
        return None

    engine = Scripted(script)
    with pytest.raises(StoppedError, match="stopped after 1 of 2 runs; the same command goes on") as error:
        go(planned(["plain", "tanh"], tmp_path), tmp_path, engine=engine)
    assert error.value.signal == signal.SIGTERM
    assert engine.calls == ["stop", "close"]
    assert len(results.read(tmp_path / "runs.jsonl")) == 1


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_warm_up_measures_each_kind_once_and_remembers(tmp_path, monkeypatch):
    told, order = [], Order(threads=1)
    jobs = planned(["plain", "wild", "tanh"], tmp_path).jobs
    found = warmup.paces(jobs, order, tmp_path, told.append)
    assert found[jobs[0]] is found[jobs[1]]
    assert found[jobs[2]] is not found[jobs[0]]
    assert told == ["warm-up: a few updates of plain, tanh"]
    assert all(0 < pace.update < pace.preparation < 60 for pace in found.values())
    monkeypatch.setattr(warmup, "timed", lambda *_: pytest.fail("measured again"))
    assert warmup.paces(jobs, order, tmp_path, told.append) == found
    written = jsonlines.read(tmp_path / warmup.FILE)
    with open(tmp_path / warmup.FILE, "ab") as file:
        file.write(b'{"device": "torn')
    assert warmup.paces(jobs, order, tmp_path, told.append) == found
    assert {(line["device"], line["lanes"]) for line in written} == {(results.environment("cpu")["device"], 1)}
    assert [line["recipe"] for line in written] == ["plain", "tanh"]


def test_whether_several_at_once_pay(tmp_path, monkeypatch):
    pace = warmup.Pace(0.1, 1.0, 2.0)
    slower = dataclasses.replace(pace, update=0.16)
    asked = []

    def paced(recipes, turns, *_):
        asked.append((len(recipes), [len(turn) for turn in turns]))
        return [[pace], [slower, slower]]

    monkeypatch.setattr(warmup, "timed", paced)
    for _ in range(2):
        assert warmup.gain(SMALL, Order(), tmp_path, 2, lambda _: None) == pytest.approx(1.25)
    assert asked == [(2, [1, 2])]  # the same processes alone and together, and once


def test_what_is_prepared_at_once_is_timed_in_turns(tmp_path, monkeypatch):
    begun, log = [], tmp_path / "log.txt"
    real = timing.together
    monkeypatch.setattr(timing, "together", lambda lines: begun.append(len(lines)) or real(lines))
    broken = dataclasses.replace(SMALL, network="nothing")
    found = timing.timed([SMALL, broken, SMALL], [[0], [1], [0, 2]], Order(threads=1), log)
    assert [turn and len(turn) for turn in found] == [1, None, 2]
    assert begun == [1, 2]  # the broken one was not waited for
    assert "unknown network 'nothing'" in log.read_text()


def test_what_cannot_be_measured_is_told_and_streams_are_not_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "timed", lambda recipes, turns, *_: [None for _ in turns])
    jobs = planned(["plain"], tmp_path).jobs
    stream = dataclasses.replace(jobs[0], recipe=recipes.get("imagenet-resnet18"))
    told = []
    assert warmup.paces([*jobs, stream], Order(), tmp_path, told.append) == {jobs[0]: None, stream: None}
    assert told[-1] == f"plain could not be measured; why is in {tmp_path / warmup.LOG}"
    with pytest.raises(warmup.WarmupError, match=r"plain could not be measured; why is in .*warmup.txt"):
        warmup.gain(jobs[0].recipe, Order(), tmp_path, 2, told.append)


def test_the_seconds_of_a_run(tmp_path):
    (job,) = planned(["plain"], tmp_path).jobs  # 30 updates, a test every 19
    pace = warmup.Pace(0.5, 3.0, 2.0)
    assert pace.seconds(job) == 2 + 30 * 0.5 + 2 * 3
    checkpoint.save(job.folder, 20, {}, {})
    assert pace.seconds(job) == 2 + 10 * 0.5 + 1 * 3


def test_the_bar_of_all_runs(tmp_path, monkeypatch):
    jobs = planned(["plain", "tanh"], tmp_path).jobs
    checkpoint.save(jobs[0].folder, 10, {}, {})
    bar = Overall("table1", dict(zip(jobs, (60.0, 180.0), strict=True)), lanes=2)
    assert (bar.total, bar.see([], set())) == (60, 10)
    assert bar.time_told() == "2:00 left"  # 240 seconds of work in two lanes
    jsonlines.append(jobs[0].folder / "metrics.jsonl", {"step": 20})
    bar.update(bar.see([jobs[0]], set()), None, None, None)
    assert bar.numbers() == ["run 0/2", "update 20/60", "plain, seed 0 66 %"]
    monkeypatch.setattr(time, "perf_counter", lambda: bar.begin + 30)
    assert bar.time_told() == "3:30 left"  # half of the first run's 60 took 30: so will the other 210
    bar.update(bar.see([], set(jobs)), None, None, None)
    assert bar.time_told() == "in 0:30"
    assert Overall("", dict.fromkeys(jobs), lanes=1).time_told() == "– left"


# -- Ray ---------------------------------------------------------------------------------------------------------------

ON_RAY = """
import sys
from pathlib import Path
import test_reproduce as here
from dcnets.experiments.reproduce.ray_engine import Ray

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    wanted = here.planned(["plain", "wild", "broken", "tanh"], folder)
    engine = Ray(2)
    assert engine.place("cpu").device == "cpu"
    assert engine.width == 2
    thread, killed = here.killer(wanted.jobs[3].folder)
    order = here.Order(threads=1, settings=here.Settings(save_seconds=0, quiet=True))
    outcome = here.go(wanted, folder, engine=engine, order=order)
    thread.join(130)
    assert killed
    print(*(f"{job.recipe.name}: {told}" for job, told in outcome.failed.items()))
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")
def test_ray_gives_the_same_lines_and_runs_a_killed_workers_cell_again(done, tmp_path):
    tests = os.path.dirname(__file__)
    path = os.pathsep.join([tests, environment()["PYTHONPATH"]])
    ran = subprocess.run(
        [sys.executable, "-c", ON_RAY, str(tmp_path)], env=environment(PYTHONPATH=path, RAY_ADDRESS=""), text=True,
        capture_output=True, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("broken: ValueError: a batch of 6001 is larger than")
    assert "tanh, seed 0: " in ran.stderr
    assert "it is run again" in ran.stderr
    one, two = (results.read(folder / "runs.jsonl") for folder in (done[0], tmp_path))
    by_name = [sorted((timeless(line) for line in found), key=lambda line: line["recipe"]["name"]) for found in (one, two)]
    assert by_name[0] == by_name[1]


@pytest.mark.parametrize(("needs", "width"), [((1, 0.5), 16), ((2, 0), 32)])
def test_the_width_of_a_cluster_is_that_of_all_its_devices(needs, width):
    from dcnets.experiments.reproduce.ray_engine import Ray

    engine = Ray.__new__(Ray)
    engine.ray = SimpleNamespace(cluster_resources=lambda: {"GPU": 8.0, "CPU": 64.0})
    engine.needs = dict(zip(("num_cpus", "num_gpus"), needs, strict=True))
    assert engine.width == width


def test_ray_is_asked_for_by_its_extra(monkeypatch):
    from dcnets.experiments.reproduce.ray_engine import Ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"needs the package ray .*pip install 'dcnets\[ray\]'"):
        Ray(1)
