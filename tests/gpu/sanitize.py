"""Small odd shapes for NVIDIA's compute-sanitizer, forward and backward; the exit status is 1 where a result is not finite.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tests/gpu/sanitize.py
(also --tool racecheck, initcheck and synccheck; without PyTorch's cache every tensor has its own bounds)
"""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from fused_cases import CHAINS, LAYERS, UNITS, conv_block, gradients, layer_of, small_network

import dcnets
from dcnets.fusing import fuse

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
CASES = {
    "layer, odd": (lambda: LAYERS["odd"](), FULL),
    "layer, one channel": (lambda: LAYERS["one channel"](), HALF),
    "layer, stride 2": (lambda: LAYERS["stride 2"](), BRAIN),
    "layer, groups": (lambda: LAYERS["groups"](), FULL),
    "layer, depthwise": (lambda: LAYERS["depthwise"](), BRAIN),
    "layer, 1x1 of stride 2": (lambda: LAYERS["1x1"](), HALF),
    "layer, 5x3, uneven": (lambda: LAYERS["5x3, uneven"](), FULL),
    "layer, padded by itself": (lambda: LAYERS["same"](), BRAIN),
    "layer, 300 channels and 130 filters": (lambda: LAYERS["wide"](), FULL),
    "layer, one dimension": (lambda: LAYERS["1d"](), HALF),
    "layer, three dimensions": (lambda: LAYERS["3d"](), FULL),
    "layer, rows of a matrix": (lambda: LAYERS["linear"](), FULL),
    "layer, one radius": (lambda: LAYERS["radius a layer"](), BRAIN),
    "layer, everything learned": (lambda: LAYERS["all learned"](), FULL),
    "layer, product weighting": (lambda: (layer_of("tanh-sigmoid-product"), (3, 4, 7, 5)), FULL),
    "layer, one image of one pixel": (lambda: (dcnets.DecoupledConv2d(3, 5, 3, padding=1), (1, 3, 1, 1)), HALF),
    "block": (lambda: (conv_block(5, 7, magnitude="segmented"), (3, 5, 7, 11)), FULL),
    "block, 200 filters": (lambda: (conv_block(3, 200, 1), (3, 3, 3, 5)), BRAIN),
    "block, groups of 3": (lambda: (conv_block(6, 9, groups=3), (3, 6, 5, 3)), HALF),
    "unit": (lambda: UNITS["identity"](), BRAIN),
    "unit, strided": (lambda: UNITS["a decoupled shortcut of stride 2"](), FULL),
    "chain": (lambda: CHAINS["three blocks, the second strided"]()[:2], BRAIN),
    "chain, wide": (lambda: CHAINS["more filters than a tile has"]()[:2], FULL),
    "chain, no batch norm": (lambda: CHAINS["bias and no batch norm"]()[:2], HALF),
    "chain of units": (lambda: CHAINS["units, one of them strided"]()[:2], FULL),
    "network": (lambda: (small_network(width=6), (3, 3, 7, 5)), BRAIN),
}


def main() -> int:
    """Run every case in training and in evaluation."""
    bad = 0
    for name, (make, dtype) in CASES.items():
        for training in (True, False):
            torch.manual_seed(0)
            model, shape = make()
            fused = fuse(nn.Sequential(model)).to("cuda", dtype).train(training)
            x = torch.randn(shape).to("cuda", dtype)
            found = gradients(fused, x, "fused") | dict(fused.named_buffers())
            torch.cuda.synchronize()
            wrong = [key for key, value in found.items() if not value.isfinite().all()]
            bad += bool(wrong)
            state = f"not finite: {', '.join(wrong)}" if wrong else "finite"
            print(f"{name}, {dtype}, {'training' if training else 'evaluation'}: {state}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
