"""Which lines of accuracies at several ε count in the charts, and what is told of the others."""

from __future__ import annotations

from collections.abc import Iterable

from dcnets.experiments import recipes
from dcnets.experiments.report.attacked import as_told
from dcnets.experiments.reproduce.lines import Line, not_of, origin
from dcnets.experiments.robustness.study.legible import left_out, sorted_out
from dcnets.experiments.versions import usual


def fitting(lines: Iterable[Line], version: str | None = None) -> tuple[list[Line], str]:
    """The lines that count, of the version given or else of that of most, and what is told of those left out."""
    legible, why = sorted_out(list(lines))
    reasons = [unfit(line) for line in legible]
    version = version or usual(line["dcnets"] for line, reason in zip(legible, reasons, strict=True) if not reason)
    fit = []
    for line, reason in zip(legible, reasons, strict=True):
        other = reason or (f"of dcnets {line['dcnets']}, not {version}" if line["dcnets"] != version else None)
        if other:
            why[other] += 1
        else:
            fit.append(line)
    return fit, left_out(why)


def unfit(line: Line) -> str | None:
    """Why a line does not count, whatever its version; None where it does.

    Its network has to have every field of the recipe that its name tells and to be at its end, attacked in float32 and
    in L∞, on the first test images.
    """
    name = origin(line["recipe"]["name"], recipes.recipes())
    if name is None:
        return "of a recipe that this dcnets does not have"
    differs = not_of(line, as_told(line, name), "", ())
    changed = [field for field in sorted(differs) if field not in ("precision", "updates", "name")]
    if changed or "name" in differs:
        return f"of a network whose recipe is changed ({', '.join(changed) or 'name'})"
    if "updates" in differs:
        return "of a network that was not at its end"
    if line["precision"] != "float32":
        return f"of attacks in {line['precision']}"
    if {each["norm"] for each in line["attacks"]} == {"l2"}:
        return "of attacks in L2, which are not shown"
    return "of images that are not the first" if line.get("first") else None
