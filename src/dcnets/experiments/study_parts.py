"""The parts of a robustness study; without torch, as the command line is that names them."""

FROZEN = "frozen"
"""The part that needs a setting to be sought first."""
PARTS = ("tables", FROZEN, "matrix", "curves", "lipschitz", "masking")
"""In the order in which they are measured, the quick ones first."""
