"""What is told of an error, in one line, and the exit code that goes with it."""

from __future__ import annotations

import os

import click

from dcnets.cli import what_is_missing
from dcnets.experiments.signals import StoppedError

ERROR, USAGE, DIVERGED, INTERRUPTED = 1, 2, 3, 130
"""Exit codes; a run that a signal ended exits with 128 + its number."""


class Failure(click.ClickException):
    """An error that is told in one line, with its exit code."""

    def __init__(self, told: str, code: int = ERROR) -> None:
        super().__init__(told)
        self.exit_code = code  # type: ignore[misc]  # newer versions of click declare it for the class


class Misuse(click.UsageError):
    """Wrong arguments, with a message that needs no more words."""


def failure(error: Exception) -> Failure | None:
    """How an error is told, or None where it is a bug, whose traceback is needed."""
    if isinstance(error, StoppedError):
        return Failure(one_line(error), 128 + error.signal)
    if isinstance(error, ModuleNotFoundError) and (told := what_is_missing(error)):
        return Failure(told)
    if isinstance(error, OSError) and error.strerror:
        return Failure(": ".join(str(part) for part in (error.filename, error.strerror) if part))
    if isinstance(error, RuntimeError):
        return failure_at_run(error)
    expected = isinstance(error, ValueError | TypeError | OSError | ImportError)
    return Failure(one_line(error)) if expected else None


def failure_at_run(error: RuntimeError) -> Failure | None:
    """The same for what only a run can meet; torch has been imported by then."""
    from torch import OutOfMemoryError

    from dcnets.experiments.checkpoint import CheckpointError

    if isinstance(error, OutOfMemoryError):
        return Failure(f"the GPU's memory is full ({one_line(error)}); --accumulate 2 or more needs less of it")
    return Failure(one_line(error)) if isinstance(error, CheckpointError) else None


def one_line(error: Exception) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def misuse(error: click.UsageError) -> str:
    """What is told of wrong arguments: what came, what was probably meant, where to read more."""
    told, parameter = error.message.rstrip("."), getattr(error, "param", None)
    if isinstance(error, Misuse):
        return error.message
    if isinstance(error, click.NoSuchOption):
        close = f"did you mean {error.possibilities[0]}? " if error.possibilities else ""
        return f"unknown option {error.option_name}; {close}{see(error)}"
    if isinstance(error, click.MissingParameter) and parameter is not None:
        name = parameter.human_readable_name.upper() if is_argument(parameter) else parameter.opts[0]
        return f"missing {name}{getattr(parameter.type, 'such_as', '')}; {see(error)}"
    if isinstance(error, click.BadParameter) and parameter is not None and not is_argument(parameter):
        return f"{parameter.opts[0]}: {told}; {see(error)}"
    return f"{told[:1].lower()}{told[1:]}; {see(error)}"


def is_argument(parameter: click.Parameter) -> bool:
    """Whether a parameter has its place and no name."""
    return isinstance(parameter, click.Argument)


def see(error: click.UsageError) -> str:
    """Where all options stand."""
    return f"see {error.ctx.command_path if error.ctx else 'dcnets'} --help"


def leads() -> bool:
    """Whether this process speaks: the first one that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def tell(told: str, code: int) -> None:
    """One line on stderr. Of several processes the first one speaks, and of errors others too: theirs may be their own."""
    if leads():
        click.echo(f"error: {told}" if code in (ERROR, USAGE) else told, err=True)
    elif code == ERROR:
        click.echo(f"error in process {os.environ['RANK']}: {told}", err=True)
