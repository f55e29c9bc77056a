"""The table of the GPU benchmark, on tiny networks on the CPU."""

import dataclasses
import json
import math
import subprocess
import sys
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from command_line import environment
from contests import Quick

from dcnets import DecoupledConv2d, dispatch
from dcnets.decoupled import Decoupled
from dcnets.experiments import gpu_table, results
from dcnets.experiments.gpu_table import bandwidth, measuring, memory, ready, timing
from dcnets.experiments.gpu_table.apart import measured_apart
from dcnets.experiments.gpu_table.b_cos import BCosConv2d, with_b_cos
from dcnets.experiments.gpu_table.jobs import Job
from dcnets.experiments.gpu_table.rows import PLAIN, ROWS, TANH
from dcnets.experiments.gpu_table.shown import met
from dcnets.freezing import Frozen
from dcnets.fusing.blocks import FusedBlock
from dcnets.models import create

CPU = torch.device("cpu")
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """What is compiled, which stays as it is; few steps."""
    seen = []
    monkeypatch.setattr(torch, "compile", lambda score, **how: seen.append((score.__self__, how)) or score)
    monkeypatch.setattr(timing, "ROUNDS", 2)
    monkeypatch.setattr(timing, "STEPS", 1)
    monkeypatch.setattr(ready, "WARM_UP", 1)
    monkeypatch.setattr(dispatch, "INTERPRETED", False)  # Triton's programs would take their time
    return seen


@pytest.fixture
def here(monkeypatch):
    """Contests made ready and measured in this process; what it was asked for."""
    asked = []

    def in_turn(makers, lanes):
        asked.append((list(makers), lanes))
        return chain.from_iterable(make().measure() for make in makers.values())

    monkeypatch.setattr(measuring, "measured_apart", in_turn)
    return asked


def tiny(row):
    side = 8 if row.case.network == "resnet32" else 32
    return dataclasses.replace(row, case=dataclasses.replace(row.case, batch=2, side=side, width=2))


@pytest.fixture
def small(monkeypatch):
    """The rows on tiny networks."""
    monkeypatch.setattr(measuring, "ROWS", tuple(map(tiny, ROWS)))


def kinds(job):
    return {type(module) for module in job.model.modules()}


# -- rows --------------------------------------------------------------------------------------------------------------


def test_every_row_is_measured_and_has_its_line(small, here, compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "peak_mib", lambda job: 12.5 if job.path.fuse else 10.0)
    names = [name for name in gpu_table.names() if name != "bandwidth"]
    file = tmp_path / "results" / "bench-gpu.jsonl"
    found = {}
    for row in gpu_table.table(reversed(names), file, CPU):
        found[row["row"]] = row
        assert len(results.read(file)) == len(found)
    assert list(found) == names
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all({"date", "device", "torch", "triton", "commit"} < line.keys() for line in lines)
    for line, row in zip(lines, found.values(), strict=True):
        assert line == json.loads(json.dumps({**line, **row}))
        assert row["ratio"] == row["measured"] / row["baseline"] > 0
        assert row["control"] > 0
        assert len(gpu_table.cells(row)) == len(gpu_table.COLUMNS)
    limits = {name: (row["bar"], row["stretch"]) for name, row in found.items()}
    assert limits["resnet32"] == limits["resnet18"] == (1.20, 1.08)
    assert limits["b-cos"] == limits["reference"] == (None, None)
    assert (found["memory"]["ratio"], found["memory"]["unit"]) == (1.25, "MiB")
    assert found["inference"]["how"] == "inference"
    assert found["reference"]["path"] == "reference"
    assert all(how == {"dynamic": False} for _, how in compiled)
    assert len(compiled) == 2 * 9  # all pairs but the three eager ones


def test_rows_of_the_same_two_networks_are_one_contest(small, here, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "peak_mib", lambda job: 1.0)
    chosen = ["eager", "resnet32", "angle", "memory"]
    found = list(gpu_table.table(chosen, tmp_path / "lines.jsonl", CPU, lanes=3))
    assert [row["row"] for row in found] == ["resnet32", "memory", "angle", "eager"]
    assert here == [(["resnet32+memory", "angle", "eager"], 3)]


def test_half_of_the_cores_make_networks_ready_but_not_too_many(here, tmp_path, monkeypatch):
    for cores, lanes in ((None, 1), (2, 1), (12, 6), (64, 8)):
        monkeypatch.setattr(measuring.os, "cpu_count", lambda cores=cores: cores)
        list(gpu_table.table([], tmp_path / "lines.jsonl", CPU))
        assert here.pop()[1] == lanes


def test_contests_are_measured_in_processes_and_those_that_fail_leave_the_others_theirs(capfd):
    makers = {"first": (1,), "unready": (-1,), "torn": (2, 0, 3), "last": (4, 5)}
    rows = measured_apart({name: partial(Quick, of) for name, of in makers.items()}, 2)
    found = list(islice(rows, 4))
    with pytest.raises(RuntimeError, match="could not be measured, for the reasons above: unready, torn"):
        next(rows)
    assert [row["row"] for row in found] == [1, 2, 4, 5]
    assert all(row["preparation"] >= 0 for row in found)
    told = capfd.readouterr().err
    assert "-1 cannot be made ready" in told
    assert "ZeroDivisionError" in told


def test_names_of_rows():
    assert gpu_table.read_names("memory, bandwidth") == ["memory", "bandwidth"]
    with pytest.raises(ValueError, match="unknown row 'memroy'; did you mean 'memory'"):
        gpu_table.read_names("memroy")


@pytest.mark.parametrize(("ratio", "word"), [(1.08, "stretch"), (1.2, "yes"), (1.21, "no")])
def test_which_bar_is_met(ratio, word):
    row = {"ratio": ratio, "bar": 1.2, "stretch": 1.08}
    assert met(row) == word
    assert met({**row, "bar": None}) == "–"


# -- measurement -------------------------------------------------------------------------------------------------------


def test_the_jobs_take_turns_and_the_control_compares_the_halves(monkeypatch):
    monkeypatch.setattr(timing, "ROUNDS", 4)
    times = {"plain": iter([[1.0, 1.0], [3.0, 3.0], [6.0, 6.0], [8.0, 8.0]]), "own": iter([[9.0, 9.0]] * 4)}
    order = []

    def milliseconds(job, device):
        order.append(job)
        return next(times[job])

    monkeypatch.setattr(timing, "milliseconds", milliseconds)
    found = timing.in_turns("plain", "own", CPU)
    assert order == ["plain", "own"] * 4
    assert found == {"baseline": 4.5, "measured": 9.0, "ratio": 2.0, "control": 7.0 / 2.0}


def test_a_time_for_every_step_but_the_first(monkeypatch):
    monkeypatch.setattr(timing, "STEPS", 3)
    calls = []
    assert all(found >= 0 for found in timing.milliseconds(lambda: calls.append(1), CPU))
    assert len(calls) == 4


def test_a_gpu_is_timed_by_its_own_events(monkeypatch):
    clock = [0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, end):
            return end.at - self.at

    monkeypatch.setattr(timing, "STEPS", 3)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    took = iter([100, 1, 2, 3])
    step = lambda: clock.__setitem__(0, clock[0] + next(took))
    assert timing.milliseconds(step, torch.device("cuda")) == [1, 2, 3]


def test_the_peak_of_a_step_is_without_what_belongs_to_others(monkeypatch):
    job = Job(tiny(ROWS[0]).case, PLAIN, CPU)
    state = sum(tensor.nbytes for tensor in job.model.state_dict().values())
    moments = sum(value.nbytes for values in job.optimiser.state.values() for value in values.values())
    assert job.held_bytes() == state + moments + job.x.nbytes + job.y.nbytes
    others, more = 7 * 2**20, 3 * 2**20
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: others + job.held_bytes())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: others + job.held_bytes() + more)
    assert memory.peak_mib(job) == 3 + job.held_bytes() / 2**20


# -- networks ----------------------------------------------------------------------------------------------------------


def test_a_step_changes_the_weights_and_leaves_no_gradient():
    job = Job(tiny(ROWS[0]).case, TANH, CPU)
    before = [parameter.clone() for parameter in job.model.parameters()]
    job()
    assert not any(torch.equal(old, new) for old, new in zip(before, job.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in job.model.parameters())
    assert FusedBlock in kinds(job)


def test_networks_are_as_the_row_says():
    rows = {row.name: tiny(row) for row in ROWS}
    frozen = Job(rows["inference"].case, TANH, CPU)
    assert {Frozen, FusedBlock} <= kinds(frozen)
    assert frozen.optimiser is None
    assert not frozen.model.training
    plain = Job(rows["inference"].case, PLAIN, CPU)
    assert not plain.model.training
    assert not any(isinstance(module, Decoupled) for module in plain.model.modules())
    reference = Job(rows["reference"].case, rows["reference"].contender, CPU)
    assert DecoupledConv2d in kinds(reference)
    assert FusedBlock not in kinds(reference)


def test_b_cos_is_linear_conv_with_the_square_cosine():
    x = torch.randn(2, 3, 9, 8)
    ours = DecoupledConv2d(3, 4, 3, 2, 1, magnitude="linear", angular="square_cosine", eps=1e-6)
    theirs = BCosConv2d(3, 4, 3, 2, 1, bias=False)
    theirs.weight = ours.weight
    assert torch.allclose(theirs(x), ours(x), atol=1e-5)


def test_b_cos_takes_the_places_that_decoupled_layers_have():
    network = with_b_cos(create("resnet32", width=2))
    twin = create("resnet32", width=2, operator="tanh-cosine")
    theirs = [name for name, module in network.named_modules() if isinstance(module, BCosConv2d)]
    assert theirs == [name for name, module in twin.named_modules() if isinstance(module, Decoupled)]


# -- bandwidth ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="the passes run in Triton's interpreter")
def test_the_bandwidth_of_every_pass_is_compared_with_that_of_a_copy(here, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    shape = (2, 16, 2, 2)
    size = 4 * math.prod(shape)
    monkeypatch.setattr(bandwidth, "UNCACHED", 2 * size)
    monkeypatch.setattr(measuring, "SHAPES", (shape,))
    monkeypatch.setattr(bandwidth, "in_turns", lambda *jobs: {"baseline": 2.0, "measured": 4.0, "control": 1.25})
    found = list(gpu_table.table(["bandwidth"], tmp_path / "lines.jsonl", CPU))
    assert [row["tensors"] for row in found] == [1, 2, 3, 2, 4, 3]
    for row in found:
        assert row["milliseconds"] == 2.0
        assert row["baseline"] == pytest.approx(1e-6 * 2 * size * 2 / 2.0)
        assert row["measured"] == pytest.approx(1e-6 * 2 * size * row["tensors"] / 4.0)
        assert row["ratio"] == pytest.approx(row["tensors"] / 4)
        assert row["control"] == 0.8
        assert gpu_table.cells(row)[-1] == "–"
    assert len(results.read(tmp_path / "lines.jsonl")) == 6


# -- the script --------------------------------------------------------------------------------------------------------


def test_the_script_says_what_it_cannot_do():
    hidden = environment(CUDA_VISIBLE_DEVICES="")
    wrong = (["--rows", "eagre"], "did you mean 'eager'?"), (["--jobs", "0"], "1 or more"), ([], "torch sees no GPU here")
    for arguments, told in wrong:
        done = subprocess.run([sys.executable, SCRIPT, *arguments], env=hidden, capture_output=True, text=True)
        assert done.returncode == 2
        assert told in done.stderr
