"""The checks for gradient masking: each is a function of the evidence, and returns a finding in words."""

from __future__ import annotations

from collections.abc import Callable

from dcnets.experiments.robustness import evidence as made
from dcnets.experiments.robustness.accuracy import Withstood, worst_case
from dcnets.experiments.robustness.evidence import Evidence
from dcnets.experiments.robustness.findings import Finding, Gap, at_least, gap, how_many, percent

ZERO, CHANGED, AIMLESS, FAR = 0.01, 0.01, 0.10, 0.05
"""Shares of images that must surely be exceeded: zero gradients, changing answers, gradients that lead nowhere, and images
that withstand any ε."""
WEAKER, RESTARTS, STRONGER = 0.01, 0.05, 0.10
"""Floors of a gap: to what cannot be stronger unless gradients fail, to more of the same, to what is stronger by design."""


def gradients(found: Evidence) -> Finding:
    """Masking: surely more than 1 % of the images have a gradient that is 0 or somewhere not finite, or none has one."""
    looks = found.looks
    if looks.zero is None or looks.finite is None or looks.zero_parts is None:
        return Finding("gradients", True, "the logits have no gradient in the image, so it cannot be followed")
    zero, total = how_many(looks.zero)
    broken, lost = (how_many(each)[0] for each in (~looks.finite, looks.zero | ~looks.finite))
    numbers = {"zero": zero / total, "not_finite": broken / total, "zero_components": looks.zero_parts.mean().item()}
    told = f"exactly 0 for {percent(zero / total)} of the images, in {percent(numbers['zero_components'])} of all components"
    told += f"; not finite for {percent(numbers['not_finite'])}" if broken else ""
    return Finding("gradients", at_least(lost, total) > ZERO, told, numbers)


def random_answers(found: Evidence) -> Finding:
    """Masking: surely more than 1 % of the answers change from look to look, or PGD on a mean gains more than 5 points."""
    changed, total = how_many(found.looks.changes)
    varied, _ = how_many(found.looks.varies)
    numbers = {"answers": changed / total, "logits": varied / total}
    if not varied:
        return Finding("random answers", False, "none: the logits are the same at each look", numbers)
    told = f"at each look other logits for {percent(varied / total)} of the images, and other answers for "
    told += percent(changed / total)
    masking = at_least(changed, total) > CHANGED
    if made.PGD in found.outcomes and made.MEAN in found.outcomes:
        one, mean = found.some(made.PGD, made.MEAN)
        lead = gap(one, mean)
        masking = masking or lead.exceeds(RESTARTS)
        numbers |= {"gap": lead.value, "error": lead.error}
        told += (
            f"; {percent(mean.accuracy)} withstand PGD on the mean of looks, {percent(one.accuracy)} PGD: {told_gap(lead)}"
        )
    return Finding("random answers", masking, told, numbers)


def along_gradient(found: Evidence) -> Finding:
    """Masking: for surely more than 10 % of the images the gradient leads to no higher loss than a random direction does."""
    name, looks = "loss along the gradient", found.looks
    if looks.aimless is None or looks.short is None or looks.turned is None:
        return not_made(name, "there is no gradient")
    aimless, total = how_many(looks.aimless)
    short, turned = (how_many(each)[0] / total for each in (looks.short, looks.turned))
    told = (
        f"no higher than in a random direction for {percent(aimless / total)} of the images; its first rise is far below "
        f"what the gradient promises for {percent(short)}, and it turns back before ε for {percent(turned)}"
    )
    numbers = {"aimless": aimless / total, "short": short, "turned": turned}
    return Finding(name, at_least(aimless, total) > AIMLESS, told, numbers)


def steps(found: Evidence) -> Finding:
    """Masking: BIM leaves more images than FGSM does, by more than 1 point."""
    return compared(found, "BIM against FGSM", made.BIM, made.FGSM, WEAKER)


def restarts(found: Evidence) -> Finding:
    """Masking: restarts of PGD gain more than 5 points over BIM and one run of PGD together."""
    for each in (made.BIM, made.PGD, made.RESTARTED):
        if each not in found.outcomes:
            return not_made("restarts", found.blocked[each])
    one, many = (worst_case(found.some(made.BIM, each)) for each in (made.PGD, made.RESTARTED))
    return beaten("restarts", one, many, RESTARTS, f"BIM and {found.plan.restarts} runs of PGD", "BIM and one run")


def saturation(found: Evidence) -> Finding:
    """Masking: PGD on logits of one spread and lead, whose softmax cannot saturate, gains more than 10 points."""
    return compared(found, "saturated loss", made.PGD, made.RESCALED, STRONGER)


def growing(found: Evidence) -> Finding:
    """Masking: surely more than 5 % of the images withstand PGD at any ε, up to the whole range of pixels."""
    if not found.far:
        why = found.blocked.get(made.PGD) or found.blocked.get(made.FAR) or "ε is the whole range of pixels already"
        return not_made("growing ε", why)
    last = worst_case(found.far.values())
    told = ", ".join(f"{percent(outcome.accuracy)} at {eps:.3g}" for eps, outcome in found.far.items())
    numbers = {f"{eps:.4g}": outcome.accuracy for eps, outcome in found.far.items()} | {"any": last.accuracy}
    return Finding("growing ε", at_least(last.right, last.count) > FAR, f"{told} withstand PGD", numbers)


def square(found: Evidence) -> Finding:
    """Masking: Square, which uses no gradient, beats all gradient attacks by more than 1 point."""
    if made.SQUARE not in found.outcomes:
        return not_made("Square", found.blocked[made.SQUARE])
    return beaten("Square", found.white, found.outcomes[made.SQUARE], WEAKER, "Square", "the gradient attacks")


def transfer(found: Evidence) -> Finding:
    """Masking: examples made on other networks beat all gradient attacks on this one by more than 1 point."""
    if not found.transferred:
        why = next((why for name, why in found.blocked.items() if name.startswith(made.TRANSFER)), "no substitute was given")
        return not_made("transfer", why)
    return beaten(
        "transfer", found.white, worst_case(found.transferred), WEAKER, "substitutes' examples", "the gradient attacks"
    )


def autoattack(found: Evidence) -> Finding:
    """Masking: AutoAttack beats all gradient attacks by more than 10 points."""
    if made.AUTO not in found.outcomes:
        return not_made("AutoAttack", found.blocked.get(made.AUTO, "it was not asked for"))
    return beaten("AutoAttack", found.white, found.outcomes[made.AUTO], STRONGER, "AutoAttack", "the gradient attacks")


CHECKS: dict[str, Callable[[Evidence], Finding]] = {
    "gradients": gradients, "random answers": random_answers, "loss along the gradient": along_gradient,
    "BIM against FGSM": steps, "restarts": restarts, "saturated loss": saturation, "growing ε": growing, "Square": square,
    "transfer": transfer, "AutoAttack": autoattack,
}  # fmt: skip
"""All checks by the names of their findings."""
RULES = {name: (check.__doc__ or "").removeprefix("Masking: ") for name, check in CHECKS.items()}
"""When each of them speaks of masking.

"Surely" is two standard errors above, and a gain must be above two of its own, image by image, too.
"""


def not_made(name: str, why: str) -> Finding:
    """A check that was not made."""
    return Finding(name, None, f"not made: {why}")


def compared(found: Evidence, name: str, weak: str, strong: str, floor: float) -> Finding:
    """Whether one attack beats another by more than a floor, where both could be made."""
    for each in (weak, strong):
        if each not in found.outcomes:
            return not_made(name, found.blocked[each])
    return beaten(name, found.outcomes[weak], found.outcomes[strong], floor, strong, weak)


def beaten(name: str, weak: Withstood, strong: Withstood, floor: float, one: str, other: str) -> Finding:
    """The same for what withstood, with words for both."""
    lead = gap(weak, strong)
    told = f"{percent(strong.accuracy)} withstand {one}, {percent(weak.accuracy)} {other}"
    numbers = {"weak": weak.accuracy, "strong": strong.accuracy, "gap": lead.value, "error": lead.error}
    return Finding(name, lead.exceeds(floor), f"{told}: {told_gap(lead)}", numbers)


def told_gap(lead: Gap) -> str:
    """A gap in points."""
    return f"a gain of {100 * lead.value:.1f} ± {100 * lead.error:.1f} points"
