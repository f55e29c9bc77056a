"""The colours and dashes of all charts, which colour-blind eyes tell apart; the page has lighter ones for the dark."""

from __future__ import annotations

# Okabe and Ito's colours, the yellow darkened, and two more for the last of ten digits.
LIGHT = (
    "#222222", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B87F00", "#8A93A0", "#7A5195", "#8B5A2B",
)  # fmt: skip
DARK = (
    "#E8ECF1", "#5AB0E8", "#FF8A4C", "#38CFA4", "#F0A3CB", "#A5DBFF", "#F2BE4A", "#8A93A0", "#B79BE0", "#D6A777",
)  # fmt: skip
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (2, 2), (8, 2, 2, 2), (12, 2.5))
"""Five, so that colours that are alike, which are four places apart, have different ones."""
PALE, LINE, INK = "#d5dae1", "#8a93a0", "#222222"
