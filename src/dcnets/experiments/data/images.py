"""From the bytes of an image file to a square of pixels: decoding, resizing, cropping, flipping."""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from dcnets.experiments.data.errors import DataError
from dcnets.naming import choose

CROPS = ("fixed", "resized")
ATTEMPTS = 10
"""How often a random part is drawn before the middle is taken."""
BILINEAR = Image.Resampling.BILINEAR


@dataclass(frozen=True)
class Cropping:
    """How an image becomes a square of `crop` pixels.

    Evaluation: resize to `resize`² without regard to proportions, as the authors do, and take the middle. Training with
    crops `fixed`: the same at a random place, flipped or not; `resized`: a random part of 8 to 100 % of the area and of
    proportions from 3:4 to 4:3, resized and flipped or not.
    """

    resize: int = 256
    crop: int = 224
    crops: str = "fixed"

    def __post_init__(self) -> None:
        choose("crops", self.crops, CROPS)
        if not 0 < self.crop <= self.resize:
            raise ValueError(f"crop must be from 1 to resize={self.resize}, got {self.crop}")

    def middle(self, image: Image.Image) -> Tensor:
        """The square for evaluation, uint8 (height, width, 3)."""
        left = (self.resize - self.crop) // 2
        return pixels(self.square(image, left, left))

    def draw(self, image: Image.Image, chance: random.Random) -> Tensor:
        """A square for training, uint8 (height, width, 3)."""
        if self.crops == "resized":
            part = image.resize((self.crop, self.crop), BILINEAR, box=random_part(image.size, chance))
        else:
            left, top = (int(chance.random() * (self.resize - self.crop + 1)) for _ in range(2))
            part = self.square(image, left, top)
        return pixels(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else part)

    def square(self, image: Image.Image, left: int, top: int) -> Image.Image:
        """The crop at a place of the resized image."""
        whole = image if image.size == (self.resize, self.resize) else image.resize((self.resize, self.resize), BILINEAR)
        return whole.crop((left, top, left + self.crop, top + self.crop))


def random_part(size: tuple[int, int], chance: random.Random) -> tuple[int, int, int, int]:
    """A random box (left, top, right, bottom): its area uniform, its proportions uniform in their logarithm."""
    width, height = size
    for _ in range(ATTEMPTS):
        area = width * height * (0.08 + 0.92 * chance.random())
        proportion = math.exp(math.log(4 / 3) * (2 * chance.random() - 1))
        across, down = round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(chance.random() * (width - across + 1)), int(chance.random() * (height - down + 1))
            return left, top, left + across, top + down
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def decode(content: bytes, where: str) -> Image.Image:
    """An image in RGB, whatever its file holds."""
    file = io.BytesIO(content)
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever a damaged file makes them meet
        raise DataError(
            f"{where}: unreadable image, at byte {file.tell()} of {len(content)} ({error}); "
            "fetch it again, remove it, or skip such images by skip_bad=True"
        ) from error


def pixels(image: Image.Image) -> Tensor:
    """uint8 (height, width, 3)."""
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)
