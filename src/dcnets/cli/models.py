"""`dcnets models`: the networks, and which layers of one are decoupled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dcnets.cli.command import Command
from dcnets.cli.output import show
from dcnets.cli.words import Word
from dcnets.naming import choose

if TYPE_CHECKING:
    from torch import nn

    from dcnets.models.network import Network


def known(name: str) -> str:
    """The name of a network."""
    from dcnets.models.catalogue import names

    return choose("network", name, names())


EXAMPLES = ("dcnets models resnet32",)


@click.command(cls=Command, short_help="List the networks.", examples=EXAMPLES)
@click.argument("name", type=Word("network", known, tuple), required=False)
def models(name: str | None) -> None:
    """List the networks, or the layers of the network NAME.

    Every network comes with and without batch norm and ReLU: see the fields of a recipe in `dcnets train --help`.
    """
    from dcnets.models.catalogue import names

    if name is None:
        numbers = ("parameters", "classes")
        rows = [
            (each, f"{parameters(network):,}", str(classes(network)), images(network))
            for each in names()
            for network in [built(each)]
        ]
        show(("network", *numbers, "images"), rows, numbers)
        click.echo("dcnets models NAME shows its layers")
        return
    network = built(name)
    layers = [
        (path, layer) for path, layer in network.named_modules() if hasattr(layer, "weight") and decoupled_by(path, layer)
    ]
    show(
        ("layer", "kind", "weight", "decoupled with --decouple"),
        [(path, type(layer).__name__, shape(layer), decoupled_by(path, layer)) for path, layer in layers],
    )
    own = ", ".join(keywords(name))
    click.echo(
        f"{name}: {parameters(network):,} parameters, images {images(network)}" + (f"; own keywords: {own}" if own else "")
    )


def built(name: str) -> Network:
    """A network without memory for its weights."""
    import torch

    from dcnets.models.catalogue import create

    with torch.device("meta"):
        return create(name)


def keywords(name: str) -> tuple[str, ...]:
    """What `create` takes for this network beside what it takes for every one."""
    from dcnets.models import catalogue

    return catalogue.keywords(catalogue.NETWORKS[name].build)


def parameters(network: nn.Module) -> int:
    """How many numbers are learned in the ordinary network."""
    return sum(parameter.numel() for parameter in network.parameters())


def classes(network: Network) -> int:
    """How many classes it tells apart unless asked for others."""
    weight: Any = network.classifier.weight
    return len(weight)


def images(network: Network) -> str:
    """The images that it takes."""
    if network.image_size is not None:
        return f"{network.in_channels}×{network.image_size}×{network.image_size}"
    return f"{network.in_channels}×H×W" + (f", from {network.smallest} on" if network.smallest > 1 else "")


def shape(layer: nn.Module) -> str:
    """The shape of a layer's weight."""
    return "×".join(str(side) for side in layer.weight.shape)  # type: ignore[union-attr]


def decoupled_by(path: str, layer: nn.Module) -> str:
    """The choices of layers that an operator reaches this one by, or nothing."""
    from dcnets.conversion import why_not
    from dcnets.models.selection import SELECTIONS

    return ", ".join(word for word, select in SELECTIONS.items() if why_not(path, layer, select) is None)
