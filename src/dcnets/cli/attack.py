"""`dcnets attack`: how robust trained networks are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dcnets.cli.attack_words import ATTACKS, Steps, amounts, chosen, one_amount, step_length
from dcnets.cli.command import Command
from dcnets.cli.options import data_option, device_option, place, stream_options
from dcnets.cli.words import FILE, THERE, count, one_of

EXAMPLES = (
    "dcnets attack runs/A --eps 8/255 --step 2/255 --steps 20 --masking",
    "dcnets attack runs/A runs/B --eps grid --step eps/4 --steps 10 --out curve.svg",
    "dcnets attack runs/A --substitute runs/B --eps 8/255 --attack bim --step eps/4 --steps 10",
)


@click.command(cls=Command, short_help="Attack trained networks.", examples=EXAMPLES)
@click.argument("paths", type=THERE, nargs=-1, required=True, metavar="FOLDER_OR_CHECKPOINT...")
@click.option("--eps", type=amounts("--eps"), required=True, metavar="ε,…",
              help="Distances in pixels of [0, 1], as 8/255 or 0.1,0.2; grid: 0, 1, 2, 4, 8, 16 and 32/255.")  # fmt: skip
@click.option("--attack", "attacks", type=chosen(), default="fgsm,bim,pgd", show_default=True, metavar="NAME,…",
              help=f"Attacks among {', '.join(ATTACKS)}.")  # fmt: skip
@click.option("--step", type=step_length(), metavar="NUMBER", help="Length of a step of BIM and PGD: 2/255, 0.01, or eps/4.")
@click.option("--steps", type=count("--steps"), metavar="N", help="Number of steps of BIM and PGD.")
@click.option("--restarts", type=count("--restarts"), default=1, metavar="N", show_default=True, help="Runs of PGD.")
@click.option("--queries", type=count("--queries"), default=500, metavar="N", show_default=True,
              help="Looks of the Square attack at the network.")  # fmt: skip
@click.option("--norm", type=one_of("norm", "linf", "l2"), default="linf", metavar="linf|l2", show_default=True,
              help="How distances are measured.")  # fmt: skip
@click.option("--at", type=one_amount("--at"), metavar="ε", help="The ε of what follows, where --eps has several.")
@click.option("--substitute", "substitutes", type=THERE, multiple=True, metavar="PATH",
              help="Another run, whose examples are tried on the networks (black box); may be repeated.")  # fmt: skip
@click.option("--matrix", is_flag=True, help="Examples of each network, tried on all of them.")
@click.option("--masking", is_flag=True, help="Is it robust, or are its gradients masked? Ten checks and a verdict.")
@click.option("--lipschitz", is_flag=True, help="How steep the networks are within ε of the images.")
@click.option("--images", type=count("--images"), default=1000, metavar="N", show_default=True,
              help="Images: the first of the test set.")  # fmt: skip
@click.option("--batch", type=count("--batch"), default=250, metavar="N", show_default=True, help="Images at a time.")
@click.option("--precision", type=one_of("precision", "fp32", "bf16"), default="fp32", metavar="fp32|bf16",
              show_default=True, help="Arithmetic; bf16 rounds small changes away and so looks robust.")  # fmt: skip
@click.option("--seed", type=count("--seed", least=0), default=0, metavar="N", show_default=True, help="Seed of all draws.")
@click.option("--out", type=FILE, metavar="FILE", help="Picture of the accuracies over ε: .svg, .png or .pdf.")
@click.option(
    "--results", "results_file", type=FILE, metavar="FILE", help="File to which a line for each network is appended."
)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each network in place of tables, and no bar.")
@data_option
@device_option
@stream_options(training=False)
def attack(
    paths: tuple[Path, ...], eps: list[float], attacks: list[str], step: Steps | None, steps: int | None, restarts: int,
    queries: int, norm: str, at: float | None, substitutes: tuple[Path, ...], matrix: bool, masking: bool, lipschitz: bool,
    images: int, batch: int, precision: str, seed: int, out: Path | None, results_file: Path | None, as_json: bool,
    data_folder: Path | None, device: str, **rest: Any,
) -> None:  # fmt: skip
    """Attack trained networks on their test set: the newest checkpoint of each run's folder, or checkpoints.

    Robust accuracy is the share of images that are right as they are and after the attack. ε, step and steps have no
    default, as it means nothing without them.
    """
    import torch

    from dcnets.cli import attack_tables as tables
    from dcnets.cli.attacking import Request, opened_subjects, watched
    from dcnets.experiments import jsonlines, results
    from dcnets.experiments.durable import check_writable
    from dcnets.experiments.robustness import picture
    from dcnets.experiments.robustness.evaluation import evaluate
    from dcnets.experiments.robustness.evaluation_line import line
    from dcnets.experiments.robustness.subjects import true_float32

    asked = Request(eps, attacks, step, steps, restarts, queries, norm, at, seed)
    asked.check_used(given(), masking=masking, lipschitz=lipschitz)
    wanted = asked.wanted(transfer=bool(substitutes) or matrix, masking=masking, lipschitz=lipschitz)
    asked.check(out, len(paths), len(substitutes), matrix)
    for file in (out, results_file):
        if file is not None:
            check_writable(file)
    where, form = torch.device(place(device)), {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    networks, others, x, y = opened_subjects(paths, substitutes, images, data_folder, where, form, as_json, rest)
    victims, against = ({each.name: each.model for each in some} for some in (networks, others))
    against |= victims if matrix else {}
    with watched(wanted.jobs(len(victims), len(against)), quiet=as_json) as watch, true_float32():
        found = evaluate(victims, x, y, wanted, batch=batch, substitutes=against, watch=watch)
    lines = [line(found[each.name], each.rebuilt, where.type, form) for each in networks] if as_json or results_file else []
    if as_json:
        for each in lines:
            click.echo(json.dumps(jsonlines.plain(each), ensure_ascii=False))
    else:
        tables.show_all([*found.values()], asked)
    if results_file is not None:
        for each in lines:
            results.append(results_file, each)
    undrawn = [name for name, each in found.items() if each.blocked]
    if out is not None:
        whole = {name: each.curves for name, each in found.items() if name not in undrawn}
        picture.draw(whole, out, norm=norm, images=len(x))
    if not as_json:
        tables.show_files(out, results_file, undrawn)


def given() -> set[str]:
    """The options that the command line has, by their names in the code."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
