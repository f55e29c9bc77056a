"""`fit`: train a network by a recipe, from the start or from where its folder says that it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcnets import project_weights, weighted_gradients
from dcnets.experiments import checkpoint
from dcnets.experiments.averages import Averages
from dcnets.experiments.checkpoint import Checkpoint, CheckpointError
from dcnets.experiments.data.source import Source
from dcnets.experiments.distributed import Team
from dcnets.experiments.evaluate import Scores, as_by_guess, evaluate
from dcnets.experiments.metrics import Metrics
from dcnets.experiments.optimizer_state import flatten_optimizer, restore_optimizer
from dcnets.experiments.progress import Progress
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.same_recipe import refuse_other_recipe
from dcnets.experiments.schedule import Schedule
from dcnets.experiments.settings import Outcome, Settings
from dcnets.experiments.signals import StoppedError, Wish, watched
from dcnets.experiments.telling import largest, told
from dcnets.experiments.update import Update, decoupled_body, make_optimiser, set_rate
from dcnets.experiments.weights import FOR_TRAINING, PREFIX, load_weights, under
from dcnets.optim import projectable

Batches = Iterable[tuple[Tensor, Tensor]]
LOOK = 0.5
"""Seconds from one look at the totals, which waits for the device, to the next."""
SILENCE = 3
"""Epochs of answers that do not depend on the image, after which a run has ended: what has no signal has no gradient."""
LOOK_TOGETHER = 20
"""Updates from one agreement of several processes to the next on whether to look, save or stop."""


def fit(
    model: nn.Module, source: Source, recipe: Recipe, test: Callable[[], Batches] | None = None, *,
    folder: Path | None = None, device: torch.device | str = "cpu", precision: torch.dtype = torch.float32,
    team: Team | None = None, settings: Settings | None = None,
) -> Outcome:  # fmt: skip
    """Train `model` on `source` as the recipe says; what it was given is what it gives back, trained.

    `test()` yields the test set in batches. With a `folder` the run writes metrics and checkpoints there, and goes on from
    the newest checkpoint if there is one. Ctrl-C or SIGTERM saves and raises `StoppedError`. A loss that is not finite ends
    the run, and so do three epochs of answers that are the same for every image; `Outcome.divergence` then tells where, and
    of a run that ended no better than a guess that it did.
    """
    with watched() as wish:
        training = Training(
            model, source, recipe, test, folder, torch.device(device), precision, team or Team(), settings or Settings()
        )
        return training.run(wish)


class Training:
    """A run on its way: model, optimiser, schedule, the number of updates done, and the clock."""

    def __init__(
        self, model: nn.Module, source: Source, recipe: Recipe, test: Callable[[], Batches] | None, folder: Path | None,
        device: torch.device, precision: torch.dtype, team: Team, settings: Settings,
    ) -> None:  # fmt: skip
        self.model, self.source, self.recipe, self.test = model, source, recipe, test
        self.folder, self.team, self.settings, self.precision, self.device = folder, team, settings, precision, device
        self.body = decoupled_body(model)
        self.projects = len(self.body) > 0 and recipe.filters == "projected"
        if self.projects:
            projectable(self.body)  # refuses now what could not be projected later
        self.weighs = len(self.body) > 0 and recipe.filters == "weighted"
        self.total = recipe.length(source.batches)
        self.test_every = max(1, round(recipe.evaluate_every * source.batches))
        self.schedule = Schedule(recipe, self.total)
        self.rate = math.nan  # until it is set: the optimiser of a run that goes on has the rate of its last update
        self.optimiser = make_optimiser(model, recipe, device)
        self.update = Update(
            model, source, self.optimiser, recipe, device=device, team=team, precision=precision, pieces=settings.pieces,
            compiled=settings.compiled, sync_bn=settings.sync_bn,
        )  # fmt: skip
        self.averages = Averages(model, settings.pieces)
        self.step, self.seconds, self.mark = 0, 0.0, 0.0
        self.history: list[dict[str, Any]] = []
        self.scores: Scores | None = None
        self.shown = torch.zeros(3, dtype=torch.float64)
        self.metrics = Metrics(folder, tensorboard=settings.tensorboard) if folder and team.leads else None

    def run(self, wish: Wish) -> Outcome:
        """Go on to the end, to a loss that is not finite, or to a signal; nothing of it stays with the model."""
        with weighted_gradients(self.body) if self.weighs else nullcontext(), self.metrics or nullcontext():
            return self.go(wish)

    def go(self, wish: Wish) -> Outcome:
        """Resume, prepare, train, and say what came of it."""
        begin = time.perf_counter()
        note, divergence = self.resume()
        before = self.step
        if self.settings.captured:
            self.update.capture()
        self.update.count.fill_(self.step)
        preparation = time.perf_counter() - begin
        images = self.settings.pieces * self.source.batch_size * self.team.world
        quiet = self.settings.quiet or not self.team.leads
        with Progress(self.recipe.name, self.total, images_per_step=images, quiet=quiet) as self.progress:
            for line in note if self.team.leads else ():
                self.progress.note(line)
            self.progress.update(self.step)
            divergence = divergence or self.walk(wish)
        if self.scores is None and self.test is not None and self.team.leads and divergence is None:
            self.scores = evaluate(self.model, self.test(), self.precision)  # the run had ended before
        divergence = divergence or self.learned_nothing()
        updates = self.step - before
        return Outcome(self.recipe, self.step, self.scores, self.history, self.seconds, preparation, divergence, updates)

    def walk(self, wish: Wish) -> str | None:
        """Update after update; what is told of a loss that is not finite or of silence, or None at the end."""
        self.model.train()
        self.mark = looked = saved = time.perf_counter()
        self.source.begin(*divmod(self.step, self.source.batches))
        while self.step < self.total:
            if self.step % self.source.batches == 0:
                self.source.begin(self.step // self.source.batches)
            self.set_rate()
            with self.averages.over(self.step):
                self.update()
            self.step += 1
            if self.projects and self.step % self.recipe.project_every == 0:
                project_weights(self.body)
            tests, now = self.step % self.test_every == 0 or self.step == self.total, time.perf_counter()
            look, save, stop = self.agreed(
                now - looked >= LOOK, now - saved >= self.settings.save_seconds, wish.signal is not None
            )
            if tests or look or save or stop:
                looked = time.perf_counter()
                if divergence := self.look():
                    self.save(divergence)
                    return divergence
            if tests:
                self.examine()
                if divergence := self.silent():
                    self.save(divergence)
                    return divergence
            if save or stop or self.step == self.total:
                self.save()
                saved = time.perf_counter()
            if stop and self.step < self.total:
                raise StoppedError(wish.signal or 0, f"stopped after {self.step} of {self.total} updates; {self.where()}")
        return None

    def learned_nothing(self) -> str | None:
        """What is told of a run that had an epoch or more and ended where it began, with a finite loss; else None."""
        if self.scores is None or not self.scores.guessed or self.step < self.source.batches:
            return None
        return f"after {self.step:,} updates {self.scores.top1:.2%} of the test images are right, as by a blind guess"

    def silent(self) -> str | None:
        """What is told of a network that has answered every image alike, in all tests of the last epochs; else None."""
        heard = max((row["step"] for row in self.history if not row.get("silent")), default=0)
        if self.step - heard < SILENCE * self.source.batches:
            return None
        return f"from update {heard:,} to {self.step:,} every image got the same answer: no signal passes, and no gradient"

    def agreed(self, *wishes: bool) -> tuple[bool, ...]:
        """What any process wishes, asked now and then; a process alone need not ask."""
        if self.team.world == 1:
            return wishes
        return self.team.any(*wishes) if self.step % LOOK_TOGETHER == 0 else (False,) * len(wishes)

    def set_rate(self) -> None:
        """Tell the optimiser this update's rate, where it has changed."""
        rate = self.schedule.rate(self.step)
        if rate != self.rate:
            set_rate(self.optimiser, rate)
            self.rate = rate

    def look(self) -> str | None:
        """Wait for the device, show loss and accuracy since the last look; what is told if the loss is not finite."""
        totals, diverged = self.update.totals.cpu().clone(), int(self.update.diverged)
        self.seconds += time.perf_counter() - self.mark
        self.mark = time.perf_counter()
        if diverged >= 0:
            self.step = diverged + 1
            return f"the loss of update {self.step} was not finite; {largest(self.model)}"
        loss, hits, images = (totals - self.shown).tolist()
        if images:
            self.progress.update(self.step, loss=loss / images, accuracy=hits / images, rate=self.rate)
        self.shown = totals
        return None

    def examine(self) -> None:
        """Test, write the metrics since the last test, and let the schedule see the training loss."""
        loss, hits, images = self.shown.tolist()
        row: dict[str, Any] = {
            "epoch": self.step / self.source.batches, "rate": self.rate, "loss": loss / images, "accuracy": hits / images,
        }  # fmt: skip
        self.schedule.observe(row["loss"])
        if self.test is not None and self.team.leads:
            self.scores = evaluate(self.model, self.test(), self.precision)
            row |= {f"test_{name}": getattr(self.scores, name) for name in ("top1", "top5", "loss")}
            if self.scores.alike and as_by_guess(row["accuracy"], images, self.scores.classes):
                row["silent"] = True
            if not self.settings.quiet:
                self.progress.note(told(row))
        if self.team.any("silent" in row)[0]:
            row["silent"] = True
        row["seconds"] = self.seconds
        self.history.append({"step": self.step, **row})
        if self.metrics:
            self.metrics.write(self.step, **row)
        self.update.totals.zero_()
        self.shown.zero_()
        self.mark = time.perf_counter()

    def where(self) -> str:
        """What is told of the place of the checkpoint."""
        return f"the state is in {self.folder}: the same command goes on" if self.folder else "nothing was saved: no folder"

    def save(self, divergence: str | None = None) -> None:
        """Write a checkpoint; every process hands in its random state, the first one writes."""
        if self.folder is None:
            return
        random = {"random.cpu": self.team.stacked(torch.get_rng_state())}
        if self.device.type == "cuda":
            random["random.cuda"] = self.team.stacked(torch.cuda.get_rng_state(self.device))
        if self.team.leads:
            moments, optimiser = flatten_optimizer(self.optimiser, self.model.named_parameters())
            tensors = {PREFIX + name: tensor for name, tensor in self.model.state_dict().items()}
            tensors |= {f"optimiser.{name}": tensor for name, tensor in moments.items()}
            tensors |= {"totals": self.update.totals, **random}
            state = {
                "recipe": asdict(self.recipe), "optimiser": optimiser, "schedule": self.schedule.state(),
                "history": self.history, "seconds": self.seconds, "divergence": divergence,
            }  # fmt: skip
            checkpoint.save(self.folder, self.step, tensors, state)
        self.mark = time.perf_counter()

    def resume(self) -> tuple[list[str], str | None]:
        """Go to where the newest checkpoint was written; what is told of it, and its divergence."""
        if self.folder is None:
            return [], None
        if self.settings.fresh and self.team.leads:
            checkpoint.discard(self.folder)
        self.team.wait()
        found = checkpoint.latest(self.folder)
        if found is not None:
            refuse_other_recipe(found, asdict(self.recipe))
        if self.metrics:
            self.metrics.truncate(found.step if found else -1)
        if found is None:
            return [], None
        notes = [note for note in (found.note, f"going on after update {found.step} of {self.total}") if note]
        tensors = found.tensors
        if not set(FOR_TRAINING) <= found.state.keys():
            return notes, self.take_trained(found)
        load_weights(self.model, found)
        moments = under("optimiser.", tensors)
        restore_optimizer(self.optimiser, self.model.named_parameters(), moments, found.state["optimiser"])
        self.schedule.restore(found.state["schedule"])
        self.step, self.seconds, self.history = found.step, found.state["seconds"], found.state["history"]
        self.update.totals.copy_(tensors["totals"])
        self.shown = tensors["totals"].clone()
        if len(tensors["random.cpu"]) != self.team.world:
            notes.append("another number of processes: dropout goes on from another random state")
            return notes, found.state["divergence"]
        torch.set_rng_state(tensors["random.cpu"][self.team.rank].clone())  # a view would be misaligned
        if "random.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"][self.team.rank].clone(), self.device)
        return notes, found.state["divergence"]

    def take_trained(self, found: Checkpoint) -> str | None:
        """Be at the end of a run of which only the network was kept; its divergence."""
        if found.step < self.total:
            raise CheckpointError(
                f"{found.path} holds the network alone, and training cannot go on from update {found.step} of {self.total}; "
                f"use another folder, and --start {found.path.parent} to begin with these weights"
            )
        load_weights(self.model, found)
        self.step, self.seconds, self.history = found.step, found.state["seconds"], found.state["history"]
        divergence: str | None = found.state["divergence"]
        return divergence
