"""Train in a child process that is killed at random moments until it ends; print what became of it as JSON.

Usage: killed_training.py FOLDER KILLS. A process is forked for each try, so that none of them has to import torch again.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from tiny import tiny_data, tiny_model, tiny_recipe, tiny_source, tiny_test

from dcnets.experiments.settings import Settings
from dcnets.experiments.train import fit

torch.set_num_threads(1)
DATASET = tiny_data()
RECIPE = tiny_recipe(iterations=1500, drops=(500, 1000), project_every=100, evaluate_every=20.0)
SETTINGS = Settings(save_seconds=0.03, quiet=True)


def train(folder):
    source = tiny_source(DATASET, RECIPE)
    model = tiny_model()
    torch.manual_seed(1)
    fit(model, source, RECIPE, tiny_test(DATASET), folder=folder, settings=SETTINGS)


def attempt(folder, patience):
    """One try; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            train(folder)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + patience
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                sys.exit(f"a try ended with status {status}")
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


if __name__ == "__main__":
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    moments = random.Random(0)
    count = sum(attempt(folder / "killed", moments.uniform(0.02, 0.2)) for _ in range(kills))
    while attempt(folder / "killed", 300.0):
        count += 1
    train(folder / "undisturbed")
    print(json.dumps({"kills": count}))
