"""Folders of images as a source: order, crops, resuming, processes, unreadable images."""

import os
import random
import signal

import pytest
import torch
from PIL import Image
from torch import Tensor

from dcnets.experiments import data
from dcnets.experiments.data.images import Cropping, random_part

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # torch's workers fork

TRAIN = {"ant": 5, "bee": 4, "cow": 5}
VAL = {"ant": 2, "bee": 1, "cow": 2}
TINY = {"resize": 10, "crop": 8, "workers": 0}


def picture(number, size=10):
    """An image whose pixels tell its number (red), their column (green) and their row (blue)."""
    across = torch.arange(size, dtype=torch.uint8)
    pixels = torch.stack(
        [torch.full((size, size), number), across.expand(size, size), across[:, None].expand(size, size)], 2
    )
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def write(folder, counts, size=10):
    number = 0
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            picture(number, size).save(folder / name / f"{index:02}.png")
            number += 1


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train", TRAIN)
    write(tmp_path / "val", VAL)
    return tmp_path


def stream(folder, batch=4, **options):
    return data.stream("folder", folder, **{"batch": batch, "mean": (0, 0, 0), **TINY, **options})


def take(source, count):
    found = []
    for _ in range(count):
        source.advance()
        images, labels = source.batch()
        found.append((images.clone(), labels.clone()))
    return found


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, flat(one), flat(other)))


def flat(batches) -> list[Tensor]:
    return [part for batch in batches for part in batch]


def numbers(images):
    return images[:, 0, 0, 0].long().tolist()


def test_a_folder_tells_what_it_holds(folder):
    source = data.stream("folder", folder, batch=4, workers=0)
    assert (source.name, source.classes, source.num_classes) == ("folder", ("ant", "bee", "cow"), 3)
    assert (source.batch_size, source.batches, source.channels, source.size) == (4, 3, 3, 224)
    assert (source.mean, source.std) == ((121.6, 116.6, 102.7), (1.0, 1.0, 1.0))


def test_listing_passes_over_other_files_and_tells_its_progress(folder):
    (folder / "train/bee/notes.txt").write_text("no image")
    (folder / "train/bee/._00.png").write_bytes(b"no image")
    (folder / "train/.trash").mkdir()
    (folder / "train/README").write_text("no class")
    (folder / "train/bee/images").mkdir()
    picture(99).save(folder / "train/bee/images/deep.JPEG", "jpeg")
    picture(99).save(folder / "train/bee/über.WebP", "webp", lossless=True)
    steps = []
    source = stream(folder, progress=lambda *step: steps.append(step))
    listing = source.training.listing
    assert listing.labels.bincount().tolist() == [5, 6, 5]
    assert listing.where(10) == str(folder / "train/bee/über.WebP")
    assert {listing.where(i) for i in range(16)} >= {
        str(folder / "train/ant/00.png"),
        str(folder / "train/bee/images/deep.JPEG"),
    }
    assert [done for place, done, _ in steps if place.endswith("train")] == [5, 11, 16]
    assert [done for place, done, _ in steps if place.endswith("val")] == [2, 3, 5]


def test_evaluation_takes_the_middle_of_all_images_in_order(folder):
    batches = list(stream(folder, mean=(1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0)).test(2))
    assert [len(labels) for _, labels in batches] == [2, 2, 1]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert labels.tolist() == [0, 0, 1, 2, 2]
    assert labels.dtype == torch.int64
    assert images.shape == (5, 3, 8, 8)
    middle = torch.arange(1.0, 9.0)
    expected = torch.stack([torch.zeros(8, 8), middle.expand(8, 8), middle[:, None].expand(8, 8)])
    expected = expected + torch.tensor([1.0, 0, 0])[:, None, None] * torch.arange(5.0).view(5, 1, 1, 1)
    mean, std = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1), torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1)
    assert torch.equal(images, (expected - mean) / std)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_any_image_is_made_square_and_rgb(folder):
    for file, mode, size in (("a", "L", (30, 20)), ("b", "RGBA", (7, 50)), ("c", "CMYK", (10, 10)), ("d", "1", (9, 9))):
        place = folder / f"train/ant/{file}.{'jpg' if mode == 'CMYK' else 'png'}"
        Image.new(
            mode, size, 1 if mode == "1" else (0, 0, 0, 0) if mode == "CMYK" else 255 if mode == "L" else (255,) * 4
        ).save(place)
    source = stream(folder)
    cropped = source.training[None, list(range(5, 9))]
    assert cropped[0].shape == (4, 8, 8, 3)
    assert cropped[0].min() >= 254


def test_an_epoch_takes_every_image_at_most_once_from_random_places(folder):
    source = stream(folder)
    seen, places, flips = [], set(), set()
    for epoch in range(8):
        source.begin(epoch)
        found = torch.cat([images for images, _ in take(source, 3)])
        assert len(set(numbers(found))) == 12
        seen.append(numbers(found))
        for image in found:
            columns, rows = image[1], image[2]
            flipped = bool(columns[0, 0] > columns[0, 1])
            left = int(columns.min())
            whole = torch.arange(left, left + 8.0)
            assert torch.equal(columns, (whole.flip(0) if flipped else whole).expand(8, 8))
            assert torch.equal(rows, torch.arange(rows[0, 0], rows[0, 0] + 8)[:, None].expand(8, 8))
            places.add((left, int(rows[0, 0])))
            flips.add(flipped)
    assert len({tuple(order) for order in seen}) == 8
    assert {number for order in seen for number in order} == set(range(14))
    assert places == {(left, top) for left in range(3) for top in range(3)}
    assert flips == {True, False}


def test_labels_belong_to_their_images(folder):
    source = stream(folder)
    source.begin(0)
    classes = [0] * 5 + [1] * 4 + [2] * 5
    for images, labels in take(source, 3):
        assert labels.tolist() == [classes[number] for number in numbers(images)]


@pytest.mark.parametrize("crops", ["fixed", "resized"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_depend_on_seed_and_place_alone(workers, crops, folder):
    reference = stream(folder, crops=crops)
    reference.begin(0)
    undisturbed = take(reference, 6)  # two epochs
    assert not same(undisturbed[:3], undisturbed[3:])

    source = stream(folder, crops=crops, workers=workers)
    source.begin(0)
    assert same(take(source, 2), undisturbed[:2])
    source.begin(1, 1)  # from the midst of an epoch
    assert same(take(source, 2), undisturbed[4:6])
    source.begin(0, 2)
    assert same(take(source, 1), undisturbed[2:3])
    going = source.arriving
    source.begin(1)
    assert source.arriving is going  # the workers go on
    assert same(take(source, 3), undisturbed[3:6])
    source.begin(0, 3)  # the end of an epoch is the beginning of the next
    assert same(take(source, 1), undisturbed[3:4])


def test_another_seed_or_epoch_is_another_crop_of_the_same_images(folder):
    crops = [
        stream(folder, seed=seed).training[epoch, list(range(14))][0] for seed, epoch in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert torch.equal(crops[0], crops[1])
    assert not torch.equal(crops[0], crops[2])
    assert not torch.equal(crops[0], crops[3])


def test_another_seed_is_another_order(folder):
    orders = []
    for seed in (0, 1):
        source = stream(folder, seed=seed)
        source.begin(0)
        orders.append(torch.cat([images for images, _ in take(source, 3)]))
    assert not torch.equal(*orders)


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers_of_the_training_stay_untouched(workers, folder):
    before = torch.get_rng_state(), random.getstate()
    source = stream(folder, workers=workers)
    source.begin(0)
    take(source, 2)
    list(source.test(4))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize(("world", "pieces"), [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_processes_and_pieces_share_the_same_batches(world, pieces, folder):
    whole = stream(folder)
    whole.begin(1, 1)
    expected = take(whole, 2)
    parts = [stream(folder, rank=rank, world=world, pieces=pieces) for rank in range(world)]
    for part in parts:
        assert (part.batch_size, part.batches) == (4 // world // pieces, 3)
        part.begin(1, 1)
    for images, labels in expected:
        shared = [piece for part in parts for piece in take(part, pieces)]
        assert torch.equal(torch.cat([piece[0] for piece in shared]), images)
        assert torch.equal(torch.cat([piece[1] for piece in shared]), labels)


def test_every_batch_comes_to_the_same_memory(folder):
    source = stream(folder)
    source.begin(0)
    places = set()
    for _ in range(3):
        source.advance()
        places.add((source.images.data_ptr(), source.labels.data_ptr()))
        assert torch.equal(source.batch()[0], source.batch()[0])
    assert len(places) == 1


def spoil(path, keep=60):
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_named(workers, folder):
    jpeg = folder / "train/bee/00.jpeg"
    Image.radial_gradient("L").save(jpeg)
    spoil(jpeg, 2000)
    spoil(folder / "val/bee/00.png")
    source = stream(folder, batch=15, workers=workers)
    source.begin(0)
    with pytest.raises(
        data.DataError, match=r"^\S+bee/00.jpeg: unreadable image, at byte 2000 of 2000 \(.*truncated.*skip_bad=True$"
    ):
        source.advance()
    with pytest.raises(data.DataError, match=r"^\S+val/bee/00.png: unreadable image, at byte \d+ of 60"):
        list(source.test(2))


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_can_be_skipped_and_counted(workers, folder):
    spoil(folder / "train/ant/04.png")  # number 4
    (folder / "train/bee/00.png").write_bytes(b"")  # number 5
    spoil(folder / "train/cow/04.png")  # number 13, the last
    spoil(folder / "val/bee/00.png")
    reference = stream(folder, batch=14)
    good = stream(folder, batch=14, workers=workers, skip_bad=True)
    good.begin(0)
    assert good.skipped == 0
    images, labels = take(good, 1)[0]
    _, indices = next(iter(reference.plan))
    expected = [{4: 6, 5: 6, 13: 0}.get(index, index) for index in indices]
    assert numbers(images) == expected
    assert labels.tolist() == [0 if number < 5 else 1 if number < 9 else 2 for number in expected]
    assert good.skipped == 3
    good.begin(1)
    take(good, 1)
    assert good.skipped == 3  # each is counted once
    batches = list(good.test(1))
    assert [numbers(images) for images, _ in batches] == [[0], [1], [3], [4]]
    assert good.skipped == 4
    assert str(folder / "val/bee/00.png") in good.bad


def test_where_no_image_is_readable_there_is_nothing_to_skip_to(folder):
    for path in folder.glob("train/*/*.png"):
        spoil(path)
    source = stream(folder, skip_bad=True)
    source.begin(0)
    with pytest.raises(data.DataError, match="none of 14 images can be read"):
        source.advance()


def test_a_file_that_has_gone_is_no_bad_image(folder):
    source = stream(folder, batch=14, skip_bad=True)
    (folder / "train/cow/00.png").unlink()
    source.begin(0)
    with pytest.raises(data.DataError, match=r"cow/00.png: .*No such file.*was it moved"):
        source.advance()


def test_random_parts_lie_within_the_image_and_vary():
    chance = random.Random(0)
    areas = []
    for size in ((64, 64), (500, 333), (40, 90)):
        for _ in range(500):
            left, top, right, bottom = random_part(size, chance)
            assert 0 <= left < right <= size[0]
            assert 0 <= top < bottom <= size[1]
            assert 0.7 < (right - left) / (bottom - top) < 1.43
            areas.append((right - left) * (bottom - top) / size[0] / size[1])
    assert min(areas) < 0.1
    assert max(areas) > 0.95
    assert random_part((1000, 2), chance) == (499, 0, 501, 2)  # no part of such proportions: the middle


def test_a_resized_part_fills_the_crop():
    square = Cropping(10, 8, "resized").draw(picture(7, 30), random.Random(1))
    assert square.shape == (8, 8, 3)
    assert (square[:, :, 0] == 7).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: {"folder": folder / "none"}, r"there is no folder \S+none/train; expected one subfolder a class"),
        (lambda folder: {"folder": folder / "val"}, r"there is no folder \S+val/train"),
        (lambda folder: (folder / "val/dog").mkdir(), r"val/dog is no class of the training set"),
        (lambda folder: (folder / "train/dog").mkdir(), r"train/dog has no images \(.jpg, .jpeg, .png, .webp\)"),
        (lambda folder: {"batch": 6, "world": 4}, "a batch of 6 does not divide by 4 processes × 1 accumulated pieces"),
        (lambda folder: {"rank": 2, "world": 2}, "rank is from 0 to 1 among 2 processes, got 2"),
        (lambda folder: {"batch": 0}, "a batch of 0 does not divide"),
        (lambda folder: {"batch": 15}, "a batch of 15 is larger than the training set of 14 images"),
        (lambda folder: {"crop": 11}, "crop must be from 1 to resize=10, got 11"),
        (lambda folder: {"crops": "rezised"}, "unknown crops 'rezised'; did you mean 'resized'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change, message, folder):
    options = change(folder)
    with pytest.raises(ValueError, match=message):
        stream(**{"folder": folder, **(options if isinstance(options, dict) else {})})


def test_folders_without_classes_or_images_are_refused(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(data.DataError, match=r"train has no subfolders; expected one subfolder a class"):
        stream(tmp_path)
    write(tmp_path / "train", TRAIN)
    (tmp_path / "val/ant").mkdir(parents=True)
    with pytest.raises(data.DataError, match=r"val has no images"):
        stream(tmp_path)


def test_a_stream_has_to_begin_within_an_epoch(folder):
    source = stream(folder)
    with pytest.raises(RuntimeError, match=r"call begin\(epoch\) first"):
        source.advance()
    for epoch, start in ((0, 4), (0, -1), (-1, 0)):
        with pytest.raises(ValueError, match=f"batches 0 to 2, got epoch {epoch}, start {start}"):
            source.begin(epoch, start)


def test_an_interrupt_does_not_end_the_workers(folder):
    source = stream(folder, workers=1)
    source.begin(0)
    take(source, 1)
    (worker,) = source.arriving._workers
    os.kill(worker.pid, signal.SIGINT)
    take(source, 5)
    assert worker.is_alive()


def test_workers_are_as_many_as_the_cpus_of_each_process(folder, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert stream(folder, workers=None).workers == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert stream(folder, workers=None).workers == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert stream(folder, workers=None).workers == 1
