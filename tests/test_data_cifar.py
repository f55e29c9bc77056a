"""CIFAR's official files, binary and pickled, unpacked and in their archives."""

import dataclasses
import io
import pickle
import tarfile

import numpy as np
import pytest
import torch

from dcnets.experiments import data
from dcnets.experiments.data.catalogue import CATALOGUE, COARSE, FINE
from dcnets.experiments.data.cifar import LAYOUTS

LAYOUT = {(name, kind): LAYOUTS[name][kind == "python"] for name in LAYOUTS for kind in ("binary", "python")}
SETS = [*LAYOUT]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    for name in LAYOUTS:
        monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(CATALOGUE[name], train=10, test=3))


@pytest.fixture
def truth():
    """Images, fine labels and coarse labels of both splits, by the size of the set."""

    def draw(classes):
        return {
            count: (torch.randint(256, (count, 3, 32, 32)), torch.randint(classes, (count,)), torch.randint(20, (count,)))
            for count in (10, 3)
        }

    return {"cifar10": draw(10), "cifar100": draw(100)}


def binary(name, images, fine, coarse):
    labels = [fine] if name == "cifar10" else [coarse, fine]
    return torch.cat([torch.stack(labels, 1), images.flatten(1)], 1).to(torch.uint8).numpy().tobytes()


def python(name, images, fine, coarse, order="C", protocol=2):
    labels = {"labels": fine} if name == "cifar10" else {"fine_labels": fine, "coarse_labels": coarse}
    data = np.array(images.flatten(1).numpy(), dtype=np.uint8, order=order)
    found = {"batch_label": "a batch", "data": data, "filenames": ["a.png"] * len(fine)}
    return pickle.dumps(found | {key: value.tolist() for key, value in labels.items()}, protocol)


def files(name, kind, truth, **options):
    """The official files by name."""
    layout, make = LAYOUT[name, kind], {"binary": binary, "python": python}[kind]
    parts = zip(*(tensor.split(10 // len(layout.train)) for tensor in truth[name][10]), strict=True)
    contents = {file: make(name, *part, **options) for file, part in zip(layout.train, parts, strict=True)}
    return contents | {layout.test: make(name, *truth[name][3], **options)}


def write(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / file).write_bytes(content)


def pack(archive, contents, more=()):
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for member, content in [*more, *((tarfile.TarInfo(name), content) for name, content in contents.items())]:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def check(found, truth, coarse=False):
    for split, (images, *labels) in ((found.train, truth[10]), (found.test, truth[3])):
        assert torch.equal(split.images.long(), images)
        assert torch.equal(split.labels, labels[coarse])
        assert split.images.is_contiguous()


@pytest.mark.parametrize("place", ["", "sets", "itself"])
@pytest.mark.parametrize(("name", "kind"), SETS)
def test_unpacked_files_are_found_and_read(name, kind, place, truth, tmp_path):
    home = tmp_path if place == "itself" else tmp_path / place / LAYOUT[name, kind].folder
    write(home, files(name, kind, truth))
    check(data.load(name, tmp_path, download=False), truth[name])


@pytest.mark.parametrize("place", ["", "downloads"])
@pytest.mark.parametrize(("name", "kind"), SETS)
def test_archives_are_read_in_place(name, kind, place, truth, tmp_path):
    layout = LAYOUT[name, kind]
    contents = {f"{layout.folder}/{file}": content for file, content in files(name, kind, truth).items()}
    pack(tmp_path / place / layout.archive, contents)
    before = sorted(tmp_path.rglob("*"))
    check(data.load(name, tmp_path, download=False), truth[name])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_coarse_labels_are_an_option_of_cifar100(kind, truth, tmp_path):
    write(tmp_path / LAYOUT["cifar100", kind].folder, files("cifar100", kind, truth))
    found = data.load("cifar100", tmp_path, download=False, coarse=True)
    check(found, truth["cifar100"], coarse=True)
    assert (found.classes, found.num_classes) == (COARSE, 20)
    assert data.load("cifar100", tmp_path, download=False).classes == FINE


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickles_of_any_usual_protocol_and_order_are_read(protocol, order, truth, tmp_path):
    write(tmp_path, files("cifar10", "python", truth, order=order, protocol=protocol))
    check(data.load("cifar10", tmp_path, download=False), truth["cifar10"])


def test_members_that_would_land_elsewhere_are_passed_over(truth, tmp_path):
    layout = LAYOUT["cifar10", "binary"]
    link = tarfile.TarInfo(f"{layout.folder}/{layout.test}")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    evil = [(tarfile.TarInfo("../evil"), b"x"), (tarfile.TarInfo("/tmp/dcnets-evil"), b"x"), (link, b"")]
    contents = {f"./{layout.folder}/{file}": content for file, content in files("cifar10", "binary", truth).items()}
    pack(tmp_path / "home" / layout.archive, contents, evil)
    before = sorted(tmp_path.rglob("*"))
    check(data.load("cifar10", tmp_path / "home", download=False), truth["cifar10"])
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_without_a_file_or_with_a_link_in_its_place_is_refused(truth, tmp_path):
    layout = LAYOUT["cifar100", "binary"]
    contents = {f"{layout.folder}/{file}": content for file, content in files("cifar100", "binary", truth).items()}
    del contents[f"{layout.folder}/test.bin"]
    link = tarfile.TarInfo(f"{layout.folder}/test.bin")
    link.type, link.linkname = tarfile.LNKTYPE, f"{layout.folder}/train.bin"
    pack(tmp_path / layout.archive, contents, [(link, b"")])
    with pytest.raises(data.DataError, match=r"cifar-100-binary.tar.gz has no cifar-100-binary/test.bin; it is cut off"):
        data.load("cifar100", tmp_path, download=False)


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_refused(keep, truth, tmp_path):
    layout = LAYOUT["cifar10", "binary"]
    archive = tmp_path / layout.archive
    pack(archive, {f"{layout.folder}/{file}": content for file, content in files("cifar10", "binary", truth).items()})
    content = archive.read_bytes()
    archive.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(data.DataError, match=r"cifar-10-binary.tar.gz(, byte \d+: the archive is damaged| has no cifar-10)"):
        data.load("cifar10", tmp_path, download=False)


def with_byte(place, value):
    """Contents with one byte changed."""
    return lambda content: content[:place] + bytes([value]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("name", "file", "spoil", "message"),
    [
        ("cifar10", "data_batch_3.bin", lambda c: c[:-1], "byte 3073: the last record is cut off: 6145 bytes"),
        ("cifar10", "data_batch_3.bin", lambda c: c[:3073], "byte 3073: the file has 1 images, expected 2"),
        ("cifar10", "test_batch.bin", lambda c: c + c[:3073], "byte 9219: the file has 4 images, expected 3"),
        ("cifar10", "test_batch.bin", lambda c: b"", "byte 0: the file has 0 images, expected 3"),
        ("cifar10", "data_batch_5.bin", with_byte(3073, 10), "byte 3073: image 1 has label 10, expected 0 to 9"),
        ("cifar100", "test.bin", with_byte(6149, 100), "byte 6149: image 2 has label 100, expected 0 to 99"),
        ("cifar100", "train.bin", lambda c: c[: 10 * 3073], "byte 27666: the last .*: 30730 bytes .* record's 3074"),
    ],
)  # fmt: skip
def test_damage_of_binary_files_is_named_with_file_and_offset(name, file, spoil, message, truth, tmp_path):
    contents = files(name, "binary", truth)
    contents[file] = spoil(contents[file])
    write(tmp_path, contents)
    with pytest.raises(data.DataError, match=f"{file}, {message}.*; delete the file and fetch it again"):
        data.load(name, tmp_path, download=False)


def test_a_coarse_label_out_of_range_is_found_where_it_is_asked_for(truth, tmp_path):
    contents = files("cifar100", "binary", truth)
    contents["train.bin"] = b"\x14" + contents["train.bin"][1:]
    write(tmp_path, contents)
    check(data.load("cifar100", tmp_path, download=False), truth["cifar100"])
    with pytest.raises(data.DataError, match=r"train.bin, byte 0: image 0 has label 20, expected 0 to 19"):
        data.load("cifar100", tmp_path, download=False, coarse=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0, 1]}, "has 2 labels for 3 images"),
        ({"labels": [0, 1, 10]}, "image 2 has label 10, expected 0 to 9"),
        ({"labels": [0, -1, 1]}, "image 1 has label -1, expected 0 to 9"),
        ({"labels": ["a", "b", "c"]}, "lacks the array 'data' or the list of whole numbers 'labels'"),
        ({"labels": None}, "lacks the array 'data' or the list of whole numbers 'labels'"),
        ({"data": [0, 1]}, "lacks the array 'data'"),
        ({"data": np.zeros((3, 3071), np.uint8)}, r"'data' has shape \(3, 3071\), expected \(3, 3072\)"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "the file has 2 images, expected 3"),
        ({"data": np.zeros((3, 3072), np.float32)}, "an array of dtype 'f4', expected unsigned bytes"),
    ],
)
def test_wrong_pickles_are_named_with_their_file(change, message, truth, tmp_path):
    contents = files("cifar10", "python", truth)
    right = {"data": np.zeros((3, 3072), np.uint8), "labels": [0, 1, 2]}
    contents["test_batch"] = pickle.dumps(right | change, 2)
    write(tmp_path, contents)
    with pytest.raises(data.DataError, match=f"test_batch.*{message}"):
        data.load("cifar10", tmp_path, download=False)
