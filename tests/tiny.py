"""A network, a data set and a recipe so small that a run takes a second."""

import os
import signal

import torch
from torch import nn

from dcnets import DecoupledConv2d
from dcnets.experiments import data
from dcnets.experiments.data.augment import Augmentation
from dcnets.experiments.data.resident import Resident, in_order
from dcnets.experiments.data.sets import Dataset, Split
from dcnets.experiments.recipe import Recipe


def tiny_recipe(**changes):
    fields = {
        "name": "tiny", "network": "none", "operator": "tanh-cosine", "data": "mnist-subset", "iterations": 24, "batch": 16,
        "drops": (10, 20), "project_every": 5, "pad": 1, "flip": False, "rate": 0.02, "bn_momentum": 0.1,
    } | changes  # fmt: skip
    return Recipe(**fields)


def tiny_data(count=128, test=64):
    digits = data.load("mnist-subset")
    train, rest = digits.train, digits.test
    small = [part.images[:n, :, 4:24:2, 4:24:2].contiguous() for part, n in ((train, count), (rest, test))]
    return Dataset("tiny", Split(small[0], train.labels[:count]), Split(small[1], rest.labels[:test]), digits.classes)


def tiny_model(seed=0, operator=True, batch_norm=True, dropout=0.1, **options):
    torch.manual_seed(seed)
    convolution = DecoupledConv2d if operator else nn.Conv2d
    layers = [convolution(1, 6, 3, padding=1, bias=False, **options)]
    layers.append(convolution(6, 8, 3, padding=1, stride=2, bias=False, **options))
    return nn.Sequential(
        *(
            part
            for layer in layers
            for part in (layer, nn.BatchNorm2d(layer.out_channels) if batch_norm else nn.Identity(), nn.ReLU())
        ),
        nn.Dropout(dropout),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10, bias=False),
    )


def tiny_source(dataset, recipe, **place):
    augmentation = Augmentation(recipe.pad, recipe.pad_mode, recipe.flip)
    return Resident(
        dataset.train, recipe.batch, mean=dataset.mean, std=dataset.std, augmentation=augmentation, seed=recipe.seed, **place
    )


def tiny_test(dataset):
    return lambda: in_order(dataset.test, 50, mean=dataset.mean, std=dataset.std)


class StopAt:
    """A source that sends a signal to its own process at an update."""

    def __init__(self, source, update, number=signal.SIGTERM):
        self.source, self.left, self.number = source, update, number
        self.batch_size, self.batches, self.begin, self.batch = source.batch_size, source.batches, source.begin, source.batch

    def advance(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
