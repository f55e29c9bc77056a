"""Small trainings under torchrun; the first process writes their weights and histories to a folder.

Usage: torchrun --nproc-per-node 2 parallel_training.py FOLDER
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from safetensors.torch import save_file
from tiny import StopAt, tiny_data, tiny_model, tiny_recipe, tiny_source, tiny_test

from dcnets.cli import leave
from dcnets.experiments.distributed import join
from dcnets.experiments.settings import Settings
from dcnets.experiments.signals import StoppedError
from dcnets.experiments.train import fit

CASES = {
    "ordinary": ({"operator": False, "batch_norm": False, "dropout": 0.0}, {"operator": None}, 1),
    "accumulated": ({"operator": False, "batch_norm": False, "dropout": 0.0}, {"operator": None}, 2),
    "batch_norm": ({"dropout": 0.0}, {"optimiser": "sgd", "rate": 0.1, "iterations": 1}, 1),
    "shared_radius": ({"batch_norm": False, "dropout": 0.0, "sync": True}, {}, 1),
    "dropout": ({}, {"iterations": 48}, 1),
}
"""Model, recipe and accumulated pieces of each training."""


def train(name, dataset, team, folder=None, stop=None):
    model_options, changes, pieces = CASES[name]
    recipe, model = tiny_recipe(**changes), tiny_model(**model_options)
    source = tiny_source(dataset, recipe, rank=team.rank, world=team.world, pieces=pieces)
    torch.manual_seed(1 + team.rank)
    outcome = fit(
        model, StopAt(source, stop) if stop else source, recipe, tiny_test(dataset), folder=folder, team=team,
        settings=Settings(quiet=True, pieces=pieces),
    )  # fmt: skip
    return model, outcome


def main(folder):
    torch.set_num_threads(1)
    dataset = tiny_data()
    with join("cpu") as (team, _):
        for name in CASES:
            model, outcome = train(name, dataset, team, folder / "whole" if name == "dropout" else None)
            if team.leads:
                save_file(
                    {key: value.contiguous() for key, value in model.state_dict().items()}, folder / f"{name}.safetensors"
                )
                (folder / f"{name}.json").write_text(json.dumps(outcome.history))
        try:
            train("dropout", dataset, team, folder / "stopped", stop=23 if team.rank == 1 else None)
        except StoppedError as stopped:
            if team.leads:
                (folder / "stopped.txt").write_text(str(stopped))
        train("dropout", dataset, team, folder / "stopped")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
