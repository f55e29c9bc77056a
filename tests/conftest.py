"""What every test starts from: a fixed seed, the default path, and uninitialised memory that shows itself as NaN."""

import os

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is first imported; tests/test_fused.py needs it

from dcnets import dispatch, functional

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, print_blob=True)
hypothesis.settings.load_profile("house")
torch.set_num_threads(1)  # the shapes are small


@pytest.fixture(autouse=True)
def _fixed_start():
    torch.manual_seed(0)
    functional.backend("auto")
    dispatch.INTERPRETED = False
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]
    functional.backend("auto")
