"""What the Triton path is compared on, with the interpreter and on a GPU."""

import torch
from torch import nn

import dcnets
from dcnets import Operator, functional
from dcnets.models.resnet import ResidualUnit, residual_network
from dcnets.models.style import Style, convolution

MAGNITUDES = ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed", "inner_product")
ANGULARS = ("cosine", "square_cosine", "linear", "sigmoid", "power_cosine", "relu_cosine")
WEIGHTINGS = ("none", "linear", "product", "separate")
ERRORS = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""The largest error of y and of each gradient, as a share of its largest element, against the float64 definition."""
CANCELLED = 2e-4
"""The same in float32 for the operator's own parameters behind batch norm, which cancels what is alike in all responses.

Measured: up to 1.4e-4; torch's own float32 sequence on a CPU comes to 1.5e-5 for the same gradients. Behind more than one
batch norm all gradients are cancelled: up to 6.6e-5 for a batch norm's bias, where torch's own comes to 1.7e-5.
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
    "7x7, two tiles of filters": lambda: (dcnets.DecoupledConv2d(2, 130, 7, padding=3), (1, 2, 4, 5)),
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
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
STYLE = Style(batch_norm=True, relu=True, bn_momentum=0.3)
OF_OPERATOR = ("raw_radius", "alpha", "beta", "raw_k", "raw_p")
"""The names of an operator's own parameters."""


def varied(model):
    """The model, with batch norms that are not the identity."""
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, tuple(NORMS.values())):
                norm.weight.copy_(torch.rand_like(norm.weight) + 0.5)
                norm.bias.copy_(torch.randn_like(norm.bias))
                norm.running_mean.copy_(0.1 * torch.randn_like(norm.running_mean))
                norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.5)
    return model


def block(layer, relu=True, momentum=0.3):
    """A layer with batch norm and perhaps a ReLU behind it."""
    norm = NORMS[layer.weight.dim()](layer.weight.shape[0], eps=1e-3, momentum=momentum)
    return varied(nn.Sequential(layer, norm, *([nn.ReLU()] if relu else [])))


def conv_block(before, after, size=3, *, relu=True, momentum=0.3, **options):
    """A block of a convolution that keeps the image's size unless it is told otherwise."""
    return block(dcnets.DecoupledConv2d(before, after, size, **{"padding": size // 2, **options}), relu, momentum)


def unit_of(before, after, stride=1, *, style=STYLE, relu_after=True, decoupled_shortcut=True):
    """A residual unit of decoupled layers."""
    unit = ResidualUnit(style, before, after, stride, relu_after=relu_after)
    select = None if decoupled_shortcut else lambda name, module: not name.startswith("shortcut")
    return varied(dcnets.convert(unit, operator="tanh-cosine", select=select)[0])


def small_network(before=3, width=4, classes=5, operator="tanh-cosine", units=1):
    """A residual network of two stages, with ordinary shortcuts as those of `dcnets.models` are."""
    stem = convolution(STYLE, before, width, 3, relu=False)
    network = residual_network(STYLE, classes, before, stem, width, stages=2, units=units)
    chosen = lambda name, module: isinstance(module, nn.Conv2d) and "shortcut" not in name
    return varied(dcnets.convert(network, operator=operator, select=chosen)[0])


UNITS = {
    "identity": lambda: (unit_of(4, 4), (3, 4, 5, 6)),
    "a decoupled shortcut of stride 2": lambda: (unit_of(3, 4, 2), (3, 3, 7, 6)),
    "an ordinary shortcut of stride 2": lambda: (unit_of(3, 4, 2, decoupled_shortcut=False), (3, 3, 7, 6)),
    "no ReLU after the sum": lambda: (unit_of(4, 4, relu_after=False), (3, 4, 5, 6)),
    "no ReLU at all": lambda: (unit_of(4, 4, style=Style(batch_norm=True, relu=False, bn_momentum=0.3)), (3, 4, 5, 6)),
    "no batch norm": lambda: (unit_of(4, 4, style=Style(batch_norm=False, relu=True, bn_momentum=0.3)), (3, 4, 5, 6)),
}
"""Residual units and the shapes of their inputs."""
CHAINS = {
    "two blocks": lambda: (nn.Sequential(conv_block(3, 4), conv_block(4, 5)), (3, 3, 5, 6), 1),
    "three blocks, the second strided": lambda: (
        nn.Sequential(conv_block(3, 4), conv_block(4, 6, stride=2), conv_block(6, 3, 1, relu=False)), (3, 3, 6, 7), 1,
    ),
    "a flat sequence": lambda: (
        nn.Sequential(
            *conv_block(3, 4), *conv_block(4, 5, relu=False), nn.Dropout(0.0), *conv_block(5, 3), conv_block(3, 2),
        ), (3, 3, 5, 6), 2,
    ),
    "sequences in a sequence": lambda: (
        nn.Sequential(nn.Sequential(conv_block(3, 4), conv_block(4, 4)), nn.Sequential(conv_block(4, 3))), (2, 3, 5, 6), 1,
    ),
    "units": lambda: (nn.Sequential(conv_block(3, 4), unit_of(4, 4), unit_of(4, 4)), (3, 3, 5, 4), 1),
    "units, one of them strided": lambda: (
        nn.Sequential(unit_of(3, 3), unit_of(3, 4, 2, decoupled_shortcut=False), unit_of(4, 4)), (3, 3, 5, 4), 1,
    ),
    "every operator its own": lambda: (
        nn.Sequential(
            conv_block(3, 4, magnitude="segmented", angular="linear"),
            conv_block(4, 4, magnitude="ball", weighting="product"),
            conv_block(4, 3, magnitude="sphere", angular="sigmoid"),
        ), (3, 3, 5, 6), 1,
    ),
    "more filters than a tile has": lambda: (nn.Sequential(conv_block(3, 130, 1), conv_block(130, 3, 1)), (2, 3, 2, 3), 1),
    "one dimension": lambda: (
        nn.Sequential(block(dcnets.DecoupledConv1d(3, 4, 3)), block(dcnets.DecoupledConv1d(4, 3, 3))), (3, 3, 9), 1,
    ),
    "rows": lambda: (
        nn.Sequential(block(dcnets.DecoupledLinear(5, 4)), block(dcnets.DecoupledLinear(4, 3))), (6, 5), 1,
    ),
    "max pooling between": lambda: (nn.Sequential(conv_block(3, 4), nn.MaxPool2d(2), conv_block(4, 3)), (3, 3, 6, 6), 2),
    "a grouped consumer": lambda: (nn.Sequential(conv_block(3, 4), conv_block(4, 6, groups=2)), (3, 3, 5, 6), 2),
    "a circular consumer": lambda: (
        nn.Sequential(conv_block(3, 4), conv_block(4, 3, padding_mode="circular")), (3, 3, 5, 6), 2,
    ),
    "an unevenly padded consumer": lambda: (
        nn.Sequential(conv_block(3, 4), conv_block(4, 3, 4, padding="same")), (3, 3, 5, 6), 2,
    ),
    "a consumer without programs": lambda: (
        nn.Sequential(
            conv_block(3, 4), nn.Sequential(dcnets.DecoupledConvTranspose2d(4, 4, 3), nn.ReLU()), conv_block(4, 3),
        ), (3, 3, 4, 3), 2,
    ),
    "no batch norm": lambda: (
        nn.Sequential(nn.Sequential(dcnets.DecoupledConv2d(3, 4, 3), nn.ReLU()), conv_block(4, 3)), (3, 3, 6, 6), 1,
    ),
    "bias and no batch norm": lambda: (
        nn.Sequential(
            nn.Sequential(dcnets.DecoupledConv2d(3, 4, 3, bias=True), nn.ReLU()),
            nn.Sequential(dcnets.DecoupledConv2d(4, 3, 3, bias=True, magnitude="segmented"), nn.ReLU()),
        ), (3, 3, 6, 6), 1,
    ),
}  # fmt: skip
"""Sequences, the shapes of their inputs, and for how many layers the sums of squares are not handed on."""


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


def results(model, x, path):
    """The same and the running statistics after it."""
    found = gradients(model, x, path)
    return {**found, **{name: value.clone() for name, value in model.named_buffers() if value.is_floating_point()}}


def assert_close(found, wanted, *, deep=False):
    """Every float32 result within its bound of the float64 one, as a share of its largest element.

    With `deep`, what is differentiated goes through more than one batch norm.
    """
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        error = ((found[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-2)).item()
        kind = name.rsplit(".", 1)[-1]
        cancelled = kind in OF_OPERATOR or (deep and not (name == "y" or kind.startswith("running_")))
        assert error < (CANCELLED if cancelled else ERRORS[torch.float32]), (name, error)


def far_from(truth, found):
    """How far each result is from the truth: the length of the difference, as a share of the truth's.

    What is 0 but for float64's rounding, as the gradient of a bias before a batch norm, counts by the longest result.
    """
    assert found.keys() == truth.keys()
    longest = max(value.norm() for value in truth.values())

    def length(value):
        return value.norm() if value.norm() > 1e-12 * longest else longest

    return {name: ((found[name].double() - value).norm() / length(value)).item() for name, value in truth.items()}


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
