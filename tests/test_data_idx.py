"""MNIST's format, gzipped or not, and what can be wrong with it."""

import dataclasses
import gzip
import struct

import pytest
import torch

from dcnets.experiments import data
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.data.idx import FILES


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(CATALOGUE[name], train=12, test=5))


def idx(array):
    return struct.pack(f">{1 + array.dim()}I", 0x0800 | array.dim(), *array.shape) + array.to(torch.uint8).numpy().tobytes()


def contents(labels=(5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5)):
    arrays = (
        torch.randint(256, (12, 28, 28)),
        torch.tensor(labels),
        torch.randint(256, (5, 28, 28)),
        torch.arange(5),
    )
    return arrays, dict(zip(FILES, map(idx, arrays), strict=True))


def write(folder, files, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("place", ["MNIST/raw", "mnist", "sets/MNIST/raw", "."])
def test_a_set_is_found_and_read(place, packed, tmp_path):
    arrays, files = contents()
    write(tmp_path / place, files, packed)
    digits = data.load("mnist", tmp_path, download=False)
    for read, expected in zip(
        (digits.train.images[:, 0], digits.train.labels, digits.test.images[:, 0], digits.test.labels), arrays, strict=True
    ):
        assert torch.equal(read.long(), expected)
    assert digits.classes == tuple("0123456789")


def test_the_two_sets_are_told_apart_by_their_folders(tmp_path):
    clothes_labels = (9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9)
    write(tmp_path / "MNIST/raw", contents()[1])
    write(tmp_path / "FashionMNIST/raw", contents(clothes_labels)[1], packed=True)
    assert data.load("mnist", tmp_path, download=False).train.labels[0] == 5
    clothes = data.load("fashion-mnist", tmp_path, download=False)
    assert clothes.train.labels.tolist() == list(clothes_labels)
    assert clothes.classes[9] == "Ankle boot"


def test_digits_are_not_taken_for_clothes(tmp_path):
    write(tmp_path, contents()[1])
    with pytest.raises(data.DataError, match=r"holds the labels of mnist, not of fashion-mnist; move .* MNIST/raw"):
        data.load("fashion-mnist", tmp_path, download=False)


def test_a_set_that_lacks_a_file_is_not_there(tmp_path):
    files = contents()[1]
    del files[FILES[3]]
    write(tmp_path / "MNIST/raw", files)
    with pytest.raises(data.DataError, match=r"mnist is not in .*allow the download.*ec29112dd5afa0611ce80d1b7f02629c"):
        data.load("mnist", tmp_path, download=False)


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        (0, lambda c: c[:10], "byte 10: the file ends within its header of 16 bytes"),
        (0, lambda c: c[:-1], "byte 9423: the file is cut off: 9423 bytes, expected 9424"),
        (0, lambda c: c + b"x", "byte 9424: the file goes on after its last value"),
        (0, lambda c: b"\0\0\x08\x01" + c[4:], "byte 0: magic number 0x00000801, expected 0x00000803"),
        (1, lambda c: b"\0\0\x0d\x01" + c[4:], "byte 0: magic number 0x00000d01, expected 0x00000801"),
        (0, lambda c: c[:4] + struct.pack(">I", 13) + c[8:], "byte 4: axis 0 has size 13, expected 12"),
        (2, lambda c: c[:12] + struct.pack(">I", 27) + c[16:], "byte 12: axis 2 has size 27, expected 28"),
        (1, lambda c: c[:4] + struct.pack(">I", 2**32 - 1) + c[8:], "byte 4: axis 0 has size 4294967295, expected 12"),
        (3, lambda c: c[:10] + b"\x0a" + c[11:], "byte 10: image 2 has label 10, expected 0 to 9"),
    ],
)
def test_damage_is_named_with_file_and_offset(file, spoil, message, tmp_path):
    files = contents()[1]
    files[FILES[file]] = spoil(files[FILES[file]])
    write(tmp_path, files)
    with pytest.raises(data.DataError, match=f"{FILES[file]}, {message}.*fetch it again"):
        data.load("mnist", tmp_path, download=False)


@pytest.mark.parametrize("spoil", [lambda c: c[:-20], lambda c: b"no gzip", lambda c: c[:40] + b"\xff" * 9 + c[49:]])
def test_a_damaged_gzip_file_is_named_with_its_offset(spoil, tmp_path):
    write(tmp_path, contents()[1], packed=True)
    broken = tmp_path / f"{FILES[0]}.gz"
    broken.write_bytes(spoil(broken.read_bytes()))
    with pytest.raises(data.DataError, match=rf"{FILES[0]}.gz, byte \d+: the gzip file is damaged"):
        data.load("mnist", tmp_path, download=False)
