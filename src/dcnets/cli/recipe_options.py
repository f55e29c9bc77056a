"""The fields of a recipe as options, made from the dataclass, and a recipe whose name tells what was changed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from dcnets.cli.command import SectionOption
from dcnets.cli.failures import Misuse
from dcnets.cli.words import field
from dcnets.experiments.recipe import NOTHING, Recipe, kind_of, optional, words

Function = TypeVar("Function", bound=Callable[..., Any])
SECTION = "Fields of the recipe (each is as the recipe has it unless given)"
SPOKEN = {"data": "data-set"}
"""Fields whose option has another name: --data is the folder in every command."""
METAVARS = {int: "N", float: "NUMBER", str: "NAME", tuple: "N,N,…", bool: "true|false"}
PREFIX = "field_"


def recipe_options(function: Function) -> Function:
    """Give a command an option for each field of a recipe."""
    for each in reversed(dataclasses.fields(Recipe)):
        option = SPOKEN.get(each.name, each.name.replace("_", "-"))
        told = each.metadata.get("help", "name of the run")
        settings: dict[str, Any] = {"help": f"{told[0].upper()}{told[1:]}.", "section": SECTION, "default": None}
        if kind_of(each.name) is bool and not optional(each.name):
            declaration = f"--{option}/--no-{option}"
        else:
            declaration = f"--{option}"
            settings |= {"type": field(each.name), "metavar": metavar(each.name)}
        function = click.option(declaration, PREFIX + each.name, cls=SectionOption, **settings)(function)
    return function


def metavar(name: str) -> str:
    """What a field takes, as help shows it."""
    shown = "|".join(words(name)) or METAVARS[kind_of(name)]
    return f"{shown}|{NOTHING}" if optional(name) else shown


def taken(values: dict[str, Any]) -> dict[str, Any]:
    """The fields among a command's values that were given, which leave the values."""
    fields = {key: values.pop(key) for key in list(values) if key.startswith(PREFIX)}
    return {key.removeprefix(PREFIX): value for key, value in fields.items() if value is not None}


def changed(recipe: Recipe, fields: dict[str, Any], start: Path | None = None) -> Recipe:
    """The recipe with other fields; its name tells them, and the run whose weights it starts from.

    It tells neither seed nor precision, as that of `dcnets reproduce`, so that one goes on with the other's run.
    """
    try:
        new = recipe.override(fields)
    except (ValueError, TypeError) as error:
        raise Misuse(str(error)) from None
    if "name" in fields:
        return new
    differs = {name: getattr(new, name) for name in fields if getattr(new, name) != getattr(recipe, name)}
    told = [each.name for each in dataclasses.fields(Recipe) if each.name in differs.keys() - {"seed", "precision"}]
    parts = [brief(name, differs[name]) for name in told]
    if start is not None:
        parts.append(f"from_{(start if start.is_dir() else start.parent).resolve().name}")
    return dataclasses.replace(new, name="-".join([recipe.name, *parts]))


def brief(name: str, value: Any) -> str:
    """A field and its value in a name."""
    if value is None or isinstance(value, bool):
        return name if value else f"no_{name}"
    text = (
        "+".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
    )
    return f"{name}_{text}"


def default_folder(recipe: Recipe) -> Path:
    """Where a run is kept unless told otherwise: the same command finds it again."""
    return Path("runs") / re.sub(r"[^\w.,+=-]+", "_", f"{recipe.name}-seed{recipe.seed}")
