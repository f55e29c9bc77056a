"""Pickles of arrays and strings, read without running anything that they name.

A pickle is a program. This reader answers its requests for numpy's classes with stand-ins that only keep bytes, and
refuses every other request, so that neither numpy nor any other code runs on the file's behalf.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import torch
from torch import Tensor

from dcnets.experiments.data.errors import flaw


class ArrayType:
    """Stands for numpy.ndarray."""

    __slots__ = ()


class Bytes:
    """Stands for numpy's dtype of unsigned bytes; its state tells nothing more."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple):
            raise pickle.UnpicklingError(f"a dtype's state is a tuple, got {type(state).__name__}")


class MakeType:
    """Stands for numpy.dtype."""

    __slots__ = ()

    def __call__(self, code: object, *_: object) -> Bytes:
        if code not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError(f"an array of dtype {code!r}, expected unsigned bytes (u1)")
        return Bytes()


class Array:
    """What stands for an array; its state, set later, becomes the tensor."""

    __slots__ = ("tensor",)
    tensor: Tensor

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, Bytes(), bool() as fortran, bytes() as content) if fits(shape, content):
                flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                self.tensor = flat.view(shape[::-1]).permute(*range(len(shape))[::-1]) if fortran else flat.view(shape)
            case _:
                raise pickle.UnpicklingError(
                    "an array's state is (version, shape, dtype, order, bytes); bytes fit the shape"
                )


def fits(shape: tuple[object, ...], content: bytes) -> bool:
    """Whether a shape is that of so many bytes, of which there are some."""
    sizes = [size for size in shape if type(size) is int and size > 0]
    return len(sizes) == len(shape) and math.prod(sizes) == len(content)


class Reconstruct:
    """Stands for numpy's _reconstruct."""

    __slots__ = ()

    def __call__(self, kind: object, *_: object) -> Array:
        if not isinstance(kind, ArrayType):
            raise pickle.UnpicklingError(f"an array of class {kind!r}, expected numpy.ndarray")
        return Array()


class Encode:
    """Stands for _codecs.encode, by which Python 3 writes bytes into pickles that Python 2 can read."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object) -> bytes:
        if not (isinstance(text, str) and encoding == "latin1"):
            raise pickle.UnpicklingError(f"bytes are written as latin1 text, got {type(text).__name__} as {encoding!r}")
        return text.encode("latin1")


STAND_INS: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): Reconstruct(),
    ("numpy", "ndarray"): ArrayType(),
    ("numpy", "dtype"): MakeType(),
    ("_codecs", "encode"): Encode(),
}
"""All that a pickle may name. None of them is a class or has attributes, so that no pickle can change them."""


class Unpickler(pickle.Unpickler):
    """Knows the stand-ins and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}, which is forbidden: nothing was run")
        return STAND_INS[module, name]


def read_pickle(where: str, content: bytes | bytearray) -> dict[str, Any]:
    """A pickled dict by its keys as text; arrays become uint8 tensors, and the strings of Python 2 become bytes."""
    file = io.BytesIO(content)
    advice = "the official archive holds arrays, lists and strings only: delete the file and fetch that"
    try:
        found = Unpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises whatever its opcodes meet
        raise flaw(where, file.tell(), str(error) or type(error).__name__, advice) from error
    if type(found) is not dict:
        raise flaw(where, 0, f"the pickle holds a {type(found).__name__}, expected a dict", advice)
    named = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    return {key: getattr(value, "tensor", None) if isinstance(value, Array) else value for key, value in named.items()}
