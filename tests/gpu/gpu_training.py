"""Small training runs on a GPU, call by call, captured, or captured and compiled."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import tiny_model, tiny_source

from dcnets import functional
from dcnets.experiments.data.resident import in_order
from dcnets.experiments.data.sets import Split
from dcnets.experiments.settings import Settings
from dcnets.experiments.train import fit
from dcnets.fusing import fuse

MARKS = [
    pytest.mark.usefixtures("no_filling"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # float32 is compared here
    pytest.mark.filterwarnings("ignore:Online softmax is disabled:UserWarning"),
]
DEVICE = torch.device("cuda", 0)
EAGER, CAPTURED = Settings(quiet=True), Settings(quiet=True, captured=True)
COMPILED = Settings(quiet=True, captured=True, compiled=True)


def trained(digits, recipe, settings, folder=None, precision=torch.float32, fused=False, **model):
    network = tiny_model(**model).to(DEVICE)
    if fused:
        network = fuse(network)
    torch.manual_seed(1)
    source = tiny_source(digits, recipe, device=DEVICE, pieces=settings.pieces, compiled=settings.compiled)
    test = Split(digits.test.images.to(DEVICE), digits.test.labels.to(DEVICE))
    with functional.backend("fused" if fused else "reference"):
        outcome = fit(
            network, source, recipe, lambda: in_order(test, 50, mean=digits.mean, std=digits.std, device=DEVICE),
            folder=folder, device=DEVICE, precision=precision, settings=settings,
        )  # fmt: skip
    return network, outcome
