"""`stream`: folders of images and tar shards by name."""

from __future__ import annotations

import os

import torch

from dcnets.experiments.data.catalogue import CATALOGUE, STREAMS
from dcnets.experiments.data.download import Progress
from dcnets.experiments.data.folders import list_folder
from dcnets.experiments.data.images import Cropping
from dcnets.experiments.data.listing import Listing
from dcnets.experiments.data.places import locate
from dcnets.experiments.data.shards import list_shards
from dcnets.experiments.data.streaming import Stream
from dcnets.naming import choose

MEAN, STD = (121.6, 116.6, 102.7), (1.0, 1.0, 1.0)
"""What the authors subtract from ImageNet's pixels; they do not divide."""


def stream(
    name: str, folder: str | os.PathLike[str] | None = None, *, batch: int, resize: int = 256, crop: int = 224,
    crops: str = "fixed", mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD, seed: int = 0,
    device: torch.device | str = "cpu", workers: int | None = None, rank: int = 0, world: int = 1, pieces: int = 1,
    skip_bad: bool = False, progress: Progress | None = None,
) -> Stream:  # fmt: skip
    """Images on disk for training and testing: `folder` (as ImageNet's) or `webdataset` (tar shards).

    `batch` counts the images of an update, over `world` processes and `pieces` accumulated in each. For `resize`, `crop` and
    `crops` see `Cropping`. `workers` are processes that decode; None means one a CPU, 0 that this process decodes itself.
    `skip_bad` passes over unreadable images and counts them. `progress(place, done, total)` is told what is listed.
    """
    if name in CATALOGUE:
        raise ValueError(f"{name} fits into memory: data.load({name!r}) reads it; streams are {', '.join(STREAMS)}")
    choose("stream", name, STREAMS)
    cropping = Cropping(resize, crop, crops)
    place = locate(folder)
    train: Listing
    test: Listing
    if name == "folder":
        train = list_folder(place / "train", None, progress)
        test, classes = list_folder(place / "val", train.classes, progress), train.classes
    else:
        train = list_shards(place, "train", None, progress)
        classes = tuple(str(label) for label in range(int(train.labels.max()) + 1))
        test = list_shards(place, "val", len(classes), progress)
    return Stream(
        name, train, test, classes, batch=batch, cropping=cropping, mean=mean, std=std, seed=seed, device=device,
        workers=workers, rank=rank, world=world, pieces=pieces, skip_bad=skip_bad,
    )  # fmt: skip
