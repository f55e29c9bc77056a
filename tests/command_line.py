"""`dcnets` as a person calls it: in this process, or in one of its own."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

import dcnets
from dcnets.cli.program import program

SOURCE = Path(dcnets.__file__).parent.parent
SMALL = ("--width", "2", "--batch", "32", "--iterations", "3")
"""Fields with which a run of the 2-D-feature network takes a moment."""


def call(*arguments, **environment):
    """Run a command in this process; the result has exit_code, stdout and stderr."""
    result = CliRunner(env=environment).invoke(program, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*arguments, **environment):
    """The stdout of a command that must not fail."""
    result = call(*arguments, **environment)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(code, *arguments, **environment):
    """The one line on stderr of a command that must fail with this exit code."""
    result = call(*arguments, **environment)
    assert result.exit_code == code, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def environment(**more):
    """The variables of a process that finds this dcnets, and uses one thread."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def start(*arguments, module=("-m", "dcnets"), **options):
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *module, *map(str, arguments)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, **options,
    )  # fmt: skip
