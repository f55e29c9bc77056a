"""A study in several processes: the same lines, whatever becomes of a process."""

import os
from pathlib import Path

import pytest
import torch
from studied import DIGITS, train

from dcnets.cli import studying
from dcnets.experiments import data
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.study import lanes, lines, work
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.robustness.study.networks import trained
from dcnets.experiments.robustness.study.tasks import Exam, Task

IMAGES = 30


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lanes") / "runs"
    for name in (DIGITS, f"{DIGITS}-tanh-cosine"):
        train(folder, name)
    return folder


@pytest.fixture
def tasks(runs):
    networks, _ = trained([runs])
    return [Task(part, each, (0, IMAGES), (Exam(trial),)) for each in networks
            for part, trial in (("tables", MAIN.fgsm), ("curves", MAIN.bim))]  # fmt: skip


def place(batch=IMAGES):
    return lanes.Place("mnist-subset", None, "cpu", batch, IMAGES, threads=1)


def measured(file):
    found = lines.read(file)[0]
    return {(each["network"], each["part"]): (each["clean"], each["attacks"]) for each in found}


class Deadly:
    """A task that ends the process that it is given to."""

    name, cost = "deadly", 1.0

    def __reduce__(self):
        return os._exit, (3,)


def full():
    raise torch.OutOfMemoryError("full")


class Large(Deadly):
    """A task for which memory does not suffice."""

    def __reduce__(self):
        return full, ()


def test_the_lines_are_those_of_one_process(tasks, tmp_path):
    arena = Arena(data.load("mnist-subset"), torch.device("cpu"), batch=IMAGES, images=IMAGES)
    assert work.carry_out(tasks, arena, tmp_path / "one.jsonl", str) == {}
    told, spent = [], []
    assert lanes.carry_out(tasks, place(), tmp_path / "two.jsonl", 2, told.append, spent.append) == {}
    assert measured(tmp_path / "two.jsonl") == measured(tmp_path / "one.jsonl")
    assert len(measured(tmp_path / "two.jsonl")) == len(told) == 4
    assert sum(spent) == sum(task.cost for task in tasks)
    assert work.missing(tasks, lines.read(tmp_path / "two.jsonl")[0]) == []


def test_a_process_that_dies_costs_its_task_alone(tasks, tmp_path):
    failed = lanes.carry_out([Deadly(), *tasks], place(), tmp_path / "a.jsonl", 1, str)
    assert failed == {"deadly": "its process ended with exit code 3"}
    assert len(measured(tmp_path / "a.jsonl")) == 4


def test_a_full_memory_ends_all(tasks, tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        lanes.carry_out([Large(), *tasks], place(), tmp_path / "a.jsonl", 1, str)
    assert not (tmp_path / "a.jsonl").exists()


def test_data_that_is_not_there_is_said(tasks, tmp_path):
    nowhere = lanes.Place("cifar10", Path("nowhere"), "cpu", 10, 10, threads=1)
    with pytest.raises(data.DataError, match="cifar10 is not in nowhere"):
        lanes.carry_out(tasks, nowhere, tmp_path / "a.jsonl", 1, str)


@pytest.mark.parametrize(("gigabytes", "jobs"), [(139, 11), (60, 5), (8, 1)])
def test_runs_at_once_become_no_more_attacks_at_once_than_a_gpu_has_memory_for(monkeypatch, gigabytes, jobs):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (gigabytes * 2**30, 200 * 2**30))
    assert studying.fitting(16, torch.device("cuda")) == jobs
    assert studying.fitting(1, torch.device("cuda")) == 1
    assert studying.fitting(16, torch.device("cpu")) == 16
