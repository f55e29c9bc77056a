"""Black-box attacks by transfer: examples made on one network and tried on another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from dcnets.experiments.robustness.accuracy import Withstood, clean, judged, worst_case
from dcnets.experiments.robustness.trials import Trial, Watch, unwatched
from dcnets.naming import choose


@dataclass(frozen=True, eq=False)
class Matrix:
    """What withstood: outcomes[substitute][victim]; where both are one network, the attack is white-box."""

    outcomes: Mapping[str, Mapping[str, Withstood]]

    def accuracies(self) -> dict[str, dict[str, float]]:
        """The robust accuracies, a row for each substitute."""
        return {row: {name: cell.accuracy for name, cell in cells.items()} for row, cells in self.outcomes.items()}

    def black_box(self, victim: str) -> Withstood:
        """What withstood the examples of every other network: the attacker has all of them at hand."""
        choose("victim", victim, {name: None for cells in self.outcomes.values() for name in cells})
        others = [cells[victim] for row, cells in self.outcomes.items() if row != victim]
        if not others:
            raise ValueError(f"there is no substitute for {victim} but itself; give another network")
        return worst_case(others)


def transfer_matrix(
    substitutes: Mapping[str, nn.Module], victims: Mapping[str, nn.Module], x: Tensor, y: Tensor, trial: Trial, *,
    batch: int, watch: Watch = unwatched,
) -> Matrix:  # fmt: skip
    """Attack each substitute once, on all images, and try its examples on each victim.

    An image withstands if its victim is right as it is and on the example. White-box and black-box are measured alike.
    """
    right = {name: clean(victim, x, y, batch=batch) for name, victim in victims.items()}
    outcomes: dict[str, dict[str, Withstood]] = {}
    for row, substitute in substitutes.items():
        examples = trial.examples(substitute, x, y, batch=batch, watch=watch)
        outcomes[row] = {name: right[name] & judged(victim, examples, y, batch=batch) for name, victim in victims.items()}
    return Matrix(outcomes)
