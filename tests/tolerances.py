"""The one table of tolerances: the largest error allowed, relative to the largest entry of what was expected."""

import torch

AUTHORS = 1e-5  # the recorded arrays are float32, computed by other code
EXACT = 1e-12  # float64, the same formula written differently
UNFOLD = 1e-9  # float64, through an arc cosine, which loses digits near ±1
SCALE = 1e-5  # float32, against the float64 truth
HALF = {torch.float16: 8 * 2**-11, torch.bfloat16: 8 * 2**-8}  # eight roundings: z, ŵ, y, their gradients


def error(actual: torch.Tensor, expected: torch.Tensor, least_scale: float = 0.0) -> float:
    """The largest deviation, in units of the largest expected entry, or of `least_scale` where all are smaller."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} instead of {tuple(expected.shape)}"
    if expected.numel() == 0:
        return 0.0
    scale = max(expected.abs().max().double().item(), least_scale) or 1.0
    return (actual.double() - expected.double()).abs().max().item() / scale
