"""The networks by name, and `create`, which builds one and decouples it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from dcnets.checks import share, whole_number, yes_or_no
from dcnets.conversion import Select, convert
from dcnets.losses import NormalisedClassifier
from dcnets.models.cnn9 import cnn9
from dcnets.models.features2d import features2d
from dcnets.models.googlenet import googlenet
from dcnets.models.network import Network
from dcnets.models.resnet import resnet18, resnet18_modified, resnet32
from dcnets.models.selection import SELECTIONS
from dcnets.models.style import Style
from dcnets.models.vgg import vgg16
from dcnets.naming import choose, refuse_unknown
from dcnets.operator import Operator
from dcnets.options import Options


def keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    """The keyword-only arguments that a function names."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Entry:
    """A network: what builds it, and what it is unless told otherwise."""

    build: Callable[..., Network]
    num_classes: int
    in_channels: int = 3
    bn_momentum: float = 0.001
    own: dict[str, Any] = field(default_factory=dict)


NETWORKS = {
    "cnn9": Entry(cnn9, num_classes=100),
    "cnn9_attack": Entry(cnn9, num_classes=10, own={"width": 32}),
    "resnet32": Entry(resnet32, num_classes=100),
    "resnet18": Entry(resnet18, num_classes=1000),
    "resnet18_modified": Entry(resnet18_modified, num_classes=1000),
    # its trainings are short, and 0.001 would leave batch norm's statistics where they began
    "features2d": Entry(features2d, num_classes=10, in_channels=1, bn_momentum=0.1),
    "vgg16": Entry(vgg16, num_classes=1000),
    "googlenet": Entry(googlenet, num_classes=1000),
}
LAYER_OPTIONS = tuple(Options.__annotations__.keys() - {"operator", *(part.name for part in fields(Operator))})
"""What a decoupled layer takes beside its operator."""


def names() -> list[str]:
    """The names that `create` knows."""
    return list(NETWORKS)


def create(
    name: str, *, num_classes: int | None = None, in_channels: int | None = None, operator: Operator | str | None = None,
    decouple: str | Select = "spatial", batch_norm: bool = True, relu: bool = True, bn_momentum: float | None = None,
    normalised_classifier: bool = False, **more: Any,
) -> Network:  # fmt: skip
    """Build a network with fresh weights; with an `operator`, or its text, decouple the layers that `decouple` names.

    decouple: "spatial" (convolutions larger than 1×1, as the authors do), "convolutions" (all of them), "all" (fully
    connected layers too), or a function select(name, module). batch_norm, relu: whether there is any. bn_momentum: the share
    of a batch in the running statistics, 0.001 as the authors have it. normalised_classifier: weight-normalised softmax.
    more: the network's own keywords (width, image_size, …), and the layers' (learn, radius_init, radius_per, sync).
    None stands for what is usual for the network. The weights depend on torch's seed alone, not on the operator.
    """
    entry = NETWORKS[choose("network", name, NETWORKS)]
    refuse_unknown(f"create({name!r})", more, (*keywords(create), *keywords(entry.build), *LAYER_OPTIONS))
    options: Any = {key: more.pop(key) for key in LAYER_OPTIONS if key in more}
    if options and operator is None:
        raise TypeError(f"{next(iter(options))} is for decoupled layers; name an operator too, such as 'tanh-cosine'")
    select = decouple if callable(decouple) else SELECTIONS[choose("decouple", decouple, SELECTIONS)]
    yes_or_no("normalised_classifier", normalised_classifier)
    momentum = entry.bn_momentum if bn_momentum is None else share("bn_momentum", bn_momentum)
    network = entry.build(
        Style(yes_or_no("batch_norm", batch_norm), yes_or_no("relu", relu), momentum),
        whole_number("num_classes", entry.num_classes if num_classes is None else num_classes),
        whole_number("in_channels", entry.in_channels if in_channels is None else in_channels),
        **{**entry.own, **more},
    )  # fmt: skip
    network.initialise()
    if normalised_classifier:
        normalise_classifiers(network)
    if operator is not None:
        convert(network, select=select, operator=operator, **options)
    return network


def normalise_classifiers(network: nn.Module) -> None:
    """Put weight-normalised softmax in the place of every classifier, with the same weight."""
    for module in network.modules():
        plain = getattr(module, "classifier", None)
        if isinstance(plain, nn.Linear):
            normalised = NormalisedClassifier(plain.in_features, plain.out_features, device="meta")
            normalised.weight = plain.weight
            module.classifier = normalised
