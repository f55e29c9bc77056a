"""Whether a checkpoint belongs to a recipe, and in which fields it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dcnets.experiments.checkpoint import Checkpoint, CheckpointError


def differences(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two recipes differ, with both values; a field that one of them lacks is None there.

    Both are compared as JSON, which knows no tuples; 1 and 1.0 are the same number.
    """
    old, new = (json.loads(json.dumps(dict(recipe))) for recipe in (made, wanted))
    pairs = {name: (old.get(name), new.get(name)) for name in old | new}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b and json.dumps(a) != json.dumps(b)}  # nan is itself


def refuse_other_recipe(checkpoint: Checkpoint, recipe: Mapping[str, Any]) -> None:
    """Raise a CheckpointError that names each field in which the recipe is not `checkpoint.state["recipe"]`."""
    found = differences(checkpoint.state["recipe"], recipe)
    if found:
        made = ", ".join(f"{name}={old!r}" for name, (old, _) in found.items())
        wanted = ", ".join(f"{name}={new!r}" for name, (_, new) in found.items())
        raise CheckpointError(
            f"the checkpoint in {checkpoint.path.parent} was made with {made}, this recipe has {wanted}; "
            "use another folder or --fresh"
        )
