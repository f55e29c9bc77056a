"""The lines of results: where a run was done, and files that several processes add to."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import dcnets
from dcnets.experiments import results


def test_environment():
    found = results.environment()
    assert list(found) == ["date", "dcnets", "commit", "python", "torch", "cuda", "triton", "device"]
    age = datetime.now(UTC) - datetime.fromisoformat(found["date"])
    assert 0 <= age.total_seconds() < 60
    assert found["date"].endswith("+00:00")
    assert (found["dcnets"], found["torch"]) == (dcnets.__version__, torch.__version__)
    assert found["cuda"] == torch.version.cuda
    assert found["device"]
    assert json.loads(json.dumps(found)) == found
    assert socket.gethostname() not in json.dumps(found)


def test_environment_names_the_device_that_is_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU, {device}")
    assert results.environment()["device"] == "a GPU, None"
    assert results.environment("cuda:1")["device"] == "a GPU, cuda:1"
    assert "GPU" not in results.environment("cpu")["device"]


@pytest.fixture
def clone(tmp_path):
    """A repository with a package, and the function that runs git in it."""

    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return tmp_path, git


def test_commit(clone, monkeypatch):
    folder, git = clone
    head = git("rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40}", head)
    assert results.commit(folder / "package") == head
    (folder / "results.jsonl").write_text("{}")  # what a run writes is no change of the code
    assert results.commit(folder / "package") == head
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert results.commit(folder / "package") == head
    (folder / "package" / "new.py").write_text("")
    assert results.commit(folder / "package") == f"{head}-dirty"


def test_a_process_tells_the_code_that_it_began_with(monkeypatch):
    heads = iter(["first", "second"])
    monkeypatch.setattr(results, "commit", lambda: next(heads))
    results.own_commit.cache_clear()
    assert [results.environment("cpu")["commit"] for _ in range(2)] == ["first", "first"]
    results.own_commit.cache_clear()


def test_no_commit_outside_a_clone(clone, tmp_path_factory, monkeypatch):
    assert results.commit(tmp_path_factory.mktemp("outside")) is None
    installed = clone[0] / ".venv" / "dcnets"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")  # another project's repository says nothing about this package
    assert results.commit(installed) is None
    monkeypatch.setenv("PATH", "")
    assert results.commit(clone[0] / "package") is None


def test_append_and_read(tmp_path):
    path = tmp_path / "new" / "cifar.jsonl"
    lines = [{"recipe": "a", "error": 26.01, "seeds": [1, 2]}, {"recipe": "ü", "error": "nan"}]
    for line in lines:
        results.append(path, line)
    assert results.read(path) == lines
    assert path.read_text().count("\n") == 2
    results.append(path, {"loss": float("inf")})
    assert results.read(path)[2] == {"loss": "inf"}


@pytest.mark.parametrize("torn", [b'{"recipe": "b", "err', b'{"recipe": "\xc3', b"[1, 2]", b"\x00" * 10])
def test_a_torn_line_is_told_and_harms_no_other(tmp_path, torn):
    path = tmp_path / "a.jsonl"
    results.append(path, {"recipe": "a"})
    path.write_bytes(path.read_bytes() + torn)
    with pytest.warns(UserWarning, match=r"a\.jsonl, line 2 is torn and left out"):
        assert results.read(path) == [{"recipe": "a"}]
    results.append(path, {"recipe": "c"})
    with pytest.warns(UserWarning, match="line 2 is torn"):
        assert results.read(path) == [{"recipe": "a"}, {"recipe": "c"}]


def test_a_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"recipe": "a"}')
    results.append(path, {"recipe": "b"})
    assert results.read(path) == [{"recipe": "a"}, {"recipe": "b"}]


def test_empty_lines_do_no_harm(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"recipe": "a"}\r\n\n')
    assert results.read(path) == [{"recipe": "a"}]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    results.append(path, {"recipe": "a"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match="No space left on device"):
        results.append(path, {"recipe": "b"})
    monkeypatch.undo()
    assert results.read(path) == [{"recipe": "a"}]


MANY = """
import sys
import threading
from pathlib import Path
from dcnets.experiments import results
assert "torch" not in sys.modules and "numpy" not in sys.modules
for number in range(100):
    results.append(Path(sys.argv[1]), {"process": sys.argv[2], "number": number, "text": "x" * 10_000})
"""


def test_several_processes_write_one_file_without_torch(tmp_path):
    path = tmp_path / "a.jsonl"
    processes = [subprocess.Popen([sys.executable, "-c", MANY, str(path), str(each)]) for each in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    lines = results.read(path)
    assert len(lines) == 400
    for each in range(4):
        assert [line["number"] for line in lines if line["process"] == str(each)] == list(range(100))


def test_a_writer_waits_for_another(tmp_path):
    path = tmp_path / "a.jsonl"
    writer = threading.Thread(target=results.append, args=(path, {"recipe": "a"}))
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer.start()
        writer.join(0.1)
        assert path.read_bytes() == b""
    writer.join()
    assert results.read(path) == [{"recipe": "a"}]


def test_the_package_that_is_asked_about_is_this_one():
    assert Path(dcnets.__file__).parent == results.PACKAGE
