"""What all commands share: options in sections, --traceback, and their errors told in one line."""

from __future__ import annotations

import sys
from typing import Any

import click

from dcnets.cli.failures import INTERRUPTED, Failure, Misuse, failure, misuse, tell
from dcnets.naming import near_miss

TRACEBACK = "dcnets.traceback"


class SectionOption(click.Option):
    """An option that help shows below a heading of its own."""

    def __init__(self, *declarations: Any, section: str, **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.section = section


class Command(click.Command):
    """A command with --traceback, whose help shows its options section by section, and examples."""

    def __init__(self, *arguments: Any, examples: tuple[str, ...], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = examples
        self.params.append(
            click.Option(
                ["--traceback"], is_flag=True, expose_value=False, help="Show where in the code an error comes from.",
                callback=lambda ctx, _, wanted: ctx.meta.__setitem__(TRACEBACK, wanted),
            )
        )  # fmt: skip

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")


class Program(click.Group):
    """`dcnets` itself: every error ends as one line on stderr and the right exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a user's day, not of the alphabet

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if not args[0].startswith("-") and args[0] not in self.commands and not ctx.resilient_parsing:
            raise Misuse(f"unknown command {args[0]!r}; {near_miss(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            told = None if ctx.meta.get(TRACEBACK) else failure(error)
            if told is None:
                raise
            raise told from error

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Parse, run and exit."""
        settings |= {"prog_name": "dcnets", "standalone_mode": False}
        try:
            code = super().main(*arguments, **settings)
        except click.UsageError as error:
            code = error.exit_code
            tell(misuse(error), code)
        except Failure as error:
            code = error.exit_code
            tell(error.message, code)
        except click.Abort:
            code = INTERRUPTED
            tell("stopped", code)
        sys.exit(code if isinstance(code, int) else 0)
