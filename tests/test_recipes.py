"""Recipes: rows, names, what a command line may change, and that each one builds its network."""

import dataclasses
import math
import subprocess
import sys

import pytest
import torch
from PIL import Image

from dcnets import Operator
from dcnets.experiments import data as data_sets
from dcnets.experiments import recipes
from dcnets.experiments.data.sets import Dataset, Split
from dcnets.experiments.paper import TABLES
from dcnets.experiments.rebuild import rebuild
from dcnets.experiments.recipe import KINDS, Recipe, read, refuse_unknown_fields
from dcnets.experiments.run import run
from dcnets.experiments.settings import Settings
from dcnets.models.catalogue import NETWORKS, create

ALL = recipes.recipes()


def test_every_pair_of_the_tables_has_a_recipe():
    for magnitude in ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed"):
        for angular in ("cosine", "square_cosine"):
            for ending in ("", "-no_relu", "-sgd", "-no_relu-sgd"):
                assert f"cifar100-cnn9-{magnitude}-{angular}{ending}" in ALL  # Table 3
        for angular in ("linear", "cosine", "square_cosine"):
            assert f"cifar100-resnet32-{magnitude}-{angular}" in ALL  # Table 4
    for magnitude in ("linear", "tanh", "segmented"):
        for angular in ("linear", "cosine", "square_cosine"):
            assert ALL[f"cifar100-cnn9-{magnitude}-{angular}-no_bn"].batch_norm is False  # Table 2
    for name in ("linear", "product", "separate", "standard_gradients", "weighted_gradients"):
        assert f"cifar100-resnet32-tanh-cosine-{name}" in ALL  # Table 1
    for data in ("cifar10", "cifar100"):
        for operator in ("tanh-cosine", "linear-square_cosine"):
            assert ALL[f"{data}-resnet32-{operator}-normalised"].normalised_classifier  # Table 5
    for magnitude in ("sphere", "linear", "tanh"):
        for network in ("resnet18", "resnet18_modified", "resnet18_modified"):
            assert f"imagenet-{network}-{magnitude}-cosine" in ALL  # Table 6
        assert f"imagenet-resnet18_modified-{magnitude}-cosine-no_bn" in ALL
    for operator in ("", "-sphere-cosine", "-ball-cosine", "-tanh-cosine"):
        assert ALL[f"cifar10-cnn9_attack{operator}"].filters == "standard"  # Tables 7 and 8
        assert f"mnist-features2d{operator}" in ALL
        assert f"mnist-subset-features2d{operator}" in ALL  # Figs. 1, 6
        for data in ("mnist", "mnist-subset"):
            natural, adversarial = (ALL[f"{data}-features2d{operator}{way}"] for way in ("", "-fgsm"))  # Fig. 7
            changes = {"adversary": "fgsm", "adversary_eps": 0.3, "clean_share": 0.5}
            assert adversarial == dataclasses.replace(natural, name=adversarial.name, **changes)


def test_the_attacked_networks_are_trained_in_every_way():
    found = {name.removeprefix("cifar10-cnn9_attack"): recipe for name, recipe in ALL.items() if "cnn9_attack" in name}
    operators = ("", "-sphere-cosine", "-ball-cosine", "-tanh-cosine")
    radial = ("-ball-cosine", "-tanh-cosine")  # sphere has no radius to be absolute
    natural = [f"{each}{way}" for each in operators for way in ("", "-no_bn", "-no_augmentation")]
    natural += [f"{each}-absolute" for each in radial]
    adversarial = [f"{each}-fgsm" for each in natural] + [f"{each}-{way}" for each in operators for way in ("pgd", "trades")]
    assert set(found) == {*natural, *adversarial, *(f"{each}-sgd" for each in operators)}
    for name, recipe in found.items():
        assert (recipe.filters, recipe.penalty) == ("standard", None)
        assert (recipe.iterations, recipe.drops) == (20_000, (9_400, 14_100, 17_600))
        assert recipe.batch_norm == ("-no_bn" not in name)
        assert (recipe.pad, recipe.flip) == ((0, False) if "-no_augmentation" in name else (4, True))
        assert ("radius=absolute" in (recipe.operator or "")) == ("-absolute" in name)
        ending = name.rpartition("-")[2]
        assert recipe.adversary == (ending if ending in ("fgsm", "pgd", "trades") else None)
    values = ("adversary_eps", "adversary_step", "adversary_steps", "clean_share", "trades_weight")
    assert [getattr(found["-fgsm"], name) for name in values] == [8 / 255, None, None, 0.5, None]
    assert [getattr(found["-pgd"], name) for name in values] == [8 / 255, 2 / 255, 10, 0.0, None]
    assert [getattr(found["-trades"], name) for name in values] == [8 / 255, 2 / 255, 10, None, 6.0]


def test_the_defaults_are_the_authors():
    recipe = ALL["cifar100-cnn9-tanh-cosine"]
    assert (recipe.optimiser, recipe.rate, recipe.batch, recipe.iterations) == ("adam", 1e-3, 128, 42_500)
    assert recipe.drops == (20_000, 30_000, 37_500)
    assert (recipe.weight_decay, recipe.penalty, recipe.penalty_weight) == (5e-4, "orthonormal", 1e-5)
    assert (recipe.filters, recipe.project_every, recipe.label_smoothing) == ("projected", 100, 0.01)
    assert (recipe.pad, recipe.pad_mode, recipe.flip) == (4, "symmetric", True)
    imagenet = ALL["imagenet-resnet18_modified-tanh-cosine"]
    assert (imagenet.optimiser, imagenet.rate, imagenet.momentum, imagenet.batch) == ("sgd", 0.1, 0.9, 40)
    assert (imagenet.iterations, imagenet.drops) == (700_000, (200_000, 375_000, 550_000))


@pytest.mark.parametrize("name", [name for name in ALL if not name.endswith("-sgd")])
def test_each_recipe_builds_a_network_with_its_operator(name):
    recipe = ALL[name]
    assert name == recipe.name
    assert recipe.network in NETWORKS
    with torch.device("meta"):
        model = create(recipe.network, operator=recipe.operator, batch_norm=recipe.batch_norm, relu=recipe.relu)
    found = {str(module.operator) for module in model.modules() if hasattr(module, "operator")}
    assert found == ({str(Operator.parse(recipe.operator))} if recipe.operator else set())
    batch_norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert bool(batch_norms) == recipe.batch_norm
    relus = [module for module in model.modules() if isinstance(module, torch.nn.ReLU | torch.nn.PReLU)]
    assert bool(relus) == recipe.relu


SMALL = {"width": 4, "batch": 4, "iterations": 2, "drops": "1", "warmup": 0}
"""Fields with which a recipe of any network takes two updates of a moment."""
TRAINED = {cell.recipe: cell for number in (1, 4, 5, 6) for cell in TABLES[f"table{number}"].cells if cell.recipe}
"""Cells whose recipes the project has not carried out yet, each recipe once."""


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    """A folder of twelve images to train with, and as many to test with, in three classes."""
    folder = tmp_path_factory.mktemp("images")
    draw = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for at in range(12):
            place = folder / split / "abc"[at % 3]
            place.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(256, (36, 36, 3), generator=draw, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(place / f"{at}.png")
    return folder


def coloured(name, folder=None, download=True):
    """Random images of CIFAR's size."""
    draw, count = torch.Generator().manual_seed(0), int(name.removeprefix("cifar"))
    splits = [Split(torch.randint(256, (12, 3, 32, 32), generator=draw, dtype=torch.uint8), torch.arange(12) % count)
              for _ in range(2)]  # fmt: skip
    return Dataset(name, *splits, tuple(map(str, range(count))))


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_still_to_run_takes_its_first_updates(name, twelve, tmp_path, monkeypatch):
    monkeypatch.setattr(data_sets, "load", coloured)
    stream = {"resize": 36, "crop": 32, "workers": 0} if ALL[name].data == "folder" else {}

    def go(name, start=None):
        folder, recipe = tmp_path / name, ALL[name].override(SMALL)
        quiet = Settings(quiet=True)
        outcome = run(recipe, data_folder=twelve, folder=folder, start=start, device="cpu", settings=quiet, **stream)
        assert (outcome.steps, outcome.divergence) == (2, None)
        assert all(math.isfinite(row["loss"]) for row in outcome.history)
        assert outcome.scores is not None
        return folder

    first = go(TRAINED[name].start) if TRAINED[name].start else None
    made = rebuild(go(name, first), crop=32)
    assert (made.recipe.network, made.recipe.operator) == (ALL[name].network, ALL[name].operator)
    assert all(parameter.isfinite().all() for parameter in made.model.parameters())


def test_fields_are_read_from_text_by_their_type():
    changed = ALL["cifar100-cnn9"].override(
        {"rate": "0.01", "relu": "no", "operator": "tanh-cosine", "drops": "100,2_000", "penalty": "none", "seed": "7"}
    )
    assert (changed.rate, changed.relu, changed.operator, changed.penalty, changed.seed) == (
        0.01,
        False,
        "tanh-cosine",
        None,
        7,
    )
    assert changed.drops == (100, 2000)
    assert dataclasses.replace(changed, seed=0).override({"seed": 7}) == changed


def test_epochs_take_the_place_of_iterations_and_back():
    by_epochs = ALL["cifar100-cnn9"].override({"epochs": "3"})
    assert (by_epochs.iterations, by_epochs.epochs, by_epochs.length(390)) == (None, 3.0, 1170)
    assert by_epochs.override({"iterations": "50"}).length(390) == 50
    with pytest.raises(ValueError, match="give iterations or epochs"):
        ALL["cifar100-cnn9"].override({"epochs": "3", "iterations": "50"})


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("rate", "fast", "rate is a number, got 'fast'"),
        ("batch", "1.5", "batch is a whole number, got '1.5'"),
        ("relu", "maybe", "relu is true or false, got 'maybe'"),
        ("optimiser", "adamm", "unknown optimiser 'adamm'; did you mean 'adam'?"),
        ("drops", "1,x", "drops is whole numbers above 0, as 100,200, got '1,x'"),
        ("epochs", "-1", "epochs must be above 0, got -1.0"),
        ("label_smoothing", "2", "label_smoothing must be from 0 to 1"),
        ("weight_decay", "-1", "weight_decay must be 0 or more"),
        ("drops", "5,3", "drops must rise"),
    ],
)
def test_what_a_field_does_not_take_is_refused(field, text, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        ALL["cifar100-cnn9"].override({field: text})


def test_objects_are_type_checked_too():
    for field, value in (("batch", 1.5), ("batch", True), ("rate", "0.1"), ("drops", (1.5,)), ("relu", 1), ("name", 3)):
        with pytest.raises((TypeError, ValueError)):
            Recipe(**{"name": "x", field: value})
    assert Recipe(name="x", rate=1).rate == 1


def test_unknown_fields_and_recipes_name_the_near_miss():
    with pytest.raises(ValueError, match="unknown field 'ratee'; did you mean 'rate'"):
        refuse_unknown_fields(["seed", "ratee"])
    with pytest.raises(ValueError, match="unknown field 'ratee'; did you mean 'rate'"):
        read("ratee", "1")
    with pytest.raises(ValueError, match=r"did you mean 'cifar100-cnn9-tanh-cosine'.*dcnets recipes"):
        recipes.get("cifar100-cnn9-tanh-cosin")


def test_a_scaled_recipe_keeps_its_proportions():
    half = ALL["cifar100-cnn9"].scaled(0.5)
    assert (half.iterations, half.drops) == (21_250, (10_000, 15_000, 18_750))
    assert half.bn_momentum == 0.002  # batch norm's statistics span the same part of the schedule,
    assert ALL["cifar100-cnn9"].scaled(0.001).bn_momentum == 0.1  # and ten updates at least,
    assert ALL["mnist-features2d"].scaled(0.5).bn_momentum == 0.1  # or as many as they did


def test_running_statistics_keep_up_where_examples_are_made_by_them():
    """Means over 1,000 updates lag behind: an adversary would attack a network that there is no more."""
    trained = [each for each in ALL.values() if each.adversary]
    assert {each.data for each in trained} == {"cifar10", "mnist", "mnist-subset"}
    assert {each.bn_momentum for each in trained} == {0.1}
    assert ALL["cifar10-cnn9_attack"].bn_momentum == 0.001  # the authors'; natural training does not see it


def test_every_field_has_help_and_a_kind():
    for field in dataclasses.fields(Recipe):
        if field.name != "name":
            assert field.metadata["help"]
    assert set(KINDS) == {field.name for field in dataclasses.fields(Recipe)}


def test_recipes_need_no_torch():
    code = "import sys, dcnets.experiments.recipes as r; assert r.recipes(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
