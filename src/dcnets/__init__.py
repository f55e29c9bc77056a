"""Decoupled networks in PyTorch: layers that compute h(‖w‖, ‖x‖)·g(θ) in place of ⟨w, x⟩ (Liu et al., CVPR 2018)."""

from dcnets import functional
from dcnets.angular import angular as register_angular
from dcnets.calibrate import calibrate
from dcnets.convert import convert, pretrained_select, to_plain
from dcnets.freeze import freeze
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
