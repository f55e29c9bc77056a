"""Decoupled networks in PyTorch: layers that compute h(‖w‖, ‖x‖)·g(θ) in place of ⟨w, x⟩ (Liu et al., CVPR 2018).

A public name is imported when it is first asked for, so that the command line answers without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcnets import functional
    from dcnets.angular import angular as register_angular
    from dcnets.calibration import calibrate
    from dcnets.conversion import convert, pretrained_select
    from dcnets.freezing import freeze
    from dcnets.layers import (
        DecoupledConv1d,
        DecoupledConv2d,
        DecoupledConv3d,
        DecoupledConvTranspose2d,
        DecoupledLinear,
    )
    from dcnets.magnitude import magnitude as register_magnitude
    from dcnets.operator import Operator
    from dcnets.optim import parameter_groups, project_every, project_weights, weighted_gradients
    from dcnets.penalties import orthogonal_penalty, orthonormal_penalty
    from dcnets.plain import to_plain

__version__ = "0.1.0"

__all__ = [
    "DecoupledConv1d",
    "DecoupledConv2d",
    "DecoupledConv3d",
    "DecoupledConvTranspose2d",
    "DecoupledLinear",
    "Operator",
    "calibrate",
    "convert",
    "freeze",
    "functional",
    "orthogonal_penalty",
    "orthonormal_penalty",
    "parameter_groups",
    "pretrained_select",
    "project_every",
    "project_weights",
    "register_angular",
    "register_magnitude",
    "to_plain",
    "weighted_gradients",
]

MODULES = ("attacks", "functional", "fusing", "losses", "margins", "models")
HOMES = {
    "layers": __all__[:5],
    "operator": ["Operator"],
    "calibration": ["calibrate"],
    "conversion": ["convert", "pretrained_select"],
    "freezing": ["freeze"],
    "optim": ["parameter_groups", "project_every", "project_weights", "weighted_gradients"],
    "penalties": ["orthogonal_penalty", "orthonormal_penalty"],
    "plain": ["to_plain"],
    "angular": ["register_angular"],
    "magnitude": ["register_magnitude"],
}
"""Where each public name lives; what is registered with is its module's namesake."""


def __getattr__(name: str) -> Any:
    """Import a public name or module, once."""
    if name in MODULES:
        return import_module(f"dcnets.{name}")
    home = next((home for home, names in HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'dcnets' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"dcnets.{home}"), name.removeprefix("register_"))
    return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__, *MODULES})
