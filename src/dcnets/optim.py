"""Training where ‖w‖ acts on the gradient alone (section 4): weight projection, weighted gradients, parameter groups."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dcnets.decoupled import WEIGHTS, Decoupled
from dcnets.filters import alike, by_filter, decoupled_layers, joined, layout
from dcnets.patches import norm


@torch.no_grad()
def project_weights(model: nn.Module, scale: float = 1.0) -> None:
    """Weight projection, section 4.1: w ← s·ŵ with ŵ = w/√(Σw² + ε), for the filters of every decoupled layer.

    The same storage, layers of one shape at once, nothing read back from the device: it may run between the replays of a
    captured CUDA graph, or be captured. Refuses layers whose ‖w‖ acts in the forward pass.
    """
    check_scale(scale)
    for layers in alike(projectable(model).values()):
        own = [layer.weight for layer in layers]
        weights = joined(own)
        filters, axes = by_filter(weights, layers)
        filters.mul_(scale / norm(filters, axes, layers[0].operator.eps))
        torch._foreach_copy_(own, weights.chunk(len(layers)))


def project_every(optimizer: Optimizer, model: nn.Module, every: int = 100, scale: float = 1.0) -> RemovableHandle:
    """Project after each `every`-th step of the optimiser from now on, until `remove()` of what is returned.

    The optimiser's own state stays as it is, as in the authors' training. A replayed CUDA graph calls no hook: there,
    call `project_weights` between the replays.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of steps, 1 or more, got {every!r}")
    check_scale(scale)
    projectable(model)
    steps = 0

    def hook(*_: Any) -> None:
        nonlocal steps
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "project_every: this optimiser step is being captured, and a replay calls no hook; remove() the hook and "
                "call project_weights(model) between the replays"
            )
        steps += 1
        if steps % every == 0:
            project_weights(model, scale)

    return optimizer.register_step_post_hook(hook)


class WeightedGradients:
    """What `weighted_gradients` returns: `remove()`, or the end of a `with` block, gives the plain gradients back."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Stop scaling."""
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> WeightedGradients:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Weighting:
    """Eq. (18) for one layer: ∂L/∂w ↦ ‖w‖·∂L/∂w, filter by filter; ‖w‖ counts as a constant."""

    def __init__(self, layer: Decoupled) -> None:
        self.layer = layer

    def __call__(self, gradient: Tensor) -> Tensor:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        filters, axes = by_filter(self.layer.weight.detach().to(wide), [self.layer])
        weighted = by_filter(gradient.to(wide), [self.layer])[0] * norm(filters, axes, self.layer.operator.eps)
        return weighted.flatten(0, 1).to(gradient.dtype)


def weighted_gradients(model: nn.Module) -> WeightedGradients:
    """Weighted gradients, section 4.2: Δw = ‖w‖·∂L/∂w, Eq. (18), which does not depend on ‖w‖.

    Every backward pass is scaled before it is added to `weight.grad`, so that accumulation stays right. For layers whose
    weight is trained when this is called. Refuses layers whose ‖w‖ acts in the forward pass.
    """
    layers = {name: layer for name, layer in projectable(model).items() if layer.weight.requires_grad}
    for name, layer in layers.items():
        if any(isinstance(hook, Weighting) for hook in (layer.weight._backward_hooks or {}).values()):
            raise ValueError(f"the gradients of {name} are weighted already; remove() the first handle before")
    handles: list[RemovableHandle] = []
    for layer in layers.values():
        handles.append(layer.weight.register_hook(Weighting(layer)))  # type: ignore[no-untyped-call]
    return WeightedGradients(handles)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for any torch optimiser: `weight_decay`, but 0 for what decay harms or cannot reach (section 5).

    No decay: the filters of decoupled layers, whose norm does not act, and the tensors of h and g (radius, alpha, beta, k,
    p, the values of learned functions). Decay: everything else, biases and batch norm too, and the filters of weighted
    operators and of inner_product, whose norm acts. A parameter with several uses decays where one of them does.
    """
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise ValueError(f"weight_decay must be a number, 0 or more, got {weight_decay!r}")
    exempt = {
        f"{name}.{key}".lstrip(".")
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, Decoupled)
        for key, _ in layer.named_parameters(remove_duplicate=False)
        if not decays(layer, key)
    }
    acts: dict[nn.Parameter, bool] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            acts[parameter] = acts.get(parameter, False) or name not in exempt
    groups = [
        {"params": [p for p, act in acts.items() if act], "weight_decay": weight_decay},
        {"params": [p for p, act in acts.items() if not act], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def decays(layer: Decoupled, key: str) -> bool:
    """Whether a decoupled layer's parameter is one that decay suits; `key` may be that of a parametrisation."""
    part = key.removeprefix("parametrizations.").split(".")[0]
    return part in ("bias", "bias_orig") or (part in WEIGHTS and layer.operator.weighted)


def check_scale(scale: float) -> None:
    """Refuse what is no positive number."""
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be a positive number, got {scale!r}")


def projectable(model: nn.Module) -> dict[str, Decoupled]:
    """The decoupled layers, each weight once, or a ValueError that names the layer whose filters cannot be rescaled."""
    for name, layer in model.named_modules():
        if isinstance(layer, Decoupled) and layer.operator.weighted:
            raise ValueError(
                f"{name or 'the model'} computes {layer.operator}, where ‖w‖ acts in the forward pass: its filters and "
                "gradients are not to be rescaled; use an unweighted operator, or hand over the part of the model without it"
            )
    elsewhere = {
        id(parameter): f"{name}.{key}"
        for name, module in model.named_modules()
        if not isinstance(module, Decoupled)
        for key, parameter in module._parameters.items()
    }
    owners: dict[int, str] = {}
    layers = decoupled_layers(model)
    for name, layer in layers.items():
        if "weight" not in layer._parameters:
            raise ValueError(f"the weight of {name} is computed from other parameters; remove the parametrisation first")
        if id(layer.weight) in elsewhere:
            raise ValueError(
                f"the weight of {name} is {elsewhere[id(layer.weight)]} too, where its norm acts; give each its own"
            )
        if id(layer.weight) in owners:
            other = owners[id(layer.weight)]
            raise ValueError(
                f"{other} and {name} share one weight, but their filters lie differently in it "
                f"(groups, transposed: {layout(layers[other])} and {layout(layer)}); give each its own"
            )
        owners[id(layer.weight)] = name
    return layers
