"""The demo's networks: each trained by its recipe on the embedded digits, and its two features of every test digit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dcnets.experiments import recipes
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.distributed import Team
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.run import build_model, open_data
from dcnets.experiments.settings import Outcome, Settings
from dcnets.experiments.train import fit

RECIPES = {
    "Ordinary convolution": "mnist-subset-features2d",
    "TanhConv": "mnist-subset-features2d-tanh-cosine",
    "SphereConv": "mnist-subset-features2d-sphere-cosine",
}
"""The networks and their recipes."""
QUICK_UPDATES = 4
"""Of a quick run, which tests after half of them and at the end."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Run:
    """A trained network, what came of its training, and for each test digit two features, a guess and the truth."""

    name: str
    outcome: Outcome
    features: Tensor
    guesses: Tensor
    labels: Tensor

    @property
    def accuracy(self) -> float:
        """The share of test digits that are recognised at the end."""
        return (self.guesses == self.labels).float().mean().item()

    @property
    def epochs(self) -> list[float]:
        """The epochs at whose end the network was tested."""
        return self.column("epoch")

    def column(self, name: str) -> list[float]:
        """One number of each test: epoch, loss, test_top1, …"""
        return [row[name] for row in self.outcome.history]

    def epochs_to(self, goal: float) -> float | None:
        """The epochs after which a test first reached an accuracy, or None."""
        return next((row["epoch"] for row in self.outcome.history if row["test_top1"] >= goal), None)

    def centres(self) -> Tensor:
        """The mean feature of each digit, (10, 2)."""
        return torch.stack([self.features[self.labels == digit].mean(0) for digit in range(10)])

    def angles(self) -> Tensor:
        """The angle between each feature and the centre of its digit, in degrees."""
        return torch.rad2deg(torch.cosine_similarity(self.features, self.centres()[self.labels]).clamp(-1, 1).acos())

    def norms(self) -> Tensor:
        """The norm of each feature."""
        return self.features.norm(dim=1)

    def mistakes_by_norm(self, count: int) -> tuple[int, int]:
        """How many of the `count` shortest features are taken for another digit, and how many of the longest."""
        wrong = (self.guesses != self.labels)[self.norms().argsort()]
        return int(wrong[:count].sum()), int(wrong[-count:].sum())


def recipe_for(name: str, seed: int, epochs: int | None = None, quick: bool = False) -> Recipe:
    """A network's recipe with a seed; `epochs` in place of its own, or a few updates to see that all works."""
    recipe = recipes.get(RECIPES[name]).override({"seed": seed})
    if quick:
        half = QUICK_UPDATES / 2 * recipe.batch / CATALOGUE[recipe.data].train
        return recipe.override({"iterations": QUICK_UPDATES, "warmup": 1, "evaluate_every": half})
    return recipe if epochs is None else recipe.override({"epochs": epochs})


def train(name: str, recipe: Recipe) -> Run:
    """Train a network from scratch, then look at its features."""
    dataset, source, test = open_data(recipe, None, CPU, Team(), Settings(), {})
    model = build_model(recipe, dataset)
    outcome = fit(model, source, recipe, test)
    if outcome.divergence:
        raise ArithmeticError(f"{recipe.name}: {outcome.divergence}")
    model.eval()
    with torch.no_grad():
        images, labels = (torch.cat(parts) for parts in zip(*test(), strict=True))
        features = model.features(images)
        return Run(name, outcome, features, model.classifier(features).argmax(1), labels)
