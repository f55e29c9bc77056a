"""What training on a GPU is tested with."""

import warnings
from contextlib import contextmanager

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


@pytest.fixture
def no_waiting():
    """A context in which nothing may make the host wait for the device."""

    @contextmanager
    def watched():
        torch.cuda.synchronize()
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the mode says that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return watched
