"""Where runs are done: the device, its name, and the arithmetic that a recipe has there."""

from __future__ import annotations

from dataclasses import dataclass

from dcnets.experiments.recipe import Recipe


@dataclass(frozen=True)
class Place:
    """`device` is cpu or cuda; `bf16` says whether `auto` is bfloat16 there."""

    device: str
    name: str
    bf16: bool

    def arithmetic(self, recipe: Recipe) -> str:
        """A recipe's arithmetic there, as a line of results names it."""
        return recipe.arithmetic(self.bf16)


def here(device: str) -> Place:
    """The device of this machine."""
    import torch

    from dcnets.experiments.results import processor

    on_gpu = device == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else processor()
    return Place(device, name, on_gpu and torch.cuda.is_bf16_supported())
