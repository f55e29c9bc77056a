"""One file of named tensors and texts: the safetensors format, written without a copy, with a checksum over all of it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
TEXTS = "__metadata__"
"""Where the format keeps texts beside the tensors."""


class DamagedError(ValueError):
    """What was read is not what was written."""


def pack(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> Iterator[Any]:
    """The file, piece by piece: a header with the texts and their and the tensors' checksum, then the bytes of each tensor.

    Tensors may lie anywhere and anyhow in memory, and share it; each is written in full.
    """
    tensors = {name: on_cpu(name, tensor) for name, tensor in tensors.items()}
    header: dict[str, Any] = {TEXTS: {**texts, "checksum": checksum(tensors, texts)}}
    end = 0
    for name, tensor in in_file_order(tensors):
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format's alignment
    yield len(encoded).to_bytes(8, "little") + encoded
    for _, tensor in in_file_order(tensors):
        yield raw(tensor)


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the texts of a whole safetensors file; anything else is a `DamagedError`."""
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise DamagedError(f"is cut short or overwritten ({error})") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header.get(TEXTS, {})


def is_whole(path: Path) -> bool:
    """Whether a file is as long as its header says: a glance, where `verify` reads it all."""
    try:
        with safe_open(path, "pt"):
            return True
    except (SafetensorError, OSError):
        return False


def verify(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Refuse tensors and texts that are not those that were packed."""
    found = checksum(tensors, {key: text for key, text in texts.items() if key != "checksum"})
    if texts.get("checksum") != found:
        raise DamagedError(f"has changed since it was written (checksum {found}, expected {texts.get('checksum')})")


def checksum(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """CRC-32 over texts, names, types, shapes and values."""
    described = [(name, DTYPES.get(tensor.dtype), list(tensor.shape)) for name, tensor in in_file_order(tensors)]
    total = zlib.crc32(json.dumps([sorted(texts.items()), described]).encode())
    for _, tensor in in_file_order(tensors):
        total = zlib.crc32(raw(tensor), total)
    return f"{total:08x}"


def in_file_order(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Wide types first, so that every tensor is aligned."""
    return sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))


def raw(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor in the memory where they are."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def on_cpu(name: str, tensor: Tensor) -> Tensor:
    """The tensor in the main memory, contiguous, or a TypeError that names it."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor {name!r} is a {type(tensor).__name__}; what is no tensor belongs in the state")
    if tensor.dtype not in DTYPES or tensor.layout is not torch.strided or name == TEXTS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"tensor {name!r} is {tensor.layout} of {tensor.dtype}; a file holds dense tensors of {known}")
    return tensor.detach().cpu().contiguous()
