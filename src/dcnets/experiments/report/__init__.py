"""The report: our runs beside the paper's tables, its claims judged, its figures drawn again."""
