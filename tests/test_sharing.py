"""Runs that share a GPU: a daemon of their own, which ends with them; and what happens where there is none."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from command_line import call, environment, ok
from test_cli_reproduce import TINY, paced
from test_reproduce import planned

from dcnets.experiments import jsonlines, paper, results
from dcnets.experiments.reproduce import mps, sharing, timing, warmup
from dcnets.experiments.reproduce.local import Local
from dcnets.experiments.reproduce.mps import LOGS, PIPES
from dcnets.experiments.reproduce.perform import Order
from dcnets.experiments.reproduce.place import Place
from dcnets.experiments.reproduce.sharing import shared_gpu

PROGRAM = """#!/bin/sh
read said
echo "$@$said $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY ${CUDA_VISIBLE_DEVICES-all}" >> "$RECORD"
case "$MOOD $@$said" in
"fails -d") echo "no driver"; exit 3 ;;
"hangs -d" | "deaf get_server_list" | "stubborn quit"*) exec sleep 60 ;;
*" -d")
    [ "$MOOD" = slow ] || touch "$DAEMON.lives"
    ([ "$MOOD" = slow ] && sleep 0.3 && touch "$DAEMON.lives"; while [ -e "$DAEMON.lives" ]; do sleep 0.02; done) &
    echo $! > "$DAEMON" ;;
*get_server_list) [ -e "$DAEMON.lives" ] ;;
*quit*) rm "$DAEMON.lives" ;;
esac
"""
"""What stands for nvidia-cuda-mps-control: it records how it was called, and its daemon lives until it is told to quit."""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program on PATH, and a CUDA that starts; a function tells the calls as lists of words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / mps.PROGRAM).write_text(PROGRAM)
    (folder / mps.PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("DAEMON", str(tmp_path / "daemon"))
    for name in (PIPES, LOGS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mps, "CUDA_STARTS", "")
    monkeypatch.setattr(sharing, "PLACE", tempfile.mkdtemp(prefix="p", dir="/tmp"))  # short, and nobody else's

    def calls():
        record = tmp_path / "record"
        return [line.split() for line in record.read_text().splitlines()] if record.exists() else []

    yield calls
    (tmp_path / "daemon.lives").unlink(missing_ok=True)  # what a failed test has left ends
    shutil.rmtree(sharing.PLACE)


def daemon_runs(tmp_path):
    """Whether the daemon is there and more than a zombie, for which some parents take their time."""
    try:
        told = Path("/proc", (tmp_path / "daemon").read_text().strip(), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return told.rpartition(")")[2].split()[0] != "Z"


def gone(tmp_path):
    """Whether the daemon is gone, after some seconds at most."""
    return until(lambda: not daemon_runs(tmp_path))


def until(true):
    end = time.monotonic() + 20
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# -- the daemon --------------------------------------------------------------------------------------------------------


def test_a_private_daemon_lives_as_long_as_it_is_needed(program, tmp_path, monkeypatch):
    monkeypatch.setenv(LOGS, "/somewhere")
    with shared_gpu(pytest.fail) as shared:
        assert shared
        pipes, logs = Path(os.environ[PIPES]), Path(os.environ[LOGS])
        assert pipes.parent == logs.parent
        assert pipes.parent.stat().st_mode & 0o777 == 0o700
        assert len(str(pipes)) < 60  # a socket's path may have 107 letters
        time.sleep(0.5)  # who is to end it has begun by now, and waits
        assert daemon_runs(tmp_path)
        assert [called[0] for called in program()] == ["-d", "get_server_list"]
        assert all(called[1:3] == [str(pipes), str(logs)] for called in program())
    assert program()[-1] == ["quit", "-t", "5", str(pipes), str(logs), "all"]
    assert gone(tmp_path)
    assert not pipes.parent.exists()
    assert PIPES not in os.environ
    assert os.environ[LOGS] == "/somewhere"


def test_a_daemon_that_takes_its_time_is_waited_for(program, monkeypatch):
    monkeypatch.setenv("MOOD", "slow")
    with shared_gpu(pytest.fail) as shared:
        assert shared
    assert [called[0] for called in program()].count("get_server_list") > 1


def test_an_error_ends_it(program, tmp_path):
    with pytest.raises(KeyError), shared_gpu(pytest.fail):
        raise KeyError
    assert program()[-1][0] == "quit"
    assert gone(tmp_path)
    assert PIPES not in os.environ


def test_one_that_does_not_quit_is_killed(program, tmp_path, monkeypatch):
    monkeypatch.setenv("MOOD", "stubborn")
    monkeypatch.setattr(sharing, "QUIT", 1.0)
    with shared_gpu(pytest.fail) as shared:
        assert shared
        folder = Path(os.environ[PIPES]).parent
    assert gone(tmp_path)
    assert not folder.exists()


def test_it_ends_even_if_its_keeper_was_killed(program, tmp_path, monkeypatch):
    keepers, begin = [], subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *given, **more: keepers.append(begin(*given, **more)) or keepers[-1])
        kept = sharing.kept()
        folder = kept.__enter__()
    mps.start(folder, 20.0, 20.0)
    assert daemon_runs(tmp_path)
    keepers[0].kill()
    kept.__exit__(None, None, None)
    assert gone(tmp_path)
    assert not folder.exists()


ENTERS = """
import os, signal, sys, time
from dcnets.experiments.reproduce import mps, sharing
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
mps.CUDA_STARTS = ""
with sharing.shared_gpu(sys.exit):
    print(os.path.dirname(os.environ[mps.PIPES]), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_no_daemon(number, program, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", ENTERS], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        assert daemon_runs(tmp_path)
        process.send_signal(number)
        process.wait(20)
    assert gone(tmp_path)
    assert until(lambda: not folder.exists())
    assert program()[-1][0] == "quit"


@pytest.mark.parametrize(("chosen", "seen"), [("1,0", "all"), ("GPU-8f3a", "GPU-8f3a"), ("MIG-1", "MIG-1")])
def test_gpus_chosen_by_number_are_chosen_by_the_runs_alone(chosen, seen, program, monkeypatch):
    monkeypatch.setenv(mps.CHOSEN, chosen)
    with shared_gpu(pytest.fail):
        assert os.environ[mps.CHOSEN] == chosen
    assert program()[0][-1] == seen


# -- without one -------------------------------------------------------------------------------------------------------

WITHOUT = "the runs take turns on the GPU, as NVIDIA's multi-process service cannot be had: "


def without():
    """What is told where the GPU is not shared; nothing is left in the environment or as a folder."""
    told = []
    with shared_gpu(told.append) as shared:
        assert not shared
        assert PIPES not in os.environ
        assert not list(Path(sharing.PLACE).glob("dcnets-*"))
    (line,) = told
    assert line.startswith(WITHOUT)
    return line.removeprefix(WITHOUT)


def test_no_program(program, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert without() == "nvidia-cuda-mps-control is not on PATH"
    assert program() == []


@pytest.mark.parametrize(
    ("mood", "told"),
    [
        ("fails", "nvidia-cuda-mps-control failed with exit code 3: no driver"),
        ("hangs", "nvidia-cuda-mps-control does not answer within 1 seconds"),
        ("deaf", "nvidia-cuda-mps-control does not answer within 1 seconds"),
    ],
)
def test_a_program_that_fails_or_does_not_answer(mood, told, program, tmp_path, monkeypatch):
    monkeypatch.setenv("MOOD", mood)
    if mood != "fails":
        monkeypatch.setattr(sharing, "ANSWER", 1.0)
    assert without() == told
    assert mood != "deaf" or gone(tmp_path)


@pytest.mark.parametrize(
    ("cuda", "told"),
    [
        ("import sys; sys.exit('CUDA error 805')", "CUDA under it failed with exit code 1: CUDA error 805"),
        ("import time; time.sleep(60)", "CUDA under it does not answer within 1 seconds"),
    ],
)
def test_a_daemon_under_which_cuda_does_not_start_is_ended(cuda, told, program, tmp_path, monkeypatch):
    monkeypatch.setattr(mps, "CUDA_STARTS", cuda)
    if "sleep" in cuda:
        monkeypatch.setattr(sharing, "CUDA", 1.0)
    assert without() == told
    assert gone(tmp_path)


def test_the_users_own_daemon_is_used(program, monkeypatch):
    monkeypatch.setenv(PIPES, "/their/pipes")
    told = []
    with shared_gpu(told.append) as shared:
        assert shared
        assert os.environ[PIPES] == "/their/pipes"
    assert os.environ[PIPES] == "/their/pipes"
    assert told == ["the runs share the GPU through your own daemon, CUDA_MPS_PIPE_DIRECTORY=/their/pipes"]
    assert program() == []


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Witness:
    """Stands for a recipe; whoever looks into it is told what its process sees."""

    name: str = "witness"
    seed: int = 0

    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else RuntimeError(f"{os.environ.get(PIPES)}")


def seen_by_a_run(engine, tmp_path):
    (job,) = planned(["plain"], tmp_path).jobs
    engine.start(dataclasses.replace(job, recipe=Witness()), Order(threads=1))
    (ended,) = engine.wait(60)
    return ended.told.removeprefix("RuntimeError: ")


def test_runs_see_the_daemon_of_the_moment(program, tmp_path):
    engine = Local(2)
    assert seen_by_a_run(engine, tmp_path) == "None"  # from here on the server is there that runs are forked from
    engine.share(pytest.fail)
    pipes = os.environ[PIPES]
    assert seen_by_a_run(engine, tmp_path) == pipes
    assert timing.timed([Witness()], [[0]], Order(threads=1), tmp_path / "log.txt") == [None]
    assert f"RuntimeError: {pipes}\n" in (tmp_path / "log.txt").read_text()
    engine.close()
    engine.close()
    assert [called[0] for called in program()].count("quit") == 1
    assert seen_by_a_run(engine, tmp_path) == "None"


def test_what_was_measured_unshared_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "timed", paced(0.1))
    (job,) = planned(["plain"], tmp_path).jobs
    monkeypatch.delenv(PIPES, raising=False)
    for pipes in ({}, {}, {PIPES: "/pipes"}, {PIPES: "/others"}):
        with monkeypatch.context() as patch:
            for name, value in pipes.items():
                patch.setenv(name, value)
            warmup.paces([job], Order(), tmp_path, str)
            warmup.gain(job.recipe, Order(), tmp_path, 2, str)
    found = [(line["lanes"], line["shared"]) for line in jsonlines.read(tmp_path / warmup.FILE)]
    assert found == [(1, False), (2, False), (2, True)]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A command that takes this machine for one with a GPU; the function tells which daemon each warm-up saw."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper, "TABLES", {"table1": TINY})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Local, "place", lambda *_: Place("cuda", "a GPU", True))
    here = results.environment("cpu")
    monkeypatch.setattr(results, "environment", lambda _: here)
    seen = []

    def measure(*given):
        seen.append(os.environ.get(PIPES))
        return paced(0.5)(*given)

    monkeypatch.setattr(warmup, "timed", measure)
    return seen


def test_the_command_shares_the_gpu_from_its_warm_up_on(program, gpu, tmp_path):
    assert ", 2 at once" in ok("reproduce", "table1", "--jobs", "2", "--dry-run", "--device", "cuda")
    assert program()[0][0] == "-d"
    assert gpu
    assert set(gpu) == {program()[0][1]}
    assert program()[-1][0] == "quit"
    assert gone(tmp_path)
    assert PIPES not in os.environ


@pytest.mark.parametrize("arguments", [("--jobs", "1", "--device", "cuda"), ("--jobs", "2", "--device", "cpu")])
def test_one_run_at_a_time_or_a_cpu_need_no_daemon(arguments, program, gpu, monkeypatch):
    if "cpu" in arguments:
        monkeypatch.setattr(Local, "place", lambda *_: Place("cpu", "a CPU", False))
    ok("reproduce", "table1", "--dry-run", *arguments)
    assert set(gpu) == {None}
    assert program() == []


def test_an_interrupted_command_leaves_no_daemon(program, gpu, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(warmup, "timed", interrupt)
    assert call("reproduce", "table1", "--jobs", "2", "--device", "cuda").exit_code == 130
    assert program()[-1][0] == "quit"
    assert gone(tmp_path)
