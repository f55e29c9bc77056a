"""Training sets on the device: order, crops, flips, shares of processes, test batches."""

import pytest
import torch
from tiny import tiny_data

from dcnets.experiments.data.augment import Augmentation, crop
from dcnets.experiments.data.resident import Resident, in_order
from dcnets.experiments.data.sets import Split

PLAIN = Augmentation()
AUGMENTED = Augmentation(2, "symmetric", flip=True)


def numbered(count=40, size=6, channels=2):
    images = torch.arange(count * channels * size * size).remainder(251).to(torch.uint8)
    return Split(images.view(count, channels, size, size), torch.arange(count))


def source(split=None, batch=8, augmentation=PLAIN, **more):
    split = split or numbered()
    channels = split.images.shape[1]
    return Resident(split, batch, mean=(100.0,) * channels, std=(50.0,) * channels, augmentation=augmentation, **more)


def epoch(own, number=0, start=0, batches=None):
    own.begin(number, start)
    found = []
    for _ in range(((batches or own.batches) - start) * own.pieces):
        own.advance()
        found.append(own.batch())
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def test_an_epoch_shows_every_image_once_normalised_in_channels_last():
    split = numbered()
    x, y = epoch(source(split))
    assert sorted(y.tolist()) == list(range(40))
    assert torch.equal(x, (split.images[y].float() - 100) / 50)
    own = source(split)
    own.begin(0)
    assert own.batch()[0].is_contiguous(memory_format=torch.channels_last)


def test_epochs_differ_and_are_a_pure_function_of_the_seed():
    for own in (source(augmentation=AUGMENTED), source(augmentation=AUGMENTED, seed=1)):
        first, second, again = epoch(own, 0), epoch(own, 1), epoch(own, 0)
        assert not torch.equal(first[1], second[1])
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])
    assert not torch.equal(epoch(source(seed=0))[1], epoch(source(seed=1))[1])


def test_an_epoch_goes_on_from_any_batch():
    own = source(augmentation=AUGMENTED)
    whole, rest = epoch(own, 3), epoch(source(augmentation=AUGMENTED), 3, start=2)
    assert torch.equal(whole[0][16:], rest[0])
    assert torch.equal(whole[1][16:], rest[1])


@pytest.mark.parametrize(("world", "pieces"), [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_processes_and_pieces_share_the_same_batches(world, pieces):
    whole = epoch(source(augmentation=AUGMENTED), 1)
    shares = [epoch(source(augmentation=AUGMENTED, rank=rank, world=world, pieces=pieces), 1) for rank in range(world)]
    for index, all_of_it in enumerate(whole):
        parts = [share[index].unflatten(0, (5, -1)) for share in shares]
        assert torch.equal(torch.cat(parts, 1).flatten(0, 1), all_of_it)


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="a batch of 8 does not divide by 3 processes × 1 accumulated"):
        source(world=3)
    with pytest.raises(ValueError, match="larger than the training set of 40"):
        source(batch=41)


@pytest.mark.parametrize("mode", ["symmetric", "reflect", "zeros"])
def test_padding_is_numpys(mode):
    numpy = pytest.importorskip("numpy")
    images = numbered(3).images
    names = {"symmetric": "symmetric", "reflect": "reflect", "zeros": "constant"}
    wanted = numpy.pad(images.numpy(), ((0, 0), (0, 0), (3, 3), (3, 3)), mode=names[mode])
    assert torch.equal(Augmentation(3, mode).padded(images).permute(0, 3, 1, 2), torch.from_numpy(wanted))


def test_too_wide_a_mirror_is_refused():
    with pytest.raises(ValueError, match="cannot pad 6 pixels by 6 mirrored ones"):
        Augmentation(6, "reflect").padded(numbered().images)


def test_crops_and_flips_are_the_ones_drawn():
    images, augmentation = numbered(5).images, Augmentation(2, "zeros", flip=True)
    padded = augmentation.padded(images)
    drawn = torch.tensor([[0, 0, 0], [4, 1, 0], [2, 2, 1], [1, 3, 1]], dtype=torch.int16)
    some = torch.tensor([4, 0, 2, 2])
    found = crop(padded, some, drawn, (6, 6))
    for image, index, (row, column, flip) in zip(found, some, drawn.tolist(), strict=True):
        wanted = padded[index, row : row + 6, column : column + 6].permute(2, 0, 1)
        assert torch.equal(image, wanted.flip(2) if flip else wanted)


def test_every_place_is_drawn_and_half_of_the_images_are_flipped():
    drawn = Augmentation(4, "symmetric", flip=True).draw(20_000, torch.Generator().manual_seed(0))
    for axis in (0, 1):
        counts = torch.bincount(drawn[:, axis].long(), minlength=9)
        assert len(counts) == 9
        assert (counts / 20_000 - 1 / 9).abs().max() < 0.01
    assert abs(drawn[:, 2].float().mean() - 0.5) < 0.02
    assert Augmentation(4).draw(1000, torch.Generator())[:, 2].sum() == 0


def test_the_test_set_comes_in_order_to_its_last_image():
    dataset = tiny_data()
    batches = list(in_order(dataset.test, 50, mean=dataset.mean, std=dataset.std))
    assert [len(y) for _, y in batches] == [50, 14]
    assert torch.equal(torch.cat([y for _, y in batches]), dataset.test.labels)
    assert torch.equal(torch.cat([x for x, _ in batches]), (dataset.test.images.float() - 127.5) / 128)
