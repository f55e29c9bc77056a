"""WebDataset shards as a source."""

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile

import pytest
import torch
from test_data_stream import numbers, picture, same, take

from dcnets.experiments import data
from dcnets.experiments.data import scanning
from dcnets.experiments.data.shards import WINDOW, list_shards

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # torch's workers fork


@pytest.fixture(autouse=True)
def remembered(tmp_path_factory, monkeypatch):
    """Where the places of images are kept."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("DCNETS_DATA", str(home))
    return home / "shards"


def png(number):
    file = io.BytesIO()
    picture(number).save(file, "png")
    return file.getvalue()


def write(shard, members):
    """A tar file of (name, content) members."""
    shard.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(shard, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def samples(first, count):
    """Numbered images with their class, which is the number modulo 3, and something else."""
    for number in range(first, first + count):
        yield f"n/{number:03}.cls", f"{number % 3}\n".encode()
        yield f"n/{number:03}.json", b"{}"
        yield f"n/{number:03}.PNG", png(number)


@pytest.fixture
def folder(tmp_path):
    for shard, (first, count) in enumerate([(0, 5), (5, 3), (8, 6)]):
        write(tmp_path / f"train-{shard:04}.tar", samples(first, count))
    write(tmp_path / "val-0000.tar", samples(100, 5))
    return tmp_path


def stream(folder, **options):
    return data.stream(
        "webdataset", folder, **{"batch": 4, "resize": 10, "crop": 8, "workers": 0, "mean": (0, 0, 0), **options}
    )


def test_shards_are_listed_and_read(folder):
    steps = []
    source = stream(folder, progress=lambda *step: steps.append(step))
    assert (source.name, source.classes, source.batches) == ("webdataset", ("0", "1", "2"), 3)
    assert [step[1:] for step in steps] == [(1, 3), (2, 3), (3, 3), (1, 1)]
    for epoch in range(2):
        source.begin(epoch)
        batches = take(source, 3)
        found = [number for images, _ in batches for number in numbers(images)]
        assert len(set(found)) == 12
        assert [label for _, labels in batches for label in labels.tolist()] == [number % 3 for number in found]
    tested = list(source.test(2))
    assert [numbers(images) for images, _ in tested] == [[100, 101], [102, 103], [104]]
    assert torch.cat([labels for _, labels in tested]).tolist() == [1, 2, 0, 1, 2]


def test_shards_may_lie_in_folders(folder):
    for split in ("train", "val"):
        (folder / "moved" / split).mkdir(parents=True)
        for shard in folder.glob(f"{split}-*.tar"):
            shard.rename(folder / "moved" / split / shard.name.removeprefix(split))
    assert stream(folder / "moved").batches == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_depend_on_seed_and_place_alone(workers, folder):
    reference = stream(folder)
    reference.begin(0)
    undisturbed = take(reference, 6)
    source = stream(folder, workers=workers)
    source.begin(1, 1)
    assert same(take(source, 2), undisturbed[4:])
    source.begin(0, 1)
    assert same(take(source, 5), undisturbed[1:])


def test_an_order_takes_every_image_once_and_stays_within_some_shards(tmp_path):
    for shard in range(WINDOW + 3):
        write(tmp_path / f"train{shard}.tar", samples(4 * shard, 4))
    listing = list_shards(tmp_path, "train")
    orders = [listing.order(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert orders[0].sort().values.tolist() == list(range(4 * (WINDOW + 3)))
    assert len(set((orders[0][: 4 * WINDOW] // 4).tolist())) == WINDOW
    assert (orders[0].diff() != 1).any()


LIBRARY = """
import hashlib, sys, webdataset
folder, *images = sys.argv[1:]
with webdataset.ShardWriter(f"{folder}/train-%04d.tar", maxcount=4, verbose=0) as writer:
    for number, image in enumerate(images):
        writer.write({"__key__": f"k{number}", "png": bytes.fromhex(image), "cls": number % 3})
for sample in webdataset.WebDataset(f"{folder}/train-{{0000..0001}}.tar", shardshuffle=False):
    print(hashlib.sha256(sample["png"]).hexdigest(), sample["cls"].decode())
"""


def test_shards_of_the_webdataset_library_are_read_as_it_reads_them(tmp_path):
    if importlib.util.find_spec("webdataset") is None:
        pytest.skip("webdataset is not installed")
    images = [png(number) for number in range(7)]
    command = [sys.executable, "-W", "ignore", "-c", LIBRARY, str(tmp_path), *(image.hex() for image in images)]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    ours = list_shards(tmp_path, "train")
    assert [ours.content(index) for index in range(7)] == images
    assert theirs[::2] == [hashlib.sha256(image).hexdigest() for image in images]
    assert theirs[1::2] == [str(label) for label in ours.labels.tolist()]


def test_a_shard_is_scanned_once_until_it_changes(folder, remembered, monkeypatch):
    scanned = []
    monkeypatch.setattr(scanning, "scan", lambda shard, scan=scanning.scan: scanned.append(shard.name) or scan(shard))
    first = list_shards(folder, "train")
    assert len(scanned) == 3
    again = list_shards(folder, "train")
    assert len(scanned) == 3
    assert torch.equal(again.places, first.places)
    assert torch.equal(again.labels, first.labels)
    write(folder / "train-0001.tar", samples(5, 4))
    assert len(list_shards(folder, "train").labels) == 15
    assert scanned[3:] == ["train-0001.tar"]
    for kept in remembered.iterdir():
        kept.write_bytes(kept.read_bytes()[:-1])
    list_shards(folder, "train")
    assert len(scanned) == 7
    assert not list(remembered.glob("*.part"))


def test_a_folder_that_cannot_be_written_keeps_no_places(folder, remembered):
    remembered.write_text("a file where the folder should be")
    assert stream(folder).batches == 3


def test_an_unreadable_image_is_named_with_its_shard_and_place(folder):
    write(folder / "train-0001.tar", [("a.cls", b"0"), ("a.jpg", b"no image"), *samples(5, 2)])
    source = stream(folder, batch=14)
    source.begin(0)
    with pytest.raises(data.DataError, match=r"train-0001.tar, image at byte 1536: unreadable image, at byte \d+ of 8"):
        source.advance()
    source = stream(folder, batch=14, skip_bad=True)
    source.begin(0)
    take(source, 1)
    assert source.skipped == 1


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.png", b"x"), ("b.cls", b"1"), ("b.png", b"x")], "byte 512: a lacks its image or its class \\(.cls\\)"),
        ([("a.cls", b"1")], "byte 512: a lacks its image or its class \\(.cls\\)"),
        ([("a.txt", b"1")], "byte 0: the shard holds no images"),
        ([("a.cls", b"dog"), ("a.png", b"x")], "byte 512: a class is a whole number below 1000000, got b'dog'"),
        ([("a.cls", b"-1"), ("a.png", b"x")], "byte 512: a class is a whole number below 1000000, got b'-1'"),
        ([("a.cls", b"1000000"), ("a.png", b"x")], "byte 512: a class is a whole number below 1000000, got b'1000000'"),
        ([("a.cls", b""), ("a.png", b"x")], "byte 512: a class is a whole number below 1000000, got b''"),
        ([("a.cls", b"1"), ("a.png", b"x"), ("a.png", b"x")], "byte 2048: a.png is the second of its kind"),
        (
            [("a.cls", b"3"), ("a.png", b"x")],
            "byte 1536: the image here has class 3, expected 0 to 2, as in the training set",
        ),
    ],
)
def test_wrong_shards_are_named_with_their_offset(members, message, folder):
    write(folder / "val-0000.tar", members)
    with pytest.raises(data.DataError, match=f"val-0000.tar, {message}; write or fetch the shard again"):
        stream(folder)


@pytest.mark.parametrize("keep", [700, 1024, 1536, 2048 + 100, -1024 - 512, -9216])
def test_a_shard_that_is_cut_off_is_refused(keep, folder):
    shard = folder / "train-0002.tar"
    content = shard.read_bytes()
    end = len(content.rstrip(b"\0"))
    shard.write_bytes(content[:keep] if keep > 0 else content[: end + 100 + keep])
    with pytest.raises(data.DataError, match=r"train-0002.tar, byte \d+: "):
        stream(folder)


def test_garbage_within_a_shard_is_refused(folder):
    shard = folder / "train-0000.tar"
    content = bytearray(shard.read_bytes())
    content[1024:1100] = b"x" * 76  # a header
    shard.write_bytes(content)
    with pytest.raises(data.DataError, match=r"train-0000.tar, byte 1024: the shard is damaged here, or cut off"):
        stream(folder)


def test_compressed_or_missing_shards_are_refused(folder):
    with pytest.raises(data.DataError, match=r"has no shards train\*.tar or train/\*.tar"):
        stream(folder / "none")
    with tarfile.open(folder / "train-0000.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(data.DataError, match=r"train-0000.tar, byte \d+: not a readable tar file without compression"):
        stream(folder)
