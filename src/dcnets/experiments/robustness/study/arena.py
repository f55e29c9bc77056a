"""Where networks and images meet: both on one device, and every set of examples made once."""

from __future__ import annotations

import time
from collections import OrderedDict

import torch
from torch import Tensor, nn

from dcnets.attacks.aim import Aim, still
from dcnets.attacks.pixels import LARGEST
from dcnets.experiments.data import Dataset
from dcnets.experiments.rebuild import rebuild
from dcnets.experiments.robustness.accuracy import Withstood, clean
from dcnets.experiments.robustness.study.networks import Network
from dcnets.experiments.robustness.subjects import subject
from dcnets.experiments.robustness.trials import Trial, Watch, unwatched

KEPT = {"cuda": 24 * 2**30, "cpu": 2**29}
"""Bytes of examples that are kept, by the kind of device; the oldest go first."""
Span = tuple[int, int]
"""The first of some test images, and the one after the last."""


class Arena:
    """The test images of a data set in [0, 1] on a device, networks, and what was computed of them so far.

    Float32 throughout. cuDNN does not search for algorithms here: the number of images that are left to attack changes all
    the time, and each new number would be searched for anew.
    """

    def __init__(self, data: Dataset, device: torch.device, *, batch: int, images: int | None = None) -> None:
        count = len(data.test.labels) if images is None else min(images, len(data.test.labels))
        self.data, self.device, self.batch = data, device, batch
        self.x = (data.test.images[:count].float() / LARGEST).to(device)
        self.y = data.test.labels[:count].to(device)
        self.models: dict[Network, nn.Module] = {}
        self.rights: dict[tuple[Network, Span], Withstood] = {}
        self.made: OrderedDict[tuple[Network, Trial, Span], Tensor] = OrderedDict()
        self.watch: Watch = unwatched
        self.layouts: dict[bool, torch.memory_format] = {}

    @property
    def whole(self) -> Span:
        """All images."""
        return 0, len(self.y)

    @property
    def halves(self) -> tuple[Span, Span]:
        """The half that numbers are told of, and the half that a setting is sought on."""
        return (0, len(self.y) // 2), (len(self.y) // 2, len(self.y))

    def first(self, count: int) -> Span:
        """The first images, for what takes long."""
        return 0, min(count, len(self.y))

    def images(self, span: Span) -> tuple[Tensor, Tensor]:
        """Some images and their classes."""
        return self.x[slice(*span)], self.y[slice(*span)]

    def model(self, network: Network) -> nn.Module:
        """A network that takes pixels in [0, 1]."""
        if network not in self.models:
            if network.num_classes != self.data.num_classes:
                raise ValueError(f"{network.name} knows {network.num_classes} classes, the data has {self.data.num_classes}")
            model = subject(network.name, rebuild(network.path), self.data, self.device, torch.float32).model
            self.models[network] = model.to(memory_format=self.layout(model, bool(network.recipe.operator)))  # type: ignore[call-overload]
        return self.models[network]

    def layout(self, model: nn.Module, decoupled: bool) -> torch.memory_format:
        """The faster order of channels for such a network on a GPU: float32 without TF32 has no rule for it."""
        if self.device.type != "cuda":
            return torch.contiguous_format
        if decoupled not in self.layouts:
            times = {}
            for form in (torch.contiguous_format, torch.channels_last):
                times[form] = self.pace(model.to(memory_format=form))  # type: ignore[call-overload]
            self.layouts[decoupled] = min(times, key=lambda form: times[form])
        return self.layouts[decoupled]

    def pace(self, model: nn.Module) -> float:
        """The seconds that an image's gradient takes, in a full batch."""
        x, y = self.x[: self.batch], self.y[: self.batch]
        with torch.no_grad(), still(model):
            for _ in range(3):  # the first times prepare
                self.settle()
                begin = time.perf_counter()
                Aim(model, y).gradient(x)
                self.settle()
                spent = time.perf_counter() - begin
        return spent / len(x)

    def settle(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def right(self, network: Network, span: Span) -> Withstood:
        """The images that a network gets right as they are."""
        if (network, span) not in self.rights:
            self.rights[network, span] = clean(self.model(network), *self.images(span), batch=self.batch)
        return self.rights[network, span]

    def examples(self, maker: Network, trial: Trial, span: Span) -> Tensor:
        """All images of a span after an attack on a network; made once, for every network that they are tried on."""
        key = maker, trial, span
        if key not in self.made:
            self.made[key] = trial.examples(self.model(maker), *self.images(span), batch=self.batch, watch=self.watch)
            while len(self.made) > 1 and sum(map(bytes_of, self.made.values())) > KEPT[self.device.type]:
                self.made.popitem(last=False)
        self.made.move_to_end(key)
        return self.made[key]

    def outcome(self, victim: Network, maker: Network, trial: Trial, span: Span) -> Withstood:
        """What a network still gets right of images that an attack on a network, itself or another, has made."""
        examples, classes = self.examples(maker, trial, span), self.images(span)[1]
        return self.right(victim, span) & clean(self.model(victim), examples, classes, batch=self.batch)


def bytes_of(t: Tensor) -> int:
    """The memory of a tensor."""
    return t.numel() * t.element_size()
