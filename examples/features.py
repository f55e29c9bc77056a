"""The demo's networks: each trained on the embedded digits, its two features of every test digit, and PGD against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dcnets.attacks import Normalised
from dcnets.experiments import data, recipes
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.distributed import Team
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.robustness import Curve, Trial, curve, over
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
GRID = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2)
"""The ε of the attack: from nothing to where the digits begin to be hard for people too."""
ATTACKED = 200
"""The test digits that are attacked: the first ones."""
ATTACK = Trial("pgd", 0.1, step=0.025, steps=10)
"""PGD with ten steps of ε/4."""


@dataclass(frozen=True)
class Run:
    """A trained network, what came of its training, and for each test digit two features, a guess and the truth.

    `withstood` is what PGD leaves right of the digits that are attacked, at each ε.
    """

    name: str
    outcome: Outcome
    features: Tensor
    guesses: Tensor
    labels: Tensor
    withstood: Curve

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
    """Train a network from scratch, then look at its features and attack it."""
    dataset, source, test = open_data(recipe, None, CPU, Team(), Settings(), {})
    model = build_model(recipe, dataset)
    outcome = fit(model, source, recipe, test)
    if outcome.divergence:
        raise ArithmeticError(f"{recipe.name}: {outcome.divergence}")
    model.eval()
    with torch.no_grad():
        images, labels = (torch.cat(parts) for parts in zip(*test(), strict=True))
        features = model.features(images)
        guesses = model.classifier(features).argmax(1)
    return Run(name, outcome, features, guesses, labels, attacked(model, recipe.data))


def attacked(model: nn.Module, name: str) -> Curve:
    """What PGD leaves right of the first test digits; at a larger ε it goes on with those that are left."""
    digits = data.load(name)
    x, y = digits.test.images[:ATTACKED] / 255, digits.test.labels[:ATTACKED]
    pixels = Normalised(model, digits.mean, digits.std, scale=255)
    return curve(pixels, x, y, over(ATTACK, GRID), batch=ATTACKED, falling=True)
