"""Folders of images, one a class, as ImageNet has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from dcnets.experiments.data.download import Progress
from dcnets.experiments.data.errors import DataError
from dcnets.experiments.data.listing import IMAGES


class FolderListing:
    """The images below a folder, class by class, names in order.

    The names lie in one string of bytes: a million Python strings would be copied into every worker process.
    """

    def __init__(self, folder: Path, classes: tuple[str, ...], names: list[list[str]]) -> None:
        encoded = [os.fsencode(name) for each in names for name in each]
        self.folder, self.classes = folder, classes
        self.names = b"".join(encoded)
        self.ends = torch.tensor([len(name) for name in encoded]).cumsum(0)
        self.labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(each) for each in names]))

    def where(self, index: int) -> str:
        """The path of an image."""
        first = int(self.ends[index - 1]) if index else 0
        name = os.fsdecode(self.names[first : int(self.ends[index])])
        return os.path.join(self.folder, self.classes[int(self.labels[index])], name)

    def content(self, index: int) -> bytes:
        """The bytes of an image's file."""
        with open(self.where(index), "rb") as file:
            return file.read()

    def order(self, generator: torch.Generator) -> Tensor:
        """Any order, all equally likely."""
        return torch.randperm(len(self.labels), generator=generator)


def list_folder(folder: Path, classes: tuple[str, ...] | None = None, progress: Progress | None = None) -> FolderListing:
    """All images in the subfolders of `folder`; `classes` are those of the training set, where they are known."""
    layout = "expected one subfolder a class with JPEG, PNG or WebP images, as train/<class>/*.JPEG and val/<class>/*.JPEG"
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; {layout}")
    found = tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")))
    if not found:
        raise DataError(f"{folder} has no subfolders; {layout}")
    if classes is not None and (strange := sorted(set(found) - set(classes))):
        raise DataError(f"{folder / strange[0]} is no class of the training set; {layout}, with the same classes in both")
    names: list[list[str]] = []
    done = 0
    for name in classes or found:
        names.append(sorted(images_below(folder / name)))
        done += len(names[-1])
        if classes is None and not names[-1]:
            raise DataError(f"{folder / name} has no images ({', '.join(IMAGES)}); remove it or fill it")
        if progress is not None:
            progress(str(folder), done, None)
    if not done:
        raise DataError(f"{folder} has no images; {layout}")
    return FolderListing(folder, classes or found, names)


def images_below(folder: Path) -> Iterator[str]:
    """The images of a class by their paths from its folder, at any depth."""
    for place, _, files in os.walk(folder, followlinks=True):
        inner = os.path.relpath(place, folder)
        for file in files:
            if file.lower().endswith(IMAGES) and not file.startswith("."):
                yield file if inner == "." else os.path.join(inner, file)
