"""What is said below a table: where the paper is silent, and what we took for it."""

from __future__ import annotations

from dcnets.experiments.report.attacked import SETTING

NOTES = {
    "table1": "The paper names neither network nor angular function; ours is ResNet-32 with cosine, as the number fits.",
    "table3": "Whether the paper’s baseline without ReLU (58.24) had one after its fully connected layer is not told: the "
              "first row has none anywhere; the last, which is ours and not the paper’s, has one there alone.",
    "table5": "The first three rows are other papers’ numbers and are not run.",
    "table6": "The decoupled networks of the first column begin with the baseline’s weights.",
    "table7": SETTING,
    "table8": f"{SETTING} The paper does not name the network that its images are made on; ours is a baseline of its own "
              "seed.",
}  # fmt: skip
