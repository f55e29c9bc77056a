"""A network from its checkpoint alone: the recipe in it says how to build it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dcnets.experiments.checkpoint import Checkpoint, CheckpointError
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.recipe import Recipe, kind_of, refuse_unknown_fields
from dcnets.experiments.run import build_model
from dcnets.experiments.weights import load_weights, open_checkpoint, weights

CROP = 224
"""The side of a streamed image unless told otherwise."""


@dataclass(frozen=True)
class Images:
    """What a network has to know of its images."""

    num_classes: int
    channels: int
    size: int


@dataclass(frozen=True)
class Rebuilt:
    """A trained network, on the CPU and in evaluation mode, the recipe that it was trained by, and its checkpoint."""

    model: nn.Module
    recipe: Recipe
    checkpoint: Checkpoint
    num_classes: int


def rebuild(path: Path, crop: int = CROP) -> Rebuilt:
    """The network in a run's folder, newest checkpoint, or in one checkpoint's file.

    `crop` is the side of the images that a network trained on a stream has seen; others know theirs.
    """
    found = open_checkpoint(path)
    recipe = recipe_of(found)
    classifier = weights(found).get("classifier.weight")
    if classifier is None:
        raise CheckpointError(f"{found.path} holds no classifier.weight; it is not of one of our networks")
    model = blank(recipe, len(classifier), crop)
    load_weights(model, found)
    return Rebuilt(model.eval(), recipe, found, len(classifier))


def blank(recipe: Recipe, num_classes: int | None = None, crop: int = CROP) -> nn.Module:
    """The recipe's network before training, without its data at hand; streams have 1,000 classes unless told otherwise."""
    entry = CATALOGUE.get(recipe.data)
    if entry is None:
        images: Any = Images(num_classes or 1000, 3, crop)
    else:
        images = Images(num_classes or len(entry.classes), entry.channels, entry.size)
    return build_model(recipe, images)


def recipe_of(found: Checkpoint) -> Recipe:
    """The recipe that a checkpoint was written with."""
    try:
        values: dict[str, Any] = found.state["recipe"]
        refuse_unknown_fields(values)
        read: Any = {name: tuple(value) if kind_of(name) is tuple else value for name, value in values.items()}
        return Recipe(**read)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{found.path} has no recipe that this dcnets can read ({error}); use the dcnets that wrote it"
        ) from error
