"""The catalogue, the data folder, sets in memory, and the embedded digits."""

import hashlib
import lzma
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import dcnets
from dcnets.experiments import data
from dcnets.experiments.data import subset
from dcnets.experiments.data.catalogue import CATALOGUE


def split(count=4, channels=1, size=8):
    return data.Split(torch.zeros(count, channels, size, size, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))


def test_the_embedded_subset_comes_first_and_streams_are_named():
    assert data.names() == ["mnist-subset", "mnist", "fashion-mnist", "cifar10", "cifar100", "folder", "webdataset"]
    assert [len(entry.classes) for entry in CATALOGUE.values()] == [10, 10, 10, 10, 100]
    assert all(len(set(entry.classes)) == len(entry.classes) for entry in CATALOGUE.values())


def test_every_download_has_an_address_a_checksum_and_a_place():
    remotes = [remote for entry in CATALOGUE.values() for remote in entry.files]
    assert len(remotes) == len({remote.md5 for remote in remotes}) == len({remote.path for remote in remotes}) == 10
    for remote in remotes:
        assert len(bytes.fromhex(remote.md5)) == 16
        assert all(address.startswith("http") and address.endswith(Path(remote.path).name) for address in remote.addresses)


def test_names_and_the_folder_are_told_without_torch():
    code = "import sys; from dcnets.experiments import data; data.names(); data.locate(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_sets_in_memory_need_neither_numpy_nor_pillow():
    code = (
        "import sys; sys.modules['numpy'] = sys.modules['PIL'] = None\n"
        "from dcnets.experiments import data; print(len(data.load().train))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "6000"


def test_the_subset_is_read_from_a_zipped_package(tmp_path):
    source = Path(dcnets.__file__).parent
    with zipfile.ZipFile(tmp_path / "dcnets.zip", "w") as packed:
        for path in source.rglob("*"):
            if path.suffix in (".py", ".xz"):
                packed.write(path, path.relative_to(source.parent))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'dcnets.zip')!r})\n"
        "from dcnets.experiments import data; print(len(data.load().test), data.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(f"1000 {tmp_path / 'dcnets.zip'}")


def test_the_folder_is_the_one_given_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("DCNETS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.locate() == tmp_path / ".cache" / "dcnets"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data.locate() == tmp_path / "xdg" / "dcnets"
    monkeypatch.setenv("DCNETS_DATA", "~/sets")
    assert data.locate() == tmp_path / "sets"
    assert data.locate("~/mine") == tmp_path / "mine"


def test_the_subset_is_the_first_digits_of_each_class():
    digits = data.load()
    assert (digits.name, digits.channels, digits.size, digits.num_classes) == ("mnist-subset", 1, 28, 10)
    assert (digits.mean, digits.std) == ((127.5,), (128.0,))
    assert digits.train.images.shape == (6000, 1, 28, 28)
    assert digits.test.images.shape == (1000, 1, 28, 28)
    assert digits.train.labels.bincount().tolist() == [600] * 10
    assert digits.test.labels.bincount().tolist() == [100] * 10
    assert digits.train.labels[:12].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5]  # as in the official files
    assert digits.test.labels[:12].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9, 0, 6]
    assert int(digits.train.images.long().sum()) == 159_014_314
    assert int(digits.test.images.long().sum()) == 24_889_073
    assert digits.train.images[0, 0, 5, 12:16].tolist() == [3, 18, 18, 18]  # MNIST's first five


def test_the_subset_is_small_and_has_its_checksum_and_licence_beside_it():
    packed = files("dcnets.experiments.data").joinpath(subset.FILE).read_bytes()
    assert len(packed) < 1_000_000
    content = lzma.decompress(packed)
    assert len(content) == 7000 * (28 * 28 + 1)
    assert hashlib.sha256(content).hexdigest() == subset.SHA256
    readme = files("dcnets.experiments.data").joinpath("embedded/README.md").read_text()
    for said in (subset.SHA256, "LeCun", "Cortes", "Burges", "Creative Commons Attribution-Share Alike 3.0"):
        assert said in readme


@pytest.mark.parametrize(
    "spoil", [lambda packed: packed[:-100], lambda packed: lzma.compress(b"other")], ids=["cut", "other"]
)
def test_a_damaged_subset_asks_for_a_new_installation(spoil, monkeypatch):
    packed = files("dcnets.experiments.data").joinpath(subset.FILE).read_bytes()
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: spoil(packed))
    with pytest.raises(data.DataError, match=r"mnist-subset.xz inside the package .* install dcnets again"):
        data.load()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.load("cifar1"), "unknown data set 'cifar1'; did you mean 'cifar10'"),
        (lambda: data.load("folder"), r"folder is images in train/<class>/.*data.stream\('folder', folder"),
        (lambda: data.load("mnist-subset", coarse=True), "coarse classes are CIFAR-100's"),
        (lambda: data.stream("mnist", batch=2), r"mnist fits into memory: data.load\('mnist'\)"),
        (lambda: data.stream("folders", batch=2), "unknown stream 'folders'; did you mean 'folder'"),
        (lambda: data.Split(torch.zeros(2, 1, 8, 8), torch.zeros(2).long()), r"uint8 .*got torch.float32 \(2, 1, 8, 8\)"),
        (lambda: data.Split(split().images, torch.zeros(3).long()), "one for each of 4 images"),
        (
            lambda: data.Dataset("own", split(), split(size=9), ("a",)),
            r"squares of one size, got \(1, 8, 8\) and \(1, 9, 9\)",
        ),
        (lambda: data.Dataset("own", split(), split(), ("a",), mean=(1.0, 2.0)), "mean has one number a channel"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_set_of_ones_own_has_the_authors_normalisation_or_its_own():
    assert data.Dataset("own", split(channels=3), split(channels=3), ("a",)).mean == (127.5,) * 3
    assert data.Dataset("own", split(), split(), ("a",), mean=(1.0,), std=(2.0,)).std == (2.0,)


def test_an_unknown_name_of_the_module_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        _ = data.lode
