"""`dcnets recipes`: what there is to train."""

from __future__ import annotations

import dataclasses
import fnmatch

import click

from dcnets.cli.command import Command
from dcnets.cli.output import show
from dcnets.cli.recipe_options import SPOKEN
from dcnets.cli.words import Word
from dcnets.experiments import recipes as catalogue
from dcnets.experiments.recipe import NOTHING, Recipe

OWN_COLUMN = ("network", "operator", "data")

EXAMPLES = (
    "dcnets recipes cnn9",
    "dcnets recipes 'cifar100-*-tanh-*'",
    "dcnets recipes cifar100-resnet32-tanh-cosine",
)


@click.command(cls=Command, short_help="List the recipes.", examples=EXAMPLES)
@click.argument("pattern", type=Word("pattern", str, catalogue.recipes), required=False)
def recipes(pattern: str | None) -> None:
    """List the recipes whose name contains PATTERN, which may have * and ?; all fields of one, if it is its whole name."""
    known = catalogue.recipes()
    if pattern in known:
        show_fields(known[pattern])
        return
    wild = pattern is not None and any(sign in pattern for sign in "*?[")
    found = [
        recipe for name, recipe in known.items()
        if pattern is None or (fnmatch.fnmatchcase(name, pattern) if wild else pattern in name)
    ]  # fmt: skip
    if not found:
        catalogue.get(pattern or "")  # which raises, and names the likely ones
    show(("recipe", "network", "operator", "differs in"), [row(recipe) for recipe in found], cut=("network", "operator"))
    click.echo(f"{len(found)} recipes; dcnets recipes NAME shows all fields of one")


def row(recipe: Recipe) -> tuple[str, str, str, str]:
    """A recipe as it is listed: what differs from the authors' run on CIFAR."""
    differs = {name: value for name, value in catalogue.changed(recipe).items() if name not in OWN_COLUMN}
    told = ", ".join(f"{name}={written(value)}" for name, value in differs.items())
    return recipe.name, recipe.network, recipe.operator or "–", told


def show_fields(recipe: Recipe) -> None:
    """Each field with its option and what it means; a star where it is not that of the authors' run on CIFAR."""
    differs = catalogue.changed(recipe)
    rows = []
    for each in dataclasses.fields(recipe):
        if each.name != "name":
            value, star = getattr(recipe, each.name), "*" if each.name in differs else ""
            option = SPOKEN.get(each.name, each.name.replace("_", "-"))
            rows.append((f"--{option}", written(value), star, each.metadata["help"]))
    show(("option", recipe.name, "", "meaning"), rows)
    click.echo("*: not as in the authors' run on CIFAR")


def written(value: object) -> str:
    """A value as the command line takes it."""
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
