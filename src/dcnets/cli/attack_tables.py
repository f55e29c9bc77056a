"""What `dcnets attack` prints: accuracies by ε, by transfer, slopes, and the masking report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from dcnets.cli.attacking import Request
from dcnets.cli.output import percent, show
from dcnets.experiments.robustness import checks, masking
from dcnets.experiments.robustness.evaluation import Evaluation
from dcnets.experiments.robustness.evidence import BIM, FGSM, PGD
from dcnets.experiments.robustness.masking import Report
from dcnets.experiments.robustness.trials import SPOKEN, Trial, eps_told

NONE = "–"
SIGNS = {True: "yes", False: "no", None: NONE}


def show_all(found: Sequence[Evaluation], asked: Request) -> None:
    """All tables of an evaluation."""
    show_accuracies(found, asked)
    if found[0].matrix is not None and found[0].wanted.transfer is not None:
        show_transfer(found, found[0].wanted.transfer)
    if found[0].local is not None and found[0].wanted.lipschitz is not None:
        show_slopes(found, found[0].wanted.lipschitz)
    for each in found:
        if each.report is not None:
            show_report(each.name, each.report)
    if found[0].report is not None:
        show_rules()


def show_files(out: Path | None, results_file: Path | None, undrawn: Sequence[str]) -> None:
    """The files that were written, and the networks that the picture lacks."""
    if out is not None:
        click.echo(f"the curves are drawn in {out}" + (f", without {', '.join(undrawn)}" if undrawn else ""))
    if results_file is not None:
        click.echo(f"appended to {results_file}")


def show_accuracies(found: Sequence[Evaluation], asked: Request) -> None:
    """A row for each network and attack, a column for each ε."""
    heads = [f"ε {eps_told(eps)}" for eps in asked.eps]
    rows = []
    for each in found:
        curves = [*each.curves, *([each.worst] if len(each.curves) > 1 and not each.blocked else [])]
        own = [(curve.name, *map(percent, curve.accuracies)) for curve in curves]
        own += [(name, *[NONE] * len(heads)) for name in each.blocked]
        rows += [("" if number else each.name, *row) for number, row in enumerate(own)]
    show(("network", "attack", *heads), rows, heads)
    outcomes = [outcome for each in found for outcome in (each.clean, *(o for c in each.curves for o in c.outcomes))]
    images, error = found[0].clean.count, max(outcome.error for outcome in outcomes)
    click.echo(
        f"right as they are: {', '.join(f'{each.name} {percent(each.clean.accuracy)}' for each in found)}; "
        f"{images:,} images, ±{100 * error:.1f} points at most (one standard error)"
    )
    for trials in found[0].wanted.attacks:
        click.echo(told(trials[-1], asked))
    for each in found:
        for name, why in each.blocked.items():
            click.echo(f"{name} on {each.name} was not made: {why}")


def told(trial: Trial, asked: Request) -> str:
    """The settings of an attack, at whatever ε."""
    part = f"ε/{asked.step.parts:g}" if asked.step is not None and asked.step.parts else None
    seed = [f"seed {trial.seed}"] if "seed" in trial.settings() else []
    return ", ".join([SPOKEN[trial.attack], "L∞" if trial.norm == "linf" else "L2", *trial.words(part), *seed])


def show_transfer(found: Sequence[Evaluation], trial: Trial) -> None:
    """A row for each substitute, a column for each victim."""
    matrix = found[0].matrix
    if matrix is None:
        return
    names = [each.name for each in found]
    click.echo(f"\naccuracy on examples made on another network: {trial}")
    rows = [(row, *(percent(cells[name].accuracy) for name in names)) for row, cells in matrix.outcomes.items()]
    show(("made on", *names), rows, names)


def show_slopes(found: Sequence[Evaluation], trial: Trial) -> None:
    """Medians, with the tenth and the ninetieth part, of what was found of each image."""
    ratio = "‖Δz‖₁/‖Δx‖∞" if trial.norm == "linf" else "‖Δz‖₂/‖Δx‖₂"
    click.echo(f"\nlargest {ratio} found within ε = {eps_told(trial.eps)} (a lower bound), and the margin's slope")
    columns = ("constant", "slope of the margin", "margin/slope")
    rows = []
    for each in found:
        if each.local is not None:
            numbers = each.local.summary()
            shown = (numbers[name] for name in ("constant", "slope", "reach"))
            rows.append((each.name, *(f"{n['q50']:.3g} ({n['q10']:.3g} to {n['q90']:.3g})" for n in shown)))
    show(("network", *columns), rows, columns)
    click.echo(
        "medians, and from the tenth to the ninetieth of a hundred images; slope and margin/slope of those that are right "
        "as they are; margin/slope is a distance in pixels"
    )


def show_report(name: str, report: Report) -> None:
    """The findings of a network, and the verdict."""
    plan, outcomes = report.evidence.plan, report.evidence.outcomes
    lacking = [name for name in (FGSM, BIM, PGD) if name not in outcomes]
    made = f" (not made: {', '.join(lacking)})" if lacking else ""
    click.echo(f"\nmasking report of {name}: {plan.trial}, {plan.restarts} restarts, Square with {plan.queries} queries")
    show(("check", "masking", "found"), [(each.name, SIGNS[each.masking], each.told) for each in report.findings])
    click.echo(
        f"{percent(report.clean.accuracy)} right as they are, {percent(report.evidence.apparent.accuracy)} after FGSM, BIM "
        f"and PGD{made}, {percent(report.robust.accuracy)} after everything tried"
    )
    click.echo(f"verdict: {report.verdict}")


def show_rules() -> None:
    """When a check speaks of masking, and how the verdict follows."""
    click.echo("\na check speaks of masking if")
    for name, rule in checks.RULES.items():
        click.echo(f"- {name}: {rule}")
    click.echo("surely: two standard errors above; a gain must be above two of its own too\nthe verdict")
    for rule in masking.RULES:
        click.echo(f"- {rule}")
