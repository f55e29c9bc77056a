"""What the Triton path is compared on, with the interpreter and on a GPU."""

import torch

import dcnets
from dcnets import Operator, functional

MAGNITUDES = ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed", "inner_product")
ANGULARS = ("cosine", "square_cosine", "linear", "sigmoid", "power_cosine", "relu_cosine")
WEIGHTINGS = ("none", "linear", "product", "separate")
ERRORS = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""The largest error of y and of each gradient, as a share of its largest element, against the float64 definition."""
CANCELLED = 2e-4
"""The same in float32 for the operator's own parameters behind batch norm, which cancels what is alike in all responses.

Measured: up to 1.4e-4; torch's own float32 sequence on a CPU comes to 1.5e-5 for the same gradients.
"""

LAYERS = {
    "odd": lambda: (dcnets.DecoupledConv2d(5, 7, 3, padding=1), (3, 5, 7, 11)),
    "one channel": lambda: (dcnets.DecoupledConv2d(1, 1, 3), (2, 1, 5, 5)),
    "stride 2": lambda: (dcnets.DecoupledConv2d(4, 6, 3, stride=2, padding=1), (2, 4, 8, 9)),
    "groups": lambda: (dcnets.DecoupledConv2d(6, 9, 3, groups=3, padding=1), (2, 6, 5, 4)),
    "depthwise": lambda: (dcnets.DecoupledConv2d(4, 4, 3, groups=4, magnitude="segmented"), (2, 4, 6, 5)),
    "dilation": lambda: (dcnets.DecoupledConv2d(3, 4, 3, dilation=2, padding=2), (2, 3, 7, 6)),
    "1x1": lambda: (dcnets.DecoupledConv2d(3, 8, 1, stride=2), (2, 3, 6, 6)),
    "5x3, uneven": lambda: (dcnets.DecoupledConv2d(3, 4, (5, 3), stride=(2, 1), padding=(2, 0)), (2, 3, 9, 7)),
    "bias": lambda: (dcnets.DecoupledConv2d(3, 4, 3, bias=True), (2, 3, 6, 6)),
    "circular": lambda: (dcnets.DecoupledConv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 5)),
    "same": lambda: (dcnets.DecoupledConv2d(3, 4, 4, padding="same"), (2, 3, 6, 5)),
    "wide": lambda: (dcnets.DecoupledConv2d(300, 130, 1), (1, 300, 2, 3)),
    "1d": lambda: (dcnets.DecoupledConv1d(4, 6, 5, dilation=2, padding=3), (3, 4, 17)),
    "3d": lambda: (dcnets.DecoupledConv3d(2, 3, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 0)), (2, 2, 4, 5, 3)),
    "linear": lambda: (dcnets.DecoupledLinear(7, 5, bias=True), (6, 7)),
    "linear, three axes": lambda: (dcnets.DecoupledLinear(7, 5), (2, 3, 7)),
    "radius a layer": lambda: (dcnets.DecoupledConv2d(3, 4, 3, radius_per="layer", angular="linear"), (2, 3, 6, 5)),
    "radius fixed": lambda: (dcnets.DecoupledConv2d(3, 4, 3, learn=()), (2, 3, 6, 5)),
    "radius absolute": lambda: (dcnets.DecoupledConv2d(3, 4, 3, radius="absolute", radius_init=3.0), (2, 3, 6, 5)),
    "all learned": lambda: (
        dcnets.DecoupledConv2d(
            3, 4, 3, magnitude="segmented", angular="sigmoid", learn=("radius", "alpha", "beta", "k")
        ), (2, 3, 6, 5),
    ),
    "power learned": lambda: (
        dcnets.DecoupledConv2d(3, 4, 3, magnitude="mixed", angular="power_cosine", learn=("alpha", "beta", "p")),
        (2, 3, 6, 5),
    ),
}  # fmt: skip
"""Layers and the shapes of their inputs."""


def operators():
    """Every h, g and weighting that go together."""
    for magnitude in MAGNITUDES:
        for angular in ANGULARS:
            for weighting in WEIGHTINGS:
                refused = {"sphere": ("product", "separate"), "inner_product": ("linear", "product", "separate")}
                if weighting not in refused.get(magnitude, ()):
                    yield str(Operator(magnitude, angular, weighting))


def layer_of(text):
    operator = Operator.parse(text)
    return dcnets.DecoupledConv2d(
        4, 6, 3, padding=1, magnitude=operator.magnitude, angular=operator.angular, weighting=operator.weighting
    )


def gradients(layer, x, path):
    """y and its gradients by name, along a path."""
    with functional.backend(path):
        x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = layer(x)
        direction = torch.linspace(-1, 1, y.numel(), dtype=torch.float64, device=y.device).cos().view(y.shape)
        names, parameters = zip(*layer.named_parameters(), strict=True)
        found = torch.autograd.grad(y, [x, *parameters], direction.to(y.dtype))
    return {"y": y.detach(), "x": found[0], **dict(zip(names, found[1:], strict=True))}


def errors(layer, x):
    """The error of each result of the Triton path against the float64 definition, as a share of its largest element."""
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    found = gradients(layer, x, "fused")
    layer.load_state_dict(state)
    wanted = gradients(layer.double(), x.double(), "reference")
    assert found.keys() == wanted.keys()
    return {
        name: ((found[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-3)).item()
        for name, value in wanted.items()
    }
