"""The data sets by name: how many images of which classes, where they come from, and where a download is put."""

from __future__ import annotations

from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = words("airplane automobile bird cat deer dog frog horse ship truck")
FINE = words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
    willow_tree wolf woman worm"""
)
COARSE = words(
    """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
    insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
    medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2"""
)


@dataclass(frozen=True)
class Remote:
    """A file to download: its place below the data folder, its published MD5 sum, and its addresses, the best first."""

    path: str
    md5: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A data set: image counts, image shape, classes, files to download."""

    title: str
    train: int
    test: int
    channels: int
    size: int
    classes: tuple[str, ...]
    files: tuple[Remote, ...] = ()


def idx_files(home: str, servers: tuple[str, ...], sums: tuple[str, str, str, str]) -> tuple[Remote, ...]:
    """The four files of a set in MNIST's format."""
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = [f"{kind}-ubyte.gz" for kind in kinds]
    return tuple(
        Remote(f"{home}/{file}", md5, tuple(server + file for server in servers))
        for file, md5 in zip(files, sums, strict=True)
    )


def cifar_file(file: str, md5: str) -> tuple[Remote, ...]:
    """An archive from the authors' page."""
    return (Remote(file, md5, (f"https://www.cs.toronto.edu/~kriz/{file}",)),)


CATALOGUE = {
    "mnist-subset": Entry("MNIST, 6,000 + 1,000 balanced digits inside the package", 6_000, 1_000, 1, 28, DIGITS),
    "mnist": Entry(
        "MNIST handwritten digits", 60_000, 10_000, 1, 28, DIGITS,
        idx_files(
            "MNIST/raw",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
             "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    "fashion-mnist": Entry(
        "Fashion-MNIST articles of clothing", 60_000, 10_000, 1, 28, CLOTHES,
        idx_files(
            "FashionMNIST/raw",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
             "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
    ),
    "cifar10": Entry(
        "CIFAR-10", 50_000, 10_000, 3, 32, CIFAR10,
        cifar_file("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    "cifar100": Entry(
        "CIFAR-100", 50_000, 10_000, 3, 32, FINE,
        cifar_file("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    ),
}  # fmt: skip
"""What `load` reads whole into memory."""

STREAMS = {
    "folder": "images in train/<class>/ and val/<class>/, as ImageNet",
    "webdataset": "images and classes in tar shards, train*.tar and val*.tar",
}
"""What `stream` reads batch by batch."""


def names() -> list[str]:
    """Every name that `load` or `stream` takes; the first is the default everywhere."""
    return [*CATALOGUE, *STREAMS]
