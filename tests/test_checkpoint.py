"""Checkpoints: exact round trips, files visible only when whole, and one good file whatever happens."""

import errno
import json
import math
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from dcnets.experiments import checkpoint, durable, tensor_file
from dcnets.experiments.checkpoint import CheckpointError, discard, latest, save
from dcnets.experiments.optimizer_state import flatten_optimizer, restore_optimizer
from dcnets.experiments.same_recipe import differences, refuse_other_recipe


def names(folder):
    return sorted(os.listdir(folder))


def name(step):
    return f"step-{step:09}.safetensors"


def filled(folder, *steps):
    for step in steps:
        save(folder, step, {"w": torch.full((4,), float(step))}, {"step": step})


def same_bits(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert tensor_file.raw(a.contiguous()).tobytes() == tensor_file.raw(b.contiguous()).tobytes()


ODD = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 3.14])
SHARED = torch.randn(6)
TENSORS = {
    **{str(dtype): torch.arange(7).to(dtype) for dtype in tensor_file.DTYPES},
    "odd": ODD,
    "bf16": ODD.bfloat16(),
    "random bf16": torch.randint(-(2**15), 2**15, (33,)).to(torch.int16).view(torch.bfloat16),
    "int64": torch.tensor([2**63 - 1, -(2**63)]),
    "bool": torch.tensor([True, False, True]),
    "empty": torch.empty(0),
    "empty 3d": torch.empty(2, 0, 3),
    "scalar": torch.tensor(2.5),
    "scalar int": torch.tensor(7, dtype=torch.uint8),
    "transposed": torch.randn(3, 5).t(),
    "strided": torch.randn(10)[::3],
    "expanded": torch.randn(1, 4).expand(3, 4),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "negated view": torch.randn(4, dtype=torch.complex64).conj().imag,
    "parameter": nn.Parameter(torch.randn(2, 2)),
    "shared": SHARED,
    "shared again": SHARED,
    "part of shared": SHARED[2:5],
    'layer.0."weight"\n ü': torch.ones(1),
}


@pytest.mark.parametrize("key", TENSORS)
def test_tensors_come_back_bit_for_bit(tmp_path, key):
    before = TENSORS[key].detach().clone()
    save(tmp_path, 3, {key: TENSORS[key]}, {})
    found = latest(tmp_path)
    same_bits(found.tensors[key], before)
    assert found.tensors[key].device.type == "cpu"


def test_all_at_once_with_state_and_readable_by_safetensors(tmp_path):
    state = {
        "rate": 0.1 + 0.2,
        "best": math.inf,
        "drops": (1, 2),
        "text": "ü\n",
        "none": None,
        "big": 2**70,
        "in": {"a": [1.5]},
    }
    path = save(tmp_path / "a" / "b", 12, TENSORS, state)
    found = latest(tmp_path / "a" / "b")
    assert (found.step, found.path, found.note) == (12, path, None)
    assert found.state == {**state, "drops": [1, 2]}
    assert found.tensors.keys() == TENSORS.keys()
    for key, tensor in TENSORS.items():
        same_bits(found.tensors[key], tensor.detach())
    for key, tensor in safetensors.torch.load_file(path).items():
        same_bits(tensor, TENSORS[key].detach())
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for key, entry in json.loads(data[8:start]).items():
        if key != tensor_file.TEXTS:
            assert (start + entry["data_offsets"][0]) % TENSORS[key].itemsize == 0


def test_loaded_tensors_are_ones_own(tmp_path):
    save(tmp_path, 1, TENSORS, {})
    for tensor in latest(tmp_path).tensors.values():
        tensor.zero_()
    same_bits(latest(tmp_path).tensors["odd"], ODD)


def test_nothing_there(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None
    (tmp_path / "model.safetensors").write_bytes(b"a user's own")
    (tmp_path / "step-1.safetensors").write_bytes(b"another program's")
    assert latest(tmp_path) is None


def test_the_two_newest_are_kept_and_other_files_left_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}")
    (tmp_path / "mine.unfinished").write_text("a user's own")
    (tmp_path / (name(7) + ".unfinished")).write_bytes(b"left by a killed process")
    filled(tmp_path, 1, 2, 10)
    assert names(tmp_path) == ["metrics.jsonl", "mine.unfinished", name(2), name(10)]
    assert latest(tmp_path).step == 10


def test_steps_of_more_than_nine_digits_are_ordered_as_numbers(tmp_path):
    filled(tmp_path, 999_999_999, 1_000_000_000)
    assert latest(tmp_path).step == 1_000_000_000


def test_saving_an_earlier_step_goes_back(tmp_path):
    filled(tmp_path, 8, 9, 5)
    assert latest(tmp_path).step == 5
    assert names(tmp_path) == [name(5)]


def test_the_same_step_is_replaced(tmp_path):
    filled(tmp_path, 4, 5)
    save(tmp_path, 5, {"w": torch.zeros(2)}, {"again": True})
    assert latest(tmp_path).state == {"again": True}
    assert names(tmp_path) == [name(4), name(5)]


def test_discard(tmp_path):
    filled(tmp_path, 1, 2)
    (tmp_path / (name(3) + ".unfinished")).touch()
    (tmp_path / "metrics.jsonl").touch()
    discard(tmp_path)
    discard(tmp_path / "missing")
    assert names(tmp_path) == ["metrics.jsonl"]


@pytest.mark.parametrize("length", [0, 4, 8, 100, -16, -1])
def test_a_cut_file_is_passed_over_and_told(tmp_path, length):
    filled(tmp_path, 1, 2)
    data = (tmp_path / name(2)).read_bytes()
    (tmp_path / name(2)).write_bytes(data[:length])
    found = latest(tmp_path)
    assert found.step == 1
    assert torch.equal(found.tensors["w"], torch.ones(4))
    assert found.note.startswith(f"{name(2)} is cut short or overwritten (")
    assert found.note.endswith(f"; going on from {name(1)}")


def test_a_longer_file_is_passed_over(tmp_path):
    filled(tmp_path, 1, 2)
    with open(tmp_path / name(2), "ab") as file:
        file.write(b"x")
    assert latest(tmp_path).step == 1


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    filled(tmp_path, 1, 2)
    path = tmp_path / name(2)
    data, told = path.read_bytes(), {"passed over": 0, "refused": 0}
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        try:
            found = latest(tmp_path)
            assert found.step == 1, place
            assert name(2) in found.note
            told["passed over"] += 1
        except CheckpointError:  # the mark of a dcnets checkpoint itself was hit: it reads as another program's file
            told["refused"] += 1
    assert told["passed over"] > 0.8 * len(data)
    assert told["refused"] <= len("format: dcnets checkpoint, version: 1, __metadata__")


def test_all_damaged_is_an_error_that_names_them(tmp_path):
    filled(tmp_path, 1, 2)
    for step in (1, 2):
        path = tmp_path / name(step)
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(
        CheckpointError, match=rf"no good checkpoint in .*{name(2)} has changed .*{name(1)} has changed .*--fresh"
    ):
        latest(tmp_path)


def test_the_good_one_outlives_saves_after_a_damaged_one(tmp_path):
    filled(tmp_path, 1, 2)
    path = tmp_path / name(2)
    path.write_bytes(path.read_bytes()[:-1])
    filled(tmp_path, 3)
    assert names(tmp_path) == [name(1), name(3)]


def test_a_foreign_file_is_refused_and_stays(tmp_path):
    filled(tmp_path, 1)
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / name(2))
    with pytest.raises(CheckpointError, match=rf"{name(2)} is no checkpoint of dcnets; move it away"):
        latest(tmp_path)
    assert names(tmp_path) == [name(1), name(2)]


def test_another_version_is_refused_and_stays(tmp_path, monkeypatch):
    filled(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "VERSION", "2")
    filled(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"is a checkpoint of version 2, this dcnets reads version 1; go on with"):
        latest(tmp_path)
    assert names(tmp_path) == [name(1), name(2)]


def test_a_renamed_file_is_passed_over(tmp_path):
    filled(tmp_path, 1, 2)
    (tmp_path / name(2)).rename(tmp_path / name(3))
    assert "holds step 2, which is not what its name says" in latest(tmp_path).note


def test_what_json_or_safetensors_cannot_hold_is_refused(tmp_path):
    filled(tmp_path, 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path, 2, {}, {"a": torch.ones(1)})
    with pytest.raises(TypeError, match="tensor 'a' is a float; what is no tensor belongs in the state"):
        save(tmp_path, 2, {"a": 1.0}, {})
    with pytest.raises(
        TypeError, match=r"tensor 'a' is torch.sparse_coo of torch.float32; a file holds dense tensors of float64,"
    ):
        save(tmp_path, 2, {"a": torch.eye(2).to_sparse()}, {})
    with pytest.raises(TypeError, match=r"tensor 'a' is torch.strided of torch.complex64"):
        save(tmp_path, 2, {"a": torch.ones(1, dtype=torch.complex64)}, {})
    for step in (-1, True, 1.0):
        with pytest.raises(ValueError, match="step must be a whole number, 0 or more, got"):
            save(tmp_path, step, {}, {})
    assert names(tmp_path) == [name(1)]


class Full:
    """A system call that fails the n-th time."""

    def __init__(self, call, number, code):
        self.call, self.left, self.code = call, number, code

    def __call__(self, *args, **options):
        self.left -= 1
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code))
        return self.call(*args, **options)


@pytest.mark.parametrize(("call", "number"), [("fsync", 1), ("replace", 1)])
def test_a_full_disk_leaves_the_good_file(tmp_path, monkeypatch, call, number):
    filled(tmp_path, 1, 2)
    before = {each: (tmp_path / each).read_bytes() for each in names(tmp_path)}
    monkeypatch.setattr(os, call, Full(getattr(os, call), number, errno.ENOSPC))
    with pytest.raises(CheckpointError) as told:
        filled(tmp_path, 3)
    assert str(told.value) == (
        f"{tmp_path / name(3)} was not written: the disk is full; the last checkpoint, {name(2)}, is untouched; "
        "mend it, then run the same command again"
    )
    assert {each: (tmp_path / each).read_bytes() for each in names(tmp_path)} == before
    filled(tmp_path, 3)  # there is room again
    assert latest(tmp_path).step == 3


def test_a_write_that_breaks_off_leaves_the_good_file(tmp_path):
    filled(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # the system writes a part, then refuses
    try:
        with pytest.raises(
            CheckpointError, match=rf"was not written: File too large; the last checkpoint, {name(1)}, is unt"
        ):
            save(tmp_path, 2, {"w": torch.zeros(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == [name(1)]
    assert latest(tmp_path).step == 1


TINY_DISK = """
import sys, torch
from pathlib import Path
from dcnets.experiments.checkpoint import CheckpointError, latest, save
folder = Path(sys.argv[1])
try:
    for step in range(10):
        save(folder, step, {"w": torch.full((40_000,), float(step))}, {})
    save(folder, 10, {"w": torch.zeros(150_000)}, {})
except CheckpointError as error:
    print(error)
found = latest(folder)
print(found.step, found.note, float(found.tensors["w"].mean()), sorted(each.name for each in folder.iterdir()))
"""
OWN_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
"""A shell that may mount a disk of its own."""


def can_mount(folder):
    try:
        return not subprocess.run([*OWN_DISK, f"mount -t tmpfs none {folder}"], capture_output=True).returncode
    except OSError:
        return False


def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("mounting a small disk is not allowed here")
    script = f'mount -t tmpfs -o size=700k none {disk} && exec "$@"'
    command = [*OWN_DISK, script, "sh", sys.executable, "-c", TINY_DISK, str(disk)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"was not written: the disk is full; the last checkpoint, {name(9)}, is untouched" in out
    assert f"9 None 9.0 ['{name(8)}', '{name(9)}']" in out


def test_a_folder_that_cannot_be_written_or_read(tmp_path, monkeypatch):
    filled(tmp_path, 1)
    real = open
    with monkeypatch.context() as patch:
        patch.setattr(durable, "open", lambda path, mode: real("/proc/version", mode), raising=False)
        with pytest.raises(CheckpointError, match=rf"was not written: .*; the last checkpoint, {name(1)}, is untouched"):
            filled(tmp_path, 2)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        latest(file)
    with pytest.raises(CheckpointError, match="Not a directory"):
        filled(file, 1)
    with pytest.raises(CheckpointError, match="there is no checkpoint before it"):
        filled(Path("/proc/nowhere"), 1)


def test_a_file_that_may_not_be_read_is_an_error_at_once(tmp_path, monkeypatch):
    filled(tmp_path, 1, 2)
    read = Path.read_bytes
    for code in (errno.EACCES, errno.EIO):
        refusing = Full(read, 1, code)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path, refusing=refusing: refusing(path))
            if code == errno.EACCES:
                with pytest.raises(CheckpointError, match=rf"{name(2)} cannot be read: Permission denied"):
                    latest(tmp_path)
            else:  # a bad block
                assert latest(tmp_path).note == f"{name(2)} cannot be read (Input/output error); going on from {name(1)}"


def test_a_reader_looks_again_when_a_writer_has_removed_its_file(tmp_path, monkeypatch):
    filled(tmp_path, 1, 2)
    read = Path.read_bytes

    def slow(path):
        if path.name == name(2):
            filled(tmp_path, 3, 4)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", slow)
    assert latest(tmp_path).step == 4


NURSERY = """
import os, sys, torch
from pathlib import Path
from dcnets.experiments.checkpoint import latest, save
torch.set_num_threads(1)
def tell(*words):  # one write: print makes several where PYTHONUNBUFFERED is set, and a kill may come between them
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
for line in sys.stdin:
    folder, call, number = line.split()
    child = os.fork()
    if child == 0:
        if call != "none":  # the number-th such call is the child's last act, or what it dies before
            real, left, after = getattr(os, call), abs(int(number)), int(number) < 0
            def deadly(*args, **options):
                global left
                left -= 1
                try:
                    if left or after:
                        return real(*args, **options)
                finally:
                    if not left:
                        os.kill(os.getpid(), 9)
            setattr(os, call, deadly)
        found = latest(Path(folder))
        step = found.step if found else 0
        tell("pid", os.getpid())
        for step in range(step + 1, step + 500):
            save(Path(folder), step, {"w": torch.full((200_000,), step), "v": torch.full((step % 7,), step)}, {"step": step})
            tell("saved", step)
        os._exit(1)
    tell("dead", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


PATIENCE = 60
"""Seconds for an answer of the process that saves; fractions of one are usual."""


class Nursery:
    """A process that has torch loaded and forks a child for each order; answers are awaited, not for ever."""

    def __init__(self):
        command = [sys.executable, "-X", "faulthandler", "-c", NURSERY]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.rest = b""

    def order(self, *words):
        self.process.stdin.write(f"{' '.join(map(str, words))}\n".encode())

    def until(self, word):
        """The lines up to the first that begins with a word; a child's death ends the waiting for anything else."""
        lines, end = [], time.monotonic() + PATIENCE
        while not lines or lines[-1].split()[0] not in (word, "dead"):
            while b"\n" not in self.rest:
                if not select.select([self.process.stdout], [], [], end - time.monotonic())[0]:
                    self.process.send_signal(signal.SIGABRT)  # faulthandler then tells where it stands
                    pytest.fail(f"no {word!r} within {PATIENCE} seconds; so far {lines}")
                more = os.read(self.process.stdout.fileno(), 65536)
                assert more, "the process that saves has ended by itself"
                self.rest += more
            line, self.rest = self.rest.split(b"\n", 1)
            lines.append(line.decode())
        assert lines[-1].split()[0] == word, lines
        return lines

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def nursery():
    found = Nursery()
    yield found
    found.close()


def check_after_kill(folder, lines, acknowledged):
    """What is found is whole, and is the last that was acknowledged or the one on its way; return its step."""
    assert lines[-1] == f"dead {-signal.SIGKILL}"
    saved = [int(line.split()[1]) for line in lines if line.startswith("saved")]
    acknowledged = max([acknowledged, *saved])
    found = latest(folder)
    if found is None:
        assert acknowledged == 0
    else:
        assert found.note is None
        assert found.step in (acknowledged, acknowledged + 1)
        assert found.state == {"step": found.step}
        assert torch.equal(found.tensors["w"], torch.full((200_000,), found.step))
        assert torch.equal(found.tensors["v"], torch.full((found.step % 7,), found.step))
    return found.step if found else 0


def test_kill_at_random_moments(tmp_path, nursery):
    chance, acknowledged, unfinished = random.Random(0), 0, 0
    for _ in range(40):
        nursery.order(tmp_path, "none", 0)
        pid = int(nursery.until("pid")[-1].split()[1])
        time.sleep(chance.uniform(0, 0.08))
        os.kill(pid, signal.SIGKILL)
        acknowledged = check_after_kill(tmp_path, nursery.until("dead"), acknowledged)
        unfinished += any(each.endswith(".unfinished") for each in names(tmp_path))
    assert acknowledged > 40
    assert unfinished > 5  # the kills did hit in the middle of a write


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink", "mkdir", "listdir", "open"])
def test_kill_before_and_after_every_system_call(tmp_path, nursery, call):
    acknowledged = 0
    for number in range(1, 7):
        for moment in (number, -number):
            nursery.order(tmp_path, call, moment)
            acknowledged = check_after_kill(tmp_path, nursery.until("dead"), acknowledged)
    assert acknowledged


def trained(optimizer_of, steps=3, skip=()):
    """A small network after some updates, and its optimiser."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    model = model.to(memory_format=torch.channels_last)
    optimizer = optimizer_of(model)
    train(model, optimizer, steps, skip)
    return model, optimizer


def train(model, optimizer, steps, skip=()):
    data = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 4, 4, generator=data)).square().sum().backward()
        for key, parameter in model.named_parameters():
            if key in skip:
                parameter.grad = None
        optimizer.step()


def two_groups(model):
    named = dict(model.named_parameters())
    return [
        {"params": [named.pop("0.weight"), named.pop("3.weight")], "weight_decay": 0.1},
        {"params": list(named.values()), "weight_decay": 0.0, "lr": 0.02},
    ]


OPTIMIZERS = {
    "adam": lambda model: torch.optim.Adam(two_groups(model), lr=0.01),
    "adam tensor lr": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), betas=(0.8, 0.99)),
    "adam fused tensor lr": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), fused=True),
    "adam amsgrad foreach": lambda model: torch.optim.Adam(two_groups(model), lr=0.01, amsgrad=True, foreach=True),
    "adamw": lambda model: torch.optim.AdamW(two_groups(model), lr=0.01, maximize=True),
    "sgd": lambda model: torch.optim.SGD(two_groups(model), lr=0.01),
    "sgd momentum": lambda model: torch.optim.SGD(two_groups(model), lr=0.01, momentum=0.9, nesterov=True),
    "sgd fused tensor lr": lambda model: torch.optim.SGD(
        model.parameters(), lr=torch.tensor(0.01), momentum=0.9, fused=True
    ),
}


def resumed(tmp_path, model, optimizer, optimizer_of):
    """Another network and optimiser, from the files of these."""
    tensors, state = flatten_optimizer(optimizer, model.named_parameters())
    save(tmp_path, 1, {f"optimizer.{key}": value for key, value in tensors.items()}, {"optimizer": state})
    found = latest(tmp_path)
    again, other = trained(optimizer_of, steps=0)
    again.load_state_dict(model.state_dict())
    restore_optimizer(
        other, again.named_parameters(),
        {key.removeprefix("optimizer."): value for key, value in found.tensors.items()}, found.state["optimizer"],
    )  # fmt: skip
    return again, other


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("kind", "skip"),
    [(kind, ()) for kind in OPTIMIZERS]
    + [(kind, ("0.weight",)) for kind in OPTIMIZERS if kind != "sgd fused tensor lr"],  # there torch itself cannot go on
)
def test_training_goes_on_bit_for_bit(tmp_path, kind, steps, skip):
    """`skip` names what has no gradient at first, and so no state."""
    model, optimizer = trained(OPTIMIZERS[kind], steps, skip)
    for group in optimizer.param_groups:
        group["initial_lr"] = 0.5
        group["lr"] = group["lr"] * 0.5  # as a schedule does
    again, other = resumed(tmp_path, model, optimizer, OPTIMIZERS[kind])
    for mine, yours in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert mine.keys() == yours.keys()
        for key in mine.keys() - {"params"}:
            assert type(mine[key]) is type(yours[key])
            assert mine[key] == yours[key]
    mine, yours = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert mine.keys() == yours.keys()
    for number, entries in mine.items():
        assert entries.keys() == yours[number].keys()
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                same_bits(value, yours[number][key])
                assert value.stride() == yours[number][key].stride()
            else:
                assert value == yours[number][key]
    train(model, optimizer, 3)
    train(again, other, 3)
    for key, value in model.state_dict().items():
        same_bits(value, again.state_dict()[key])


def test_a_buffer_that_is_none_comes_back_as_none(tmp_path):
    model, optimizer = trained(OPTIMIZERS["sgd momentum"])
    optimizer.state[model[0].weight]["momentum_buffer"] = None
    again, other = resumed(tmp_path, model, optimizer, OPTIMIZERS["sgd momentum"])
    assert other.state[again[0].weight] == {"momentum_buffer": None}
    train(model, optimizer, 1)
    train(again, other, 1)
    assert torch.equal(model[0].weight, again[0].weight)


def test_tensors_that_are_there_are_overwritten_where_they_lie():
    of = OPTIMIZERS["adam fused tensor lr"]
    model, optimizer = trained(of, 3)
    again, other = trained(of, 1)
    other.param_groups[0]["lr"].fill_(7.0)
    lie = {key: value.data_ptr() for key, value in flatten_optimizer(other, again.named_parameters())[0].items()}
    tensors, state = flatten_optimizer(optimizer, model.named_parameters())
    restore_optimizer(other, again.named_parameters(), tensors, state)
    found = flatten_optimizer(other, again.named_parameters())[0]
    assert {key: value.data_ptr() for key, value in found.items()} == lie
    assert found.keys() == tensors.keys()
    for key, value in tensors.items():
        same_bits(found[key], value)


def test_what_the_checkpoint_does_not_hold_is_forgotten():
    of = OPTIMIZERS["adam"]
    model, optimizer = trained(of, 0)
    again, other = trained(of, 2)
    restore_optimizer(other, again.named_parameters(), *flatten_optimizer(optimizer, model.named_parameters()))
    assert not other.state


def test_a_state_moves_between_machines():
    """A checkpoint of a captured run, whose rate is a tensor, for an optimiser with a plain number, and the other way."""
    model, optimizer = trained(OPTIMIZERS["adam fused tensor lr"])
    plain = lambda model: torch.optim.Adam(model.parameters(), lr=0.5, foreach=True)
    again, other = trained(plain, 0)
    tensors, state = flatten_optimizer(optimizer, model.named_parameters())
    restore_optimizer(other, again.named_parameters(), tensors, state)
    group = other.param_groups[0]
    assert (type(group["lr"]), group["fused"], group["foreach"]) == (float, None, True)
    assert group["lr"] == optimizer.param_groups[0]["lr"].item()
    optimizer.param_groups[0]["lr"].fill_(9.0)
    restore_optimizer(optimizer, model.named_parameters(), *flatten_optimizer(other, again.named_parameters()))
    assert optimizer.param_groups[0]["lr"].item() == group["lr"]


def test_a_state_goes_by_name_and_not_by_position():
    model, optimizer = trained(lambda model: torch.optim.Adam(model.parameters(), lr=0.1))
    again, other = trained(lambda model: torch.optim.Adam(reversed(list(model.parameters())), lr=0.1), 0)
    restore_optimizer(other, again.named_parameters(), *flatten_optimizer(optimizer, model.named_parameters()))
    for (_, mine), (_, yours) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(optimizer.state[mine]["exp_avg"], other.state[yours]["exp_avg"])


def test_a_state_that_does_not_fit_is_told_and_changes_nothing():
    model, optimizer = trained(OPTIMIZERS["adam"])
    tensors, state = flatten_optimizer(optimizer, model.named_parameters())

    def refuses(message, other, optimizer_of):
        of = optimizer_of(other)
        of.param_groups[0]["lr"] = 5.0
        with pytest.raises(CheckpointError, match=message):
            restore_optimizer(of, other.named_parameters(), tensors, state)
        assert of.param_groups[0]["lr"] == 5.0
        assert not of.state

    refuses(
        "the checkpoint holds the state of Adam, this optimiser is SGD", trained(OPTIMIZERS["sgd"], 0)[0], OPTIMIZERS["sgd"]
    )
    refuses(
        r"0.bias is in parameter group 1 of the checkpoint, here in group 0",
        trained(OPTIMIZERS["adam"], 0)[0], lambda model: torch.optim.Adam(model.parameters()),
    )  # fmt: skip
    larger = nn.Sequential(*trained(OPTIMIZERS["adam"], 0)[0], nn.Linear(2, 2), nn.Linear(2, 2))
    refuses(
        "no optimiser state for 4.weight, 4.bias, 5.weight and 1 more; it is of another model", larger, OPTIMIZERS["adam"]
    )
    smaller = nn.Sequential(*list(trained(OPTIMIZERS["adam"], 0)[0])[:3])
    only = lambda model: torch.optim.Adam(model.parameters())
    refuses(r"has optimiser state for 3.weight, 3.bias, which are not optimised here", smaller, only)
    wider = trained(OPTIMIZERS["adam"], 0)[0]
    wider[3] = nn.Linear(20, 2)
    refuses(r"exp_avg of 3.weight is \(2, 16\) in the checkpoint, the parameter is \(2, 20\)", wider, OPTIMIZERS["adam"])


def test_a_parameter_without_a_name_is_refused():
    model, optimizer = trained(OPTIMIZERS["sgd"])
    with pytest.raises(
        ValueError, match=r"parameter 1 of group 0, of shape \(2, 16\), has no name; pass the named_parameters"
    ):
        flatten_optimizer(optimizer, model[0].named_parameters(prefix="0"))


def test_differences_of_recipes():
    made = {"rate": 0.001, "drops": [1, 2], "same": 1, "gone": "a", "nan": math.nan}
    wanted = {"rate": 0.01, "drops": (1, 3), "same": 1.0, "new": True, "nan": math.nan}
    assert differences(made, wanted) == {
        "rate": (0.001, 0.01), "drops": ([1, 2], [1, 3]), "gone": ("a", None), "new": (None, True),
    }  # fmt: skip
    assert differences({"drops": [1, 2]}, {"drops": (1, 2)}) == {}


def test_another_recipe_is_refused_field_by_field(tmp_path):
    save(tmp_path, 1, {}, {"recipe": {"rate": 0.001, "batch": 128, "name": "a"}})
    found = latest(tmp_path)
    refuse_other_recipe(found, {"rate": 0.001, "batch": 128, "name": "a"})
    with pytest.raises(CheckpointError) as told:
        refuse_other_recipe(found, {"rate": 0.01, "batch": 64, "name": "a"})
    assert str(told.value) == (
        f"the checkpoint in {tmp_path} was made with rate=0.001, batch=128, this recipe has rate=0.01, batch=64; "
        "use another folder or --fresh"
    )
