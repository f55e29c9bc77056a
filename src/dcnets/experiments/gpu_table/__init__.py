"""Decoupled networks against plain ones on one GPU, row by row: time and memory of a step, and the kernels' bandwidth."""

from dcnets.experiments.gpu_table.measuring import table
from dcnets.experiments.gpu_table.rows import names, read_names
from dcnets.experiments.gpu_table.shown import COLUMNS, NUMBERS, cells

__all__ = ["COLUMNS", "NUMBERS", "cells", "names", "read_names", "table"]
