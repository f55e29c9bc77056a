"""Robustness measured: accuracy under attack, curves over ε, transfer, local Lipschitz constants, and the masking report."""

from dcnets.experiments.robustness.accuracy import Withstood, clean, withstood, worst_case
from dcnets.experiments.robustness.curves import GRID, Curve, curve, over, worst_curve
from dcnets.experiments.robustness.evaluation import Evaluation, Wanted, evaluate
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.findings import Finding
from dcnets.experiments.robustness.lipschitz import Local, local_lipschitz
from dcnets.experiments.robustness.masking import Report, examine
from dcnets.experiments.robustness.transfer import Matrix, transfer_matrix
from dcnets.experiments.robustness.trials import Trial

__all__ = [
    "GRID", "Curve", "Evaluation", "Finding", "Local", "Matrix", "Plan", "Report", "Trial", "Wanted", "Withstood", "clean",
    "curve", "evaluate", "examine", "local_lipschitz", "over", "transfer_matrix", "withstood", "worst_case", "worst_curve",
]  # fmt: skip
