"""A recipe: all that decides what a training run computes, as frozen data without torch."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dcnets.experiments.adversary_fields import check_adversary, with_useless_emptied
from dcnets.naming import choose, near_miss, quotient

FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
FAST = 0.1
"""The largest share of a batch in batch norm's statistics that a shortened schedule leads to; torch's own default."""
NOTHING = "none"
"""How a field that may be empty is left empty on the command line."""


def told(default: Any, help: str) -> Any:
    """A field with a default and the sentence that the command line shows for it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Recipe:
    """One training run; the defaults are what the authors ran on CIFAR."""

    name: str
    network: str = told("cnn9", "network, by its name in `dcnets models`")
    operator: str | None = told(None, "operator such as tanh-cosine; none for ordinary convolutions")
    data: str = told("cifar100", "data set, by its name in `dcnets data`")
    batch_norm: bool = told(True, "batch norm after each convolution")
    relu: bool = told(True, "ReLU after each convolution")
    fc_relu: bool | None = told(None, "ReLU after CNN-9's fully connected layer; none: as elsewhere")
    normalised_classifier: bool = told(False, "weight-normalised softmax")
    decouple: Literal["spatial", "convolutions", "all"] = told("spatial", "which layers the operator stands in")
    bn_momentum: float = told(0.001, "share of a batch in batch norm's running statistics")
    width: int | None = told(None, "channels of the first stage, for networks that take it; none: the network's own")
    optimiser: Literal["adam", "adamw", "sgd"] = told("adam", "optimiser")
    rate: float = told(1e-3, "learning rate at the start")
    momentum: float = told(0.9, "momentum of SGD; the first β of Adam")
    weight_decay: float = told(5e-4, "L2 (in AdamW decoupled) decay of all but decoupled filters and radii")
    schedule: Literal["steps", "plateau", "cosine"] = told("steps", "how the learning rate falls")
    drops: tuple[int, ...] = told((20_000, 30_000, 37_500), "iterations at which schedule steps divides the rate")
    factor: float = told(0.1, "what the rate is multiplied by at a drop or on a plateau")
    patience: int = told(10, "tests without a lower training loss that make a plateau")
    warmup: int = told(0, "iterations over which the rate rises from 0")
    batch: int = told(128, "images in an update, over all processes")
    iterations: int | None = told(42_500, "updates; none where epochs is given")
    epochs: float | None = told(None, "passes over the training set, in place of iterations")
    label_smoothing: float = told(0.01, "label smoothing of the softmax loss")
    penalty: Literal["orthonormal", "orthogonal"] | None = told("orthonormal", "penalty on decoupled filters")
    penalty_weight: float = told(1e-5, "weight of half the penalty")
    filters: Literal["projected", "weighted", "standard"] = told(
        "projected", "decoupled filters: weight projection, weighted gradients or standard gradients"
    )
    project_every: int = told(100, "iterations from one projection to the next")
    pad: int = told(4, "pixels of padding before the random crop")
    pad_mode: Literal["symmetric", "reflect", "zeros"] = told("symmetric", "what the padding shows")
    flip: bool = told(True, "random horizontal flip")
    adversary: Literal["fgsm", "pgd", "trades"] | None = told(None, "adversarial training on examples of this attack")
    adversary_eps: float | None = told(None, "largest change of a pixel in an example, pixels being in [0, 1]; as 8/255")
    adversary_step: float | None = told(None, "length of a step of pgd and trades, pixels being in [0, 1]; as 2/255")
    adversary_steps: int | None = told(None, "steps of pgd and trades")
    clean_share: float | None = told(None, "share of the unchanged images' loss beside that of fgsm's or pgd's examples")
    trades_weight: float | None = told(None, "weight β of the divergence in the loss of trades")
    precision: Literal["auto", "fp32", "bf16"] = told("auto", "arithmetic; auto: bf16 on a GPU that has it, else fp32")
    evaluate_every: float = told(1.0, "epochs from one test to the next")
    seed: int = told(0, "seed of weights, order and augmentation")

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            check_type(each.name, getattr(self, each.name))
        for name in ("rate", "batch", "width", "project_every", "patience", "evaluate_every", "iterations", "epochs"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")
        for name in ("momentum", "label_smoothing", "bn_momentum", "factor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)!r}")
        for name in ("weight_decay", "penalty_weight", "pad", "warmup", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)!r}")
        if (self.iterations is None) == (self.epochs is None):
            raise ValueError(
                f"give iterations or epochs, the other being none; got iterations={self.iterations}, epochs={self.epochs}"
            )
        if list(self.drops) != sorted(set(self.drops)):
            raise ValueError(f"drops must rise, got {self.drops}")
        check_adversary(vars(self))
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value!r}")

    def length(self, batches: int) -> int:
        """The number of updates, where an epoch has so many batches."""
        return self.iterations if self.iterations is not None else max(1, round((self.epochs or 0) * batches))

    def arithmetic(self, bf16: bool) -> str:
        """The arithmetic, as torch names it, on a device that has fast bfloat16 or has not."""
        return "bfloat16" if self.precision == "bf16" or (self.precision == "auto" and bf16) else "float32"

    def override(self, values: Mapping[str, Any]) -> Recipe:
        """A recipe with other values, as typed on a command line or as objects.

        Epochs given alone take the place of iterations, and the other way round. Fields that a newly chosen adversary has
        no use for are emptied.
        """
        changed = {name: read(name, value) if isinstance(value, str) else value for name, value in values.items()}
        for one, other in (("epochs", "iterations"), ("iterations", "epochs")):
            if changed.get(one) is not None and other not in changed:
                changed[other] = None
        return dataclasses.replace(self, **with_useless_emptied(changed))

    def scaled(self, scale: float) -> Recipe:
        """The same run with its schedule shortened in proportion, and with it the updates that batch norm's statistics span.

        These span ten updates at least, unless the recipe itself has fewer.
        """

        def times(steps: int) -> int:
            return max(1, round(steps * scale))

        return dataclasses.replace(
            self,
            bn_momentum=max(self.bn_momentum, min(FAST, self.bn_momentum / scale)),
            iterations=None if self.iterations is None else times(self.iterations),
            epochs=None if self.epochs is None else self.epochs * scale,
            drops=tuple(sorted({times(drop) for drop in self.drops})),
            warmup=round(self.warmup * scale),
            patience=times(self.patience),
        )


KINDS: dict[str, Any] = typing.get_type_hints(Recipe)
DEFAULTS = {each.name: each.default for each in dataclasses.fields(Recipe) if each.default is not dataclasses.MISSING}


def alternatives(name: str) -> tuple[Any, ...]:
    """The types that a field may have, a Literal's words being one of them."""
    kind = KINDS[choose("field", name, KINDS)]
    return typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union else (kind,)


def words(name: str) -> tuple[str, ...]:
    """The words that a field chooses from; empty where any value of its type will do."""
    return tuple(word for kind in alternatives(name) if typing.get_origin(kind) is Literal for word in typing.get_args(kind))


def optional(name: str) -> bool:
    """Whether a field may be empty."""
    return types.NoneType in alternatives(name)


def kind_of(name: str) -> Any:
    """The type of a field's value where it has one; str for a choice of words."""
    kind = next(kind for kind in alternatives(name) if kind is not types.NoneType)
    origin = typing.get_origin(kind)
    return str if origin is Literal else origin or kind


def check_type(name: str, value: Any) -> None:
    """Refuse a value that does not have the field's type."""
    if value is None and optional(name):
        return
    kind, choices = kind_of(name), words(name)
    if choices:
        choose(name, value, choices)
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if kind is tuple:
        fits = fits and all(isinstance(item, int) and item > 0 for item in value)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {spoken(name)}, got {value!r}")


def read(name: str, text: str) -> Any:
    """The value of a field from its text on a command line."""
    kind, choices = kind_of(name), words(name)
    if optional(name) and text.lower() == NOTHING:
        return None
    if choices:
        return choose(name, text, (*choices, NOTHING) if optional(name) else choices)
    try:
        if kind is bool:
            return FLAGS[text.lower()]
        if kind is tuple:
            return tuple(int(part.replace("_", "")) for part in text.split(",") if part.strip())
        return quotient(text) if kind is float else kind(text)
    except (ValueError, KeyError, ZeroDivisionError):
        raise ValueError(f"{name} is {spoken(name)}, got {text!r}") from None


def spoken(name: str) -> str:
    """What a field takes, in words."""
    said = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        tuple: "whole numbers above 0, as 100,200",
    }
    choices = f"one of {', '.join(words(name))}" if words(name) else said[kind_of(name)]
    return f"{choices}, or none" if optional(name) else choices


def refuse_unknown_fields(names: typing.Iterable[str]) -> None:
    """Raise for the first name that is no field, with the likely intention."""
    for name in names:
        if name not in KINDS:
            raise ValueError(f"unknown field {name!r}; {near_miss(name, KINDS)}")
