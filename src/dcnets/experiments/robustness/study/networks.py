"""The networks of a study: what lies in a folder of runs, how each was trained, and who attacks whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.paper.tables import SUBSTITUTE_SEED
from dcnets.experiments.rebuild import recipe_of
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.robustness.study.words import words_for
from dcnets.experiments.scaling import scale_of
from dcnets.experiments.weights import open_checkpoint, runs_in, weights

PAPERS = ("cifar10", "cnn9_attack")
"""Data set and network of Tables 7 and 8."""


@dataclass(frozen=True)
class Network:
    """A trained network on the disk, by the name of its folder."""

    name: str
    path: Path
    checkpoint: Path
    recipe: Recipe
    step: int
    num_classes: int

    @property
    def family(self) -> tuple[str, str, float]:
        """What networks have to share to be compared."""
        return family_of(vars(self.recipe))

    @property
    def training(self) -> str:
        """natural, or the adversary's name."""
        return self.recipe.adversary or "natural"

    @property
    def variant(self) -> str:
        """How it differs from the network of the tables; empty where it does not."""
        return words_for(vars(self.recipe)).variant

    @property
    def substitute(self) -> bool:
        """Whether it is there to make images for others."""
        return self.recipe.seed == SUBSTITUTE_SEED

    @property
    def baseline(self) -> bool:
        """Whether it is the ordinary, naturally trained network of the paper's tables: the setting is sought with those."""
        other = self.recipe.operator or self.variant or self.recipe.adversary or self.substitute
        return self.family[:2] == PAPERS and not other


def family_of(recipe: Mapping[str, Any]) -> tuple[str, str, float]:
    """Data set, network and scale of the schedule of a recipe's fields."""
    return recipe["data"], recipe["network"], scale_of(recipe["name"])


def trained(paths: Sequence[Path]) -> tuple[list[Network], list[str]]:
    """The networks in runs and in folders of runs, and what is told of those that cannot be attacked."""
    found: dict[Path, Network] = {}
    told: list[str] = []
    for path in (run.resolve() for each in paths for run in runs_in(each)):
        opened = open_checkpoint(path)
        recipe = recipe_of(opened)
        if recipe.data not in CATALOGUE:
            told.append(f"{path.name} is left out: its images are a stream, and a study has them in memory")
        elif opened.state.get("divergence"):
            told.append(f"{path.name} is left out: it did not converge")
        elif opened.step < (whole := recipe.length(CATALOGUE[recipe.data].train // recipe.batch)):
            told.append(f"{path.name} is left out: it is at update {opened.step:,} of {whole:,}")
        else:
            classes = len(weights(opened)["classifier.weight"])
            found[path] = Network(path.name, path, opened.path, recipe, opened.step, classes)
    return sorted(found.values(), key=order), told


def order(network: Network) -> tuple[object, ...]:
    """Family by family in the order of the tables, seed by seed."""
    return network.family, words_for(vars(network.recipe)).place, network.recipe.seed, network.name


def substitutes_for(victim: Network, networks: Iterable[Network]) -> list[Network]:
    """The baselines of their own seed that attack a network by transfer: natural, and trained on FGSM's images."""
    return [
        each for each in networks
        if each.substitute and each != victim and each.family == victim.family and not (each.variant or each.recipe.operator)
    ]  # fmt: skip


def makers_for(victim: Network, networks: Iterable[Network]) -> list[Network]:
    """For the matrix: of each operator, trained alike, the network of the next seed, so that none attacks itself."""
    if victim.variant or victim.substitute:
        return []
    alike: dict[Recipe, list[Network]] = {}
    for each in networks:
        if not (each.variant or each.substitute) and (each.family, each.training) == (victim.family, victim.training):
            alike.setdefault(dataclasses.replace(each.recipe, seed=0), []).append(each)
    found = []
    for some in alike.values():
        later = [each for each in some if each.recipe.seed > victim.recipe.seed]
        others = later or [each for each in some if each.recipe.seed != victim.recipe.seed]
        own = dataclasses.replace(some[0].recipe, seed=0) == dataclasses.replace(victim.recipe, seed=0)
        if others or not own:  # of another operator the same seed will do
            found.append(min(others or some, key=lambda each: each.recipe.seed))
    return found
