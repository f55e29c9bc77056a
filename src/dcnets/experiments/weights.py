"""The weights of a checkpoint, found by its folder or file, put into a network that they fit, or kept alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dcnets.experiments import checkpoint
from dcnets.experiments.checkpoint import NAME, Checkpoint, CheckpointError
from dcnets.experiments.tensor_file import DamagedError

PREFIX = "model."
"""What the names of a network's tensors begin with in a checkpoint."""
FOR_TRAINING = ("optimiser", "schedule")
"""What is in a checkpoint's state for training to go on, and for nothing else."""


def runs_in(path: Path) -> list[Path]:
    """The runs in a folder, or the folder itself where it is one."""
    if checkpoint.found(path):
        return [path]
    return sorted(each for each in path.iterdir() if each.is_dir() and checkpoint.found(each))


def open_checkpoint(path: Path) -> Checkpoint:
    """The newest good checkpoint of a folder, or the one in a file."""
    if path.is_dir():
        newest = checkpoint.latest(path)
        if newest is None:
            raise CheckpointError(
                f"{path} holds no checkpoint; give the folder of a run, or a file step-….safetensors in it"
            )
        return newest
    if not NAME.fullmatch(path.name):
        raise CheckpointError(f"{path} is no checkpoint, whose name is step-….safetensors; give that, or its folder")
    try:
        return checkpoint.load(path)
    except DamagedError as error:
        raise CheckpointError(f"{path} {error}; give its folder, whose newest good checkpoint is then taken") from error


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def weights(found: Checkpoint) -> dict[str, Tensor]:
    """The network's tensors by their names in it."""
    return under(PREFIX, found.tensors)


def alone(found: Checkpoint) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a checkpoint of the same network, from which training cannot go on."""
    tensors = {name: tensor for name, tensor in found.tensors.items() if name.startswith(PREFIX)}
    return tensors, {name: value for name, value in found.state.items() if name not in FOR_TRAINING}


def is_copy_of(found: Checkpoint, run: Checkpoint) -> bool:
    """Whether a checkpoint holds the network alone of a run, from then or later: the tests of one begin with the other's."""
    alike = found.state.get("recipe") == run.state.get("recipe")
    tests = zip(found.state.get("history", []), run.state.get("history", []), strict=False)
    return alike and not any(name in found.state for name in FOR_TRAINING) and all(one == other for one, other in tests)


def load_weights(model: nn.Module, found: Checkpoint) -> None:
    """Put the checkpoint's weights into a network; those of an ordinary one fit its decoupled twin, whose radii stay."""
    came = weights(found)
    try:
        model.load_state_dict(came)
    except RuntimeError:
        raise CheckpointError(
            f"the weights in {found.path} do not fit the network: {difference(came, model.state_dict())}; "
            "take those of the same network, data set and operator, or of its ordinary twin"
        ) from None


def difference(came: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """The first thing in which weights are not those of a network."""
    for name in came.keys() & own.keys():
        if came[name].shape != own[name].shape:
            return f"{name} is {tuple(came[name].shape)}, expected {tuple(own[name].shape)}"
    strange, lacking = [sorted(one.keys() - other.keys()) for one, other in ((came, own), (own, came))]
    return f"{strange[0]} is not of this network" if strange else f"{lacking[0]} is not among them"


def start_from(model: nn.Module, path: Path) -> None:
    """Begin with the weights of another run: a trained ordinary network, one converted, or the same one."""
    load_weights(model, open_checkpoint(path))
