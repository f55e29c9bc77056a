"""What an attack is given, looked at before it begins."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dcnets.checks import real
from dcnets.losses import INTEGERS, full_precision


def check_model(model: nn.Module) -> None:
    """Refuse what has no evaluation mode."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a torch.nn.Module, got {type(model).__name__}; an attack has to put it in evaluation mode, "
            "so give the module itself, with the normalisation inside it (attacks.Normalised)"
        )


def device_of(model: nn.Module, x: Tensor) -> torch.device:
    """Where a model is, if it is one; where x is if it has no parameters."""
    check_model(model)
    return next(model.parameters(), x).device


def mistaken(name: str, value: object, expected: str, remedy: str) -> TypeError:
    """The error for a tensor of another type, which `remedy` mends, or for what is no tensor."""
    if isinstance(value, Tensor):
        return TypeError(f"{name} is {expected}, got {value.dtype}; {remedy}")
    return TypeError(f"{name} is {expected}, got {type(value).__name__}; make it one with torch.as_tensor({name})")


def check_images(x: Tensor) -> None:
    """Refuse what is no batch of images in [0, 1]."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise mistaken("x", x, "a floating-point tensor of images in [0, 1]", "of bytes take x.float() / 255")
    if x.dim() < 2:
        raise ValueError(f"x has shape {tuple(x.shape)}, expected one image or more (n, …); add a batch of one with x[None]")
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}, expected one image or more (n, …); there is nothing to attack")
    low, high = (value.item() for value in x.detach().aminmax())
    if not 0 <= low <= high <= 1:
        raise ValueError(
            f"x has values from {told(low)} to {told(high)}, expected [0, 1]; give the images as they are before "
            "normalisation, and the model with it inside: attacks.Normalised(model, mean, std, scale=…)"
        )


def told(pixel: float) -> str:
    """A value in four digits, or in as many as it takes to see that it is not 1."""
    return f"{pixel:.4g}" if pixel == 1 or not math.isclose(pixel, 1, rel_tol=1e-3) else f"{pixel!r}"


def checked_images(x: Tensor) -> Tensor:
    """A copy of x, without a graph and in float32 or better, after a look at type, shape and range."""
    check_images(x)
    return full_precision(x.detach()).clone()


def checked_labels(y: Tensor, x: Tensor) -> Tensor:
    """A copy of y as int64 where x is, after a look at type and shape."""
    if not isinstance(y, Tensor) or y.dtype not in INTEGERS:
        raise mistaken("y", y, "a tensor of class numbers of an integer type", "convert with .long()")
    if y.shape != x.shape[:1]:
        raise ValueError(f"y has shape {tuple(y.shape)}, expected ({len(x)},): one class number for each image")
    return y.detach().to(x.device, torch.long, copy=True)


def check_logits(logits: Tensor, images: int) -> None:
    """Refuse what is not a row of logits for each image."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"the model returned {type(logits).__name__}, expected a tensor of logits; wrap it so that it does")
    if logits.dim() != 2 or len(logits) != images or logits.shape[1] < 2 or not logits.is_floating_point():
        raise ValueError(
            f"the model returned {logits.dtype} of shape {tuple(logits.shape)}, expected logits ({images}, classes) "
            "of two classes or more"
        )


def check_span(span: tuple[int, int] | None, classes: int) -> None:
    """Refuse class numbers, from the lowest to the highest, that the model does not know."""
    if span is not None and not 0 <= span[0] <= span[1] < classes:
        wrong = span[0] if span[0] < 0 else span[1]
        raise ValueError(f"y has class {wrong}, but the model knows 0 to {classes - 1}; number the classes from 0")


def checked_amount(name: str, value: float) -> float:
    """The value, if it is a finite number, 0 or more."""
    found = real(value)
    if found is None:
        raise TypeError(f"{name} is a number, got {value!r}")
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{name} must be finite and 0 or more, got {found!r}")
    return found


def checked_eps(eps: float, norm: str) -> float:
    """ε, if it is an amount and, in L∞, no more than the whole range of a pixel."""
    eps = checked_amount("eps", eps)
    if norm == "linf" and eps > 1:
        raise ValueError(f"eps = {eps:g} is more than a pixel's whole range of 1; did you mean {eps:g}/255?")
    return eps
