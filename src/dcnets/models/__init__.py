"""The networks of the paper as plain torch networks, decoupled where an operator is named: `create` and `names`."""

from dcnets.models.catalogue import create, names

__all__ = ["create", "names"]
