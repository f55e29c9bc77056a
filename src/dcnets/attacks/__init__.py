"""Attacks on classifiers of images in [0, 1]: by gradients, by queries, by transfer, and AutoAttack.

Each attack is a function of a model, images x (n, …) and classes y (n); it returns as many images and changes nothing else.
"""

from dcnets.attacks.aim import fooled
from dcnets.attacks.batches import in_batches
from dcnets.attacks.ensemble import autoattack
from dcnets.attacks.gradients import bim, fgsm, pgd
from dcnets.attacks.pixels import Normalised
from dcnets.attacks.squares import square
from dcnets.attacks.substitutes import Transferred, transfer

__all__ = ["Normalised", "Transferred", "autoattack", "bim", "fgsm", "fooled", "in_batches", "pgd", "square", "transfer"]
