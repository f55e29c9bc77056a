"""The frozen copy outside of PyTorch: exported once, run by ONNX Runtime for any batch (extra `export`)."""

import pytest
import torch
from tolerances import error
from torch import nn

from dcnets import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledConvTranspose2d,
    DecoupledLinear,
    convert,
    freeze,
)

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

# torch's exporter meets a deprecation of torch's own
pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")

PARITY = 1e-5


def network(**options):
    """A small classifier, converted and trained for two batches."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    )
    model, _ = convert(model, select=lambda name, module: True, **options)
    for _ in range(2):
        model(torch.randn(4, 3, 8, 8))
    return model.eval()


def run(program, x, path):
    """What ONNX Runtime computes."""
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return [torch.from_numpy(session.run(None, {taken.name: batch.numpy()})[0]) for batch in x]


def exported(model, x):
    """The model as ONNX with a dynamic batch."""
    return torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)


OPERATORS = [
    {"magnitude": "tanh", "angular": "cosine"},
    {"magnitude": "ball", "angular": "square_cosine"},
    {"magnitude": "segmented", "angular": "linear", "weighting": "linear"},
    {"magnitude": "log", "angular": "sigmoid", "learn": ("k",), "weighting": "product"},
    {"magnitude": "sphere", "angular": "power_cosine", "p": 3.0},
    {"magnitude": "mixed", "angular": "relu_cosine", "weighting": "separate"},
    {"magnitude": "tanh+0.5*linear", "radius": "absolute"},
    {"magnitude": "piecewise(monotone=True)", "angular": "piecewise"},
    {"magnitude": "linear"},
]


@pytest.mark.parametrize("options", OPERATORS, ids=lambda options: "-".join(map(str, options.values())))
def test_onnx_runtime_computes_what_the_model_computes_for_any_batch(options, tmp_path):
    model = network(**options)
    program = exported(freeze(model), torch.randn(3, 3, 8, 8))
    batches = [torch.randn(batch, 3, 8, 8) for batch in (1, 3, 7)]
    with torch.no_grad():
        for y, x in zip(run(program, batches, tmp_path / "model.onnx"), batches, strict=True):
            assert error(y, model(x)) < PARITY


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: DecoupledConv1d(4, 6, 3, padding="same", bias=True), (4, 7)),
        (lambda: DecoupledConv2d(4, 6, 3, padding=1, groups=2, padding_mode="reflect"), (4, 6, 5)),
        (lambda: DecoupledConv3d(4, 6, 3, dilation=(1, 2, 1), groups=2), (4, 4, 6, 3)),
        (lambda: DecoupledConvTranspose2d(4, 6, 3, 2, 1, 1, 2, True), (4, 4, 5)),
        (lambda: DecoupledLinear(4, 6, bias=True), (3, 4)),
    ],
    ids=["conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear"],
)
def test_onnx_runtime_computes_what_every_kind_of_layer_computes(layer, shape, tmp_path):
    layer = layer().eval()
    program = exported(freeze(layer), torch.randn(3, *shape))
    batches = [torch.randn(batch, *shape) for batch in (1, 5)]
    with torch.no_grad():
        for y, x in zip(run(program, batches, tmp_path / "layer.onnx"), batches, strict=True):
            assert error(y, layer(x)) < PARITY


def test_in_the_exported_graph_the_filters_meet_nothing_but_the_convolution():
    layer = DecoupledConv2d(32, 32, 3).eval()  # large enough for the exporter to leave its normalisation in the graph
    users = {}
    for name, model in (("layer", layer), ("frozen", freeze(layer))):
        graph = exported(model, torch.randn(3, 32, 5, 5)).model.graph
        users[name] = [node.op_type for node, _ in graph.initializers["weight"].uses()]
    assert users["frozen"] == ["Conv"]
    assert "Conv" not in users["layer"]
