"""The metric log: valid JSON whatever was measured, whole after a kill, and that of an undisturbed run after a resume."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
import warnings

import pytest
import torch

from dcnets.experiments import jsonlines
from dcnets.experiments.metrics import Metrics

UNDISTURBED = b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25, "top1": 0.5}\n{"step": 3, "loss": 2.0}\n'


def written(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_bytes(text)
    return Metrics(folder)


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_lines(tmp_path):
    with Metrics(tmp_path / "new" / "run") as metrics:
        metrics.write(1, loss=2.5)
        metrics.write(2, loss=torch.tensor(2.25), top1=0.5)
        metrics.write(3, loss=2.0)
    assert metrics.path.read_bytes() == UNDISTURBED


def test_numbers_that_are_not_finite_are_texts(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.write(1, a=math.nan, b=math.inf, c=[-math.inf, 1], d={"e": torch.tensor(math.nan)}, f="ü", g=None, h=True)
    line = strict(metrics.path.read_text())
    assert line == {"step": 1, "a": "nan", "b": "inf", "c": ["-inf", 1], "d": {"e": "nan"}, "f": "ü", "g": None, "h": True}
    assert float(line["b"]) == math.inf


def test_floats_come_back_exactly(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.write(1, loss=0.1 + 0.2, tiny=5e-324)
    assert jsonlines.read(metrics.path) == [{"step": 1, "loss": 0.1 + 0.2, "tiny": 5e-324}]


def test_what_json_cannot_hold_is_refused_and_leaves_no_line(tmp_path):
    metrics = Metrics(tmp_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        metrics.write(1, a=object())
    with pytest.raises(RuntimeError, match="2 elements"):
        metrics.write(1, a=torch.ones(2))
    assert not metrics.path.exists()


@pytest.mark.parametrize(
    "tail", [b"", b'{"step": 4', b'{"step": 4, "loss": 1.0}', b'{"step": 4}\n{"step": 5}\n', b"\x00\x00"]
)
def test_truncate_gives_the_file_of_an_undisturbed_run(tmp_path, tail):
    metrics = written(tmp_path, UNDISTURBED + tail)
    metrics.truncate(3)
    assert metrics.path.read_bytes() == UNDISTURBED
    metrics.truncate(2)
    assert metrics.path.read_bytes().splitlines() == UNDISTURBED.splitlines()[:2]
    metrics.write(3, loss=2.0)
    assert metrics.path.read_bytes() == UNDISTURBED
    metrics.truncate(-1)
    assert metrics.path.read_bytes() == b""
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_truncate_keeps_a_whole_line_that_lacks_its_end(tmp_path):
    metrics = written(tmp_path, UNDISTURBED[:-1])
    metrics.truncate(3)
    assert metrics.path.read_bytes() == UNDISTURBED


def test_truncate_mends_a_line_torn_in_the_middle(tmp_path):
    lines = UNDISTURBED.splitlines(keepends=True)
    metrics = written(tmp_path, lines[0] + b'{"step": 2, "lo')
    metrics.write(2, loss=2.25, top1=0.5)  # the torn line stays a line of its own
    metrics.write(3, loss=2.0)
    with pytest.warns(UserWarning, match="line 2 is torn and left out"):
        assert len(jsonlines.read(metrics.path)) == 3
    metrics.truncate(3)
    assert metrics.path.read_bytes() == UNDISTURBED


def test_truncate_without_a_file(tmp_path):
    Metrics(tmp_path / "none").truncate(5)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_truncate_is_all_or_nothing(tmp_path, monkeypatch, call):
    metrics = written(tmp_path, UNDISTURBED)

    def broken(*_):
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr("dcnets.experiments.durable.write", broken)
    else:
        monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match="No space left"):
        metrics.truncate(1)
    assert metrics.path.read_bytes() == UNDISTURBED


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    metrics = written(tmp_path, UNDISTURBED)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match="No space left on device"):
        metrics.write(4, loss=1.0)
    assert metrics.path.read_bytes() == UNDISTURBED


KILLED = """
import sys
from pathlib import Path
from dcnets.experiments.metrics import Metrics
metrics = Metrics(Path(sys.argv[1]))
for step in range(1_000_000):
    metrics.write(step, loss=step / 3, text="x" * 3000)
    print(step, flush=True)
"""


def test_every_line_that_was_written_survives_a_kill(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(0.1)
    process.kill()
    told = 1 + len(process.communicate()[0].split("\n")[:-1])
    lines, torn = jsonlines.read_and_tell(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert told <= len(lines) <= told + 1
    assert len(torn) <= 1  # a kill in the middle of a write leaves the beginning of a line that nobody was told of
    assert all(f"line {len(lines) + 1} is torn" in each for each in torn)


def events(folder):
    """What TensorBoard shows: (step, value) by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    shown = EventAccumulator(str(folder))
    shown.Reload()
    return {tag: [(each.step, each.value) for each in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}


def test_tensorboard(tmp_path):
    with Metrics(tmp_path, tensorboard=True) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, loss=torch.tensor(1 / step), top1=0.5, note="a text", none=None)
    assert events(tmp_path / "tensorboard") == {
        "loss": [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))],
        "top1": [(1, 0.5), (2, 0.5), (3, 0.5)],
    }
    with Metrics(tmp_path, tensorboard=True) as metrics:
        metrics.truncate(2)
        metrics.write(3, loss=7.0, top1=0.25)
    assert events(tmp_path / "tensorboard")["loss"] == [(1, 1.0), (2, 0.5), (3, 7.0)]
    assert [line["loss"] for line in jsonlines.read(metrics.path)] == [1.0, 0.5, 7.0]


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "tensorboard" or "utils.tensorboard" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"^tensorboard=True needs the package .*; pip install 'dcnets\[tensorboard\]'$"):
        Metrics(tmp_path, tensorboard=True)
    Metrics(tmp_path).write(1, loss=0.0)


LOUD = """
import warnings
warnings.warn("distutils is old", DeprecationWarning)
class SummaryWriter:
    pass
"""


def test_warnings_while_tensorboard_is_imported_are_its_own_affair(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(LOUD)
    loud = importlib.util.spec_from_file_location("torch.utils.tensorboard", tmp_path / "loud.py")

    class Finder:
        @staticmethod
        def find_spec(name, *_):
            return loud if name == "torch.utils.tensorboard" else None

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    Metrics(tmp_path, tensorboard=True)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard")
    with pytest.raises(DeprecationWarning, match="ours"):
        warnings.warn("ours", DeprecationWarning, stacklevel=1)
