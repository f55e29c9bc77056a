"""`dcnets study`: a whole study of small networks, one that goes on, its tables, and what it refuses."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from command_line import call, ok, refused, start
from studied import DIGITS, exam, line, train

from dcnets.experiments import results
from dcnets.experiments.robustness import setting
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.setting import MAIN, Setting
from dcnets.experiments.robustness.study import networks, tasks
from dcnets.experiments.robustness.study import work as working
from dcnets.experiments.robustness.trials import Trial
from dcnets.experiments.study_parts import PARTS

TANH, FGSM = f"{DIGITS}-tanh-cosine", f"{DIGITS}-fgsm"
SMALL = ("--images", "40", "--few", "20", "--device", "cpu", "--no-autoattack")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "runs"
    for name, seed in ((DIGITS, 0), (TANH, 0), (DIGITS, 1000)):
        train(folder, name, seed)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def quick(monkeypatch):
    """Digits in the place of the paper's photographs, and less to try."""
    monkeypatch.setattr(networks, "PAPERS", ("mnist-subset", "features2d"))
    monkeypatch.setattr(working, "GRID", (MAIN, Setting(4, "2 steps of ε/2")))
    monkeypatch.setattr(tasks, "Plan", lambda trial, **_: Plan(Trial("pgd", trial.eps, step=0.02, steps=2), 2, 3))


def test_lines_that_have_no_place_are_told_before_anything_is_measured(quick, runs):
    Path("afile").write_text("")
    assert "afile: Not a directory" in refused(1, "study", runs, *SMALL, "--results", "afile/attacks.jsonl")


def test_a_whole_study(quick, runs):
    result = call("study", runs, *SMALL)
    assert result.exit_code == 0, result.stderr
    written = results.read(Path("results/attacks.jsonl"))
    assert written[0]["part"] == "setting"
    counted = {part: sum(each["part"] == part for each in written) for part in PARTS}
    assert counted == dict.fromkeys(PARTS, 2)  # of two networks; the substitute is no victim
    assert result.stdout == "3 networks, 13 new measurements; the lines are in results/attacks.jsonl\n"  # with the search
    assert "looking for the setting under which the baseline is nearest to the paper's" in result.stderr
    assert "study: 12 measurements to do, in about" in result.stderr
    again = call("study", runs, *SMALL)
    assert again.stdout == "3 networks, 0 new measurements; the lines are in results/attacks.jsonl\n"
    assert again.stderr == ""
    assert len(results.read(Path("results/attacks.jsonl"))) == 13


def test_a_frozen_setting_outlives_the_networks_that_it_was_sought_with(quick, runs):
    ok("study", runs / f"{DIGITS}-seed0", *SMALL, "--parts", "frozen", "--quiet")
    ok("study", runs / f"{TANH}-seed0", *SMALL, "--parts", "frozen", "--quiet")
    sought, own, other = results.read(Path("results/attacks.jsonl"))
    assert [each["part"] for each in (sought, own, other)] == ["setting", "frozen", "frozen"]
    assert [each["eps"] for each in other["attacks"]] == [each["eps"] for each in own["attacks"]]


def test_parts_and_a_dry_run(quick, runs):
    told = call("study", runs, *SMALL, "--parts", "lipschitz,frozen", "--dry-run")
    assert told.stdout == "3 networks, 5 measurements to do\n"  # two of each part, and the search for a setting
    assert "study: 5 measurements to do, in about" in told.stderr
    assert not Path("results").exists()
    ok("study", runs, *SMALL, "--parts", "curves", "--results", "mine.jsonl", "--quiet")
    assert [each["part"] for each in results.read(Path("mine.jsonl"))] == ["curves", "curves"]


def test_more_images_than_a_setting_was_sought_among_keep_apart_from_those(quick, runs):
    ok("study", runs / f"{DIGITS}-seed0", *SMALL, "--parts", "frozen", "--quiet")
    ok("study", runs / f"{TANH}-seed0", *SMALL, "--images", "100", "--parts", "frozen", "--quiet")
    sought, _, other = results.read(Path("results/attacks.jsonl"))
    assert (sought["first"], sought["images"]) == (20, 20)
    assert (other["first"], other["images"]) == (0, 20)


def test_two_networks_at_once(runs):
    result = call("study", runs, *SMALL, "--parts", "tables,curves", "--jobs", "2")
    assert result.exit_code == 0, result.stderr
    assert "study: 4 measurements to do, in about" in result.stderr
    assert "one at a time" in result.stderr
    assert len(results.read(Path("results/attacks.jsonl"))) == 4


def test_photographs_are_not_sought_among_digits(runs):
    ok("study", runs, *SMALL, "--parts", "frozen", "--quiet")
    assert not Path("results").exists()


def test_a_killed_study_goes_on(runs):
    command = ("study", runs, *SMALL, "--parts", "tables,matrix,curves,lipschitz")
    process = start(*command)
    file = Path("results/attacks.jsonl")
    try:
        for _ in range(1200):
            if file.exists() and file.stat().st_size:
                break
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate(timeout=60)
    before = results.read(file)
    assert 0 < len(before) < 8
    ok(*command, "--quiet")
    after = results.read(file)
    assert after[: len(before)] == before
    assert len(after) == 8
    assert len({(each["part"], each["network"]) for each in after}) == 8


def test_the_tables_of_a_file():
    results.append(Path("results/attacks.jsonl"), line("tables", "cifar10-cnn9_attack", attacks=[exam(MAIN.fgsm, 0.25)]))
    text = ok("study", "--tables")
    assert text.startswith(f"### Table 7, white-box, ours: {setting.MAIN}\n")
    assert "| Natural, FGSM | 0 | 25.0 (18.82) |" in text
    assert refused(1, "study", "--tables", "--scale", "0.5").startswith("error: there are no lines of a study")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--parts", "tabels"], 2, "error: unknown part 'tabels'; did you mean 'tables'?"),
        (["--few", "0"], 2, "error: --few is a whole number, 1 or more, got '0'"),
        (["--scale", "0.5"], 2, "error: --scale chooses the lines of --tables"),
        (
            [".", "--no-autoattack"],
            1,
            "error: no trained network is in these folders; dcnets reproduce table7 table8 trains",
        ),
        (["nowhere"], 2, "error: path 'nowhere' does not exist"),
    ],
)
def test_what_is_refused(arguments, code, told):
    assert told.removeprefix("error: ") in refused(code, "study", *arguments)


def test_a_line_is_strict_json(quick, runs):
    ok("study", runs, *SMALL, "--parts", "lipschitz,masking", "--quiet")
    for text in Path("results/attacks.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda word: pytest.fail(word))
