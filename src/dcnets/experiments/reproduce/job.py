"""What a plan is made of: a run, and an accuracy under attack of a run's network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dcnets.experiments import checkpoint
from dcnets.experiments.data.catalogue import CATALOGUE
from dcnets.experiments.paper import Cell
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.robustness.setting import MAIN
from dcnets.experiments.robustness.trials import Trial

TRIALS = {"fgsm": MAIN.fgsm, "bim": MAIN.bim}
"""The paper tells no setting; that under which its baseline is met best is for `dcnets study` to find."""


def updates(recipe: Recipe) -> int:
    """Updates of a recipe's run; a stream does not tell beforehand how many an epoch has, and counts as one."""
    entry = CATALOGUE.get(recipe.data)
    return recipe.length(entry.train // recipe.batch if entry else 1)


@dataclass(frozen=True)
class Job:
    """One run: its recipe, named, scaled and seeded, and its folder; `start` is that of the run which it begins with."""

    recipe: Recipe
    folder: Path
    start: Path | None = None

    @property
    def title(self) -> str:
        """The run in words."""
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return updates(self.recipe)

    @property
    def work(self) -> float:
        """About how many updates of natural training it is as long as: an adversary's gradient is two thirds of one."""
        recipe = self.recipe
        if recipe.adversary is None:
            return self.updates
        both = recipe.clean_share or recipe.adversary == "trades"  # the images as they are are trained on too
        return self.updates * ((2 if both else 1) + (recipe.adversary_steps or 1) * 2 / 3)

    @property
    def done(self) -> int:
        """Updates whose outcome is in the folder."""
        return max((checkpoint.step_of(path) for path in checkpoint.found(self.folder)), default=0)


@dataclass(frozen=True)
class Target:
    """A cell's run of one seed, and that of the network which its images are made on; `beside` is another such."""

    cell: Cell
    job: Job
    maker: Job
    beside: Job | None = None

    @property
    def trial(self) -> Trial:
        """The cell's attack."""
        return TRIALS[str(self.cell.attack)]

    @property
    def makers(self) -> list[Job]:
        """The runs whose networks make the images."""
        return [self.maker, *([self.beside] if self.beside else [])]

    def count(self, images: int | None) -> int:
        """How many test images are attacked where the first `images` are asked for; None: all."""
        whole = CATALOGUE[self.job.recipe.data].test
        return whole if images is None else min(images, whole)
