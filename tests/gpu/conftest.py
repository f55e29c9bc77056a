"""What training on a GPU is tested with."""

import pytest
import torch
from tiny import tiny_data


@pytest.fixture(scope="module")
def digits():
    return tiny_data()


@pytest.fixture
def no_filling():
    """Deterministic algorithms, but without fills, which a capture records too."""
    torch.use_deterministic_algorithms(False)
