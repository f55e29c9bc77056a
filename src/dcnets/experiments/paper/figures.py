"""The paper's figures: what each shows, and the runs that it needs."""

from __future__ import annotations

from dcnets.experiments.paper.cells import Figure

DIGITS = "mnist-features2d"
SHOWN = ("", "-sphere-cosine", "-ball-cosine", "-tanh-cosine")
"""The networks of Tables 7 and 8. Our sources have the captions of Figs. 6 and 7, not the names of their panels."""
CURVES = ("", *(f"-{magnitude}-cosine" for magnitude in ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed")))
"""The text does not say which operators Fig. 4 has: ours has the baseline and every magnitude with cosine."""

FIGURES: dict[int, Figure] = {
    figure.number: figure
    for figure in (
        Figure(1, "two-dimensional features of an ordinary network: classes differ in angle, images of one class in norm",
               (DIGITS,)),
        Figure(2, "what each operator does to a patch: projection to a sphere, a ball, a soft ball, or a new length"),
        Figure(3, "the magnitude functions at ρ = 1 and the angular functions"),
        Figure(4, "convergence of ResNet-32 on CIFAR-100, error by iteration",
               tuple(f"cifar100-resnet32{operator}" for operator in CURVES)),
        Figure(5, "in the appendix; none of our sources shows it or has its caption"),
        Figure(6, "two-dimensional features of MNIST digits after natural training",
               tuple(DIGITS + operator for operator in SHOWN)),
        Figure(7, "two-dimensional features of MNIST digits after adversarial training",
               tuple(f"{DIGITS}{operator}-fgsm" for operator in SHOWN)),
        Figure(8, "in the appendix; none of our sources shows it or has its caption"),
    )
}  # fmt: skip
