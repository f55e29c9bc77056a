"""The paper as data: its tables cell by cell, each with the recipe that produces it, and its figures."""

from dcnets.experiments.paper.beside import EXTRA, OWN_ROWS
from dcnets.experiments.paper.cells import Cell, Figure, Published, Table
from dcnets.experiments.paper.figures import FIGURES
from dcnets.experiments.paper.tables import TABLES

__all__ = ["EXTRA", "FIGURES", "OWN_ROWS", "TABLES", "Cell", "Figure", "Published", "Table"]
