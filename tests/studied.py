"""Made-up lines of a study, and small networks on disk for a real one."""

import dataclasses
import json

import dcnets
from dcnets.experiments import recipes
from dcnets.experiments.run import run
from dcnets.experiments.settings import Settings

DIGITS = "mnist-subset-features2d"
QUICK = {"width": 2, "batch": 64, "iterations": 40, "epochs": None, "warmup": 0, "rate": 0.02, "evaluate_every": 9.0}


def recipe(name, seed=0, scale=1):
    ending = "" if scale == 1 else f"-scale_{scale:g}"
    return json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(recipes.get(name), name=name + ending, seed=seed))))


def line(part, name, seed=0, *, scale=1, makers=(), **values):
    """A line as the study writes it; makers are (recipe, seed)."""
    made = {f"{maker}-seed{its}": {"recipe": recipe(maker, its, scale), "step": 42_500} for maker, its in makers}
    return {"dcnets": dcnets.__version__, "part": part, "network": f"{name}-seed{seed}", "step": 42_500, "first": 0,
            "images": 10_000, "precision": "float32", "recipe": recipe(name, seed, scale), "clean": 0.9, "attacks": [],
            "makers": made, **values}  # fmt: skip


def exam(trial, accuracy, made_on=None):
    return {"attack": trial.attack, **trial.settings(), "made_on": made_on, "accuracy": accuracy, "error": 0.001}


def train(folder, name, seed=0):
    """A network that has learned a little, in its folder."""
    short = dataclasses.replace(recipes.get(name), **QUICK, seed=seed)
    run(short, folder=folder / f"{name}-seed{seed}", device="cpu", settings=Settings(quiet=True))
