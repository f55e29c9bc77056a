"""The program and its commands; torch is imported by a command that needs it, when it runs."""

from __future__ import annotations

import click

import dcnets
from dcnets.cli.attack import attack
from dcnets.cli.bench import bench
from dcnets.cli.command import Program
from dcnets.cli.convert import convert
from dcnets.cli.data import data
from dcnets.cli.evaluate import evaluate
from dcnets.cli.figure import figure
from dcnets.cli.models import models
from dcnets.cli.recipes import recipes
from dcnets.cli.report import report
from dcnets.cli.reproduce import reproduce
from dcnets.cli.study import study
from dcnets.cli.train import train
from dcnets.cli.weights import weights


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@click.version_option(dcnets.__version__, message="dcnets %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Train, test and convert decoupled networks.

    To begin with, dcnets train mnist-subset-features2d-tanh-cosine: its data is inside the package.

    Exit codes: 0 done, 1 error, 2 wrong arguments, 3 diverged, 128 + n stopped by signal n.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (train, evaluate, attack, reproduce, study, report, figure, convert, weights, bench, models, recipes, data):
    program.add_command(command)
