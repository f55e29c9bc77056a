"""The types of arguments: words of a list, recipes, and fields of a recipe, each with its near-miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from dcnets.cli.failures import Misuse
from dcnets.experiments import recipe, recipes
from dcnets.naming import choose

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
THERE = click.Path(exists=True, path_type=Path)


class Word(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click, not in others
    """What `read` makes of a text, or its ValueError as a usage error; `known` words complete in a shell."""

    such_as = ""
    """What is added when the argument is missing."""

    def __init__(self, name: str, read: Callable[[str], Any], known: Callable[[], Iterable[str]]) -> None:
        self.name, self.read, self.known = name, read, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            raise Misuse(str(error)) from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self.known() if word.startswith(incomplete)]


class RecipeName(Word):
    """The name of a recipe, read as the recipe."""

    such_as = ", such as mnist-subset-features2d, whose data is inside the package; dcnets recipes lists all"

    def __init__(self) -> None:
        super().__init__("recipe", recipes.get, recipes.recipes)


def one_of(name: str, *words: str) -> Word:
    """One of a few words."""
    return Word(name, lambda text: choose(name, text, words), lambda: words)


def count(option: str, least: int = 1) -> Word:
    """A whole number, `least` or more."""

    def read(text: str) -> int:
        if not text.strip().removeprefix("+").isdecimal() or int(text) < least:
            raise ValueError(f"{option} is a whole number, {least} or more, got {text!r}")
        return int(text)

    return Word("number", read, lambda: ())


def field(name: str) -> Word:
    """The text of a recipe's field, once it has been read: what it reads as may be None, which is what is not given."""

    def checked(text: str) -> str:
        recipe.read(name, text)
        return text

    return Word(name, checked, lambda: (*recipe.words(name), *([recipe.NOTHING] if recipe.optional(name) else [])))
