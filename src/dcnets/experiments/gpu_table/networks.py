"""The network of a contender, in the state in which it is fastest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import dcnets
from dcnets.experiments.gpu_table.b_cos import with_b_cos
from dcnets.experiments.gpu_table.paths import PATHS
from dcnets.experiments.gpu_table.rows import B_COS, PLAIN, Case, Contender
from dcnets.fusing import fuse
from dcnets.models import create


def build(case: Case, contender: Contender, device: torch.device) -> nn.Module:
    """The network in the state in which it is fastest."""
    torch.manual_seed(0)
    decoupled = contender not in (PLAIN, B_COS)
    own: dict[str, Any] = {} if case.width is None else {"width": case.width}
    network = create(case.network, num_classes=case.classes, operator=contender.operator if decoupled else None, **own)
    model: nn.Module = with_b_cos(network) if contender == B_COS else network
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if case.how == "inference":
        model = dcnets.freeze(model) if decoupled else model.eval()
    return fuse(model) if PATHS[contender.path].fuse else model
