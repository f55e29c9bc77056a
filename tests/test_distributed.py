"""Data-parallel training with two processes on gloo against one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, SCRIPTS / "parallel_training.py", folder], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def alone(monkeypatch):
    """Train a case in this process."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import parallel_training
    from tiny import tiny_data

    from dcnets.experiments.distributed import Team

    def train(name, pieces=1):
        monkeypatch.setitem(parallel_training.CASES, name, (*parallel_training.CASES[name][:2], pieces))
        return parallel_training.train(name, tiny_data(), Team())

    return train


def weights(folder, name):
    return load_file(folder / f"{name}.safetensors")


def history(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["ordinary", "accumulated", "shared_radius"])
def test_without_batch_norm_the_loss_curve_is_that_of_one_process(parallel, alone, name):
    model, outcome = alone(name)
    found = history(parallel, name)
    assert [row["step"] for row in found] == [row["step"] for row in outcome.history] == [8, 16, 24]
    for key in ("loss", "accuracy", "test_top1", "test_loss"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in outcome.history], rel=2e-5), key
    for key, value in weights(parallel, name).items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=1e-4, atol=1e-5, msg=key)


def test_with_batch_norm_the_gradients_are_those_of_the_same_two_pieces(parallel, alone):
    model, _ = alone("batch_norm", pieces=2)
    found = weights(parallel, "batch_norm")
    for key, value in model.named_parameters():
        torch.testing.assert_close(found[key], value.detach(), rtol=1e-6, atol=1e-7, msg=key)


def test_one_process_writes_and_a_stop_anywhere_stops_all(parallel):
    assert len((parallel / "whole" / "metrics.jsonl").read_text().splitlines()) == 6
    assert "stopped after 40 of 48 updates" in (parallel / "stopped.txt").read_text()


def test_a_stopped_parallel_run_goes_on_to_the_same_bits(parallel):
    whole, stopped = (load_file(parallel / name / "step-000000048.safetensors") for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    for key, value in whole.items():
        assert torch.equal(value, stopped[key]), key


def test_synchronised_batch_norm_on_a_cpu_is_refused():
    from dcnets.experiments.distributed import Team

    with pytest.raises(ValueError, match="synchronised batch norm needs GPUs"):
        Team(0, 2).wrap(torch.nn.BatchNorm2d(3), torch.device("cpu"), sync_bn=True)
