"""Every network–operator pair of the paper as a recipe, made from rows."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from dcnets.experiments.recipe import Recipe

RADIAL = ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed")
"""The seven magnitudes, in the order of the paper's tables."""

IMAGENET: dict[str, Any] = {
    "data": "folder", "optimiser": "sgd", "rate": 0.1, "weight_decay": 1e-4, "batch": 40, "iterations": 700_000,
    "drops": (200_000, 375_000, 550_000), "label_smoothing": 0.0, "penalty": None, "pad": 0,
}  # fmt: skip
"""The authors' ImageNet run; crops come from the folder's own stream."""
DIGITS: dict[str, Any] = {
    "iterations": None, "epochs": 10.0, "batch": 50, "rate": 5e-3, "schedule": "cosine", "warmup": 100, "bn_momentum": 0.1,
    "label_smoothing": 0.0, "pad": 1, "flip": False,
}  # fmt: skip
"""Two-dimensional features of MNIST digits: ours, as the paper does not tell how its figures were trained."""
SGD: dict[str, Any] = {"optimiser": "sgd", "rate": 0.1}
"""Appendix F is not public: the usual rate and momentum, on the authors' schedule."""
ATTACKED: dict[str, Any] = {
    "filters": "standard", "penalty": None, "iterations": 20_000, "drops": (9_400, 14_100, 17_600),
}  # fmt: skip
"""Standard gradients and no trick (section 6.2). Appendix A, which tells how long, is not public: ours is the authors'
schedule, shortened in proportion."""
CRAFTING: dict[str, Any] = {"adversary_eps": 8 / 255, "bn_momentum": 0.1}
"""What all adversaries share. Examples are made in evaluation mode: running statistics have to keep up with the network."""
FGSM: dict[str, Any] = {"adversary": "fgsm", **CRAFTING, "clean_share": 0.5}
"""Half of the loss on examples (Goodfellow et al., 2015); the paper trains by FGSM too, but does not tell its ε."""
DIGITS_FGSM: dict[str, Any] = FGSM | {"adversary_eps": 0.3}
"""Digits stay readable at ε = 0.3, the usual one for MNIST (Madry et al., 2018); that of the paper's Fig. 7 is not told."""
STEPS: dict[str, Any] = {**CRAFTING, "adversary_step": 2 / 255, "adversary_steps": 10}
PGD: dict[str, Any] = {"adversary": "pgd", **STEPS, "clean_share": 0.0}
"""Examples alone (Madry et al., 2018)."""
TRADES: dict[str, Any] = {"adversary": "trades", **STEPS, "trades_weight": 6.0}
"""Zhang et al. (2019)."""

Row = tuple[str, dict[str, Any]]
"""The name of a recipe after data set and network, and what it changes."""


def operators(magnitudes: tuple[str, ...], angulars: tuple[str, ...]) -> Iterator[Row]:
    """The ordinary network, then every pair."""
    yield "", {}
    for magnitude in magnitudes:
        for angular in angulars:
            yield f"-{magnitude}-{angular}", {"operator": f"{magnitude}-{angular}"}


def variant(rows: Iterable[Row], suffix: str, **changes: Any) -> Iterator[Row]:
    """Rows with a suffix and changes to each."""
    for name, values in rows:
        yield name + suffix, values | changes


def table1() -> Iterator[Row]:
    """TanhConv in ResNet-32: weighted operators, and how unweighted filters are trained."""
    for weighting in ("linear", "product", "separate"):
        yield f"-tanh-cosine-{weighting}", {"operator": f"tanh-cosine-{weighting}", "filters": "standard"}
    for filters in ("standard", "weighted"):
        yield f"-tanh-cosine-{filters}_gradients", {"operator": "tanh-cosine", "filters": filters}


def table3() -> Iterator[Row]:
    """CNN-9 with and without ReLU; the last also with ReLU after the fully connected layer alone."""
    yield from operators(RADIAL, ("cosine", "square_cosine"))
    yield from variant(operators(RADIAL, ("cosine", "square_cosine")), "-no_relu", relu=False)
    yield "-no_relu-fc_relu", {"relu": False, "fc_relu": True}


def table5() -> Iterator[Row]:
    """The weight-normalised softmax."""
    for operator in ("tanh-cosine", "linear-square_cosine"):
        yield f"-{operator}-normalised", {"operator": operator, "normalised_classifier": True}


def table7(magnitudes: tuple[str, ...]) -> Iterator[Row]:
    """Tables 7 and 8: natural training in ways that could explain their numbers, and adversarial training."""
    natural = [*operators(magnitudes, ("cosine",))]
    others = [
        *variant(natural, "-no_bn", batch_norm=False),
        *variant(natural, "-no_augmentation", pad=0, flip=False),
        *((f"-{each}-cosine-absolute", {"operator": f"{each}(radius=absolute)-cosine"}) for each in magnitudes
          if each != "sphere"),  # which has no radius
    ]  # fmt: skip
    yield from others
    yield from variant([*natural, *others], "-fgsm", **FGSM)
    yield from variant(natural, "-pgd", **PGD)
    yield from variant(natural, "-trades", **TRADES)


def twins(rows: Iterator[Row]) -> Iterator[Row]:
    """Each row, then the same trained by SGD."""
    for name, values in rows:
        yield name, values
        yield f"{name}-sgd", values | SGD


def rows() -> Iterator[tuple[str, str, Iterator[Row], dict[str, Any]]]:
    """(data set, network, rows, what all of them change) of each table and figure."""
    angulars = ("linear", "cosine", "square_cosine")
    table2 = variant(operators(("linear", "tanh", "segmented"), angulars), "-no_bn", batch_norm=False)
    yield "cifar100", "resnet32", twins(table1()), {}
    yield "cifar100", "cnn9", twins(table2), {}
    yield "cifar100", "cnn9", twins(table3()), {}
    yield "cifar100", "resnet32", twins(operators(RADIAL, angulars)), {}
    yield "cifar100", "resnet32", twins(table5()), {}
    yield "cifar10", "resnet32", twins(table5()), {}
    yield "cifar10", "resnet32", twins(operators((), ())), {}
    imagenet = ("sphere", "linear", "tanh")
    yield "imagenet", "resnet18", operators(imagenet, ("cosine",)), IMAGENET
    yield "imagenet", "resnet18_modified", operators(imagenet, ("cosine",)), IMAGENET
    yield "imagenet", "resnet18_modified", variant(operators(imagenet, ("cosine",)), "-no_bn", batch_norm=False), IMAGENET
    bounded = ("sphere", "ball", "tanh")
    yield "cifar10", "cnn9_attack", twins(operators(bounded, ("cosine",))), ATTACKED
    yield "cifar10", "cnn9_attack", table7(bounded), ATTACKED
    yield "mnist", "features2d", operators(bounded, ("cosine",)), DIGITS
    yield "mnist", "features2d", variant(operators(bounded, ("cosine",)), "-fgsm", **DIGITS_FGSM), DIGITS
    small = DIGITS | {"width": 8}  # `make demo` is to be quick
    yield "mnist-subset", "features2d", operators(bounded, ("cosine",)), small
    yield "mnist-subset", "features2d", variant(operators(bounded, ("cosine",)), "-fgsm", **DIGITS_FGSM), small


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    found: dict[str, Recipe] = {}
    for data, network, lines, common in rows():
        for suffix, values in lines:
            name = f"{data}-{network}{suffix}"
            found[name] = Recipe(name=name, **{"data": data, **common, "network": network, **values})
    return found


def get(name: str) -> Recipe:
    """A recipe by its name."""
    if name not in recipes():
        close = difflib.get_close_matches(name, recipes(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ValueError(f"unknown recipe {name!r}; {hint}`dcnets recipes` lists all {len(recipes())}")
    return recipes()[name]


def changed(recipe: Recipe) -> dict[str, Any]:
    """The fields in which a recipe differs from the authors' CIFAR run."""
    usual = dataclasses.asdict(Recipe(name=recipe.name))
    return {name: value for name, value in dataclasses.asdict(recipe).items() if value != usual[name]}
