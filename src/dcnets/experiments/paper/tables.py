"""Tables 1–8 of the paper as printed; the slides that show them have the same numbers."""

from __future__ import annotations

from collections.abc import Mapping

from dcnets.experiments.paper.cells import Published, Table, tabulated

Rows = Mapping[str, tuple[Published, ...]]

MAGNITUDES = {
    "SphereConv": "sphere", "BallConv": "ball", "TanhConv": "tanh", "LinearConv": "linear", "SegConv": "segmented",
    "LogConv": "log", "MixConv": "mixed",
}  # fmt: skip
ANGULARS = {"Linear": "linear", "Cosine": "cosine", "Sq. Cosine": "square_cosine"}
BASELINE = "Baseline"


def operator(row: str, angular: str = "Cosine") -> str:
    """What a row's operator adds to the name of a recipe; nothing for the baseline."""
    return "" if row == BASELINE else f"-{MAGNITUDES[row]}-{ANGULARS[angular]}"


METHODS = {
    "Linearly weighted": (22.95, "-linear"),
    "Nonlinearly weighted, Eq. (15)": (23.03, "-product"),
    "Nonlinearly weighted, Eq. (16)": (23.38, "-separate"),
    "Standard gradients": (23.09, "-standard_gradients"),
    "Weight projection": (21.17, ""),
    "Weighted gradients": (21.45, "-weighted_gradients"),
}
"""Table 1. Neither network nor angular function is named; the 21.17 is that of Table 4's TanhConv with cosine."""

WITHOUT_BN: Rows = {
    BASELINE: (None, 35.30, None),
    "LinearConv": (33.39, 31.76, "N/C"),
    "TanhConv": (32.88, 31.88, 34.26),
    "SegConv": (34.69, 30.34, "N/C"),
}
CNN9: Rows = {
    BASELINE: (58.24, None, 26.01, None),
    "SphereConv": (33.31, 25.90, 26.00, 26.97),
    "BallConv": (31.81, 25.43, 25.18, 26.48),
    "TanhConv": (32.27, 25.27, 25.15, 26.94),
    "LinearConv": (36.49, 24.36, 24.81, 25.14),
    "SegConv": (33.57, 24.29, 24.96, 25.04),
    "LogConv": (33.62, 24.91, 25.17, 25.85),
    "MixConv": (33.46, 24.93, 25.27, 25.77),
}
RESNET32: Rows = {
    BASELINE: (None, 26.69, None),
    "SphereConv": (21.79, 21.44, 24.40),
    "BallConv": (21.44, 21.12, 24.31),
    "TanhConv": (21.6, 21.17, 24.77),  # printed with one decimal in every source
    "LinearConv": (21.09, 22.17, 21.31),
    "SegConv": (20.86, 20.91, 20.88),
    "LogConv": (21.84, 21.08, 22.86),
    "MixConv": (21.02, 21.28, 21.81),
}
STATE_OF_THE_ART: Rows = {
    "ResNet-110": (6.61, 25.16),
    "ResNet-1001": (4.92, 22.71),
    "ResNet-1001, batch 64": (4.64, None),
    "TanhConv, cosine": (4.75, 21.12),
    "LinearConv, sq. cosine": (5.34, 20.23),
}
OURS = {"TanhConv, cosine": "-tanh-cosine", "LinearConv, sq. cosine": "-linear-square_cosine"}
"""The rows of Table 5 that are the paper's own; the other networks' numbers were taken from the papers that they cite."""
IMAGENET: Rows = {
    BASELINE: (12.63, 12.10, "N/C"),
    "SphereConv": (12.68, 11.55, 13.30),
    "LinearConv": (11.99, 11.50, "N/C"),
    "TanhConv": (12.47, 11.10, 12.79),
}
"""Table 6. The decoupled networks of the first column have a star: they began with the baseline's weights."""
NETWORKS = {
    "Standard, BN": "resnet18{}", "Modified, BN": "resnet18_modified{}", "Modified, no BN": "resnet18_modified{}-no_bn",
}  # fmt: skip
WHITE_BOX: Rows = {
    "Natural, no attack": (85.35, 88.58, 91.13, 91.45),
    "Natural, FGSM": (18.82, 43.64, 50.47, 52.60),
    "Natural, BIM": (8.67, 8.89, 7.74, 10.18),  # BallConv below the baseline, though the text says that all are above it
    "FGSM-trained, no attack": (83.70, 87.41, 87.47, 87.54),
    "FGSM-trained, FGSM": (78.96, 85.98, 82.20, 81.46),
    "FGSM-trained, BIM": (7.96, 35.07, 17.38, 19.86),
}
BLACK_BOX: Rows = {
    "Natural, no attack": (85.35, 88.58, 91.13, 91.45),
    "Natural, FGSM": (50.90, 56.71, 49.50, 50.61),
    "Natural, BIM": (36.22, 43.10, 27.48, 29.06),
    "FGSM-trained, no attack": (83.70, 87.41, 87.47, 87.54),
    "FGSM-trained, FGSM": (77.57, 76.29, 78.67, 80.38),
    "FGSM-trained, BIM": (78.55, 77.79, 80.59, 82.47),
}
TARGETS = (BASELINE, "SphereConv", "BallConv", "TanhConv")
ATTACKED = "cifar10-cnn9_attack"
SUBSTITUTE = ATTACKED
"""The network that black-box images are made on: the main text names none. Ours is a naturally trained baseline of its own
seed, so that no target, the baseline included, is attacked by its own gradients."""
BESIDE = f"{ATTACKED}-fgsm"
"""An attacker may guess how an FGSM-trained target was trained: those are also attacked from a baseline trained so."""
SUBSTITUTE_SEED = 1000
"""The seed of the networks that black-box images are made on: far from those of their targets."""


def weighted(row: str, column: str) -> dict[str, str]:
    """Table 1: TanhConv in ResNet-32."""
    return {"recipe": f"cifar100-resnet32-tanh-cosine{METHODS[row][1]}"}


def without_bn(row: str, column: str) -> dict[str, str]:
    """Table 2: CNN-9 without batch norm."""
    return {"recipe": f"cifar100-cnn9{operator(row, column)}-no_bn"}


def cnn9(row: str, column: str) -> dict[str, str]:
    """Table 3: CNN-9 with and without ReLU."""
    angular, relu = column.rsplit(" ", 2)[0], column.endswith("with ReLU")
    return {"recipe": f"cifar100-cnn9{operator(row, angular)}{'' if relu else '-no_relu'}"}


def resnet32(row: str, column: str) -> dict[str, str]:
    """Table 4: ResNet-32."""
    return {"recipe": f"cifar100-resnet32{operator(row, column)}"}


def state_of_the_art(row: str, column: str) -> dict[str, str]:
    """Table 5: ResNet-32 with a weight-normalised softmax; what others published is not ours to run."""
    data = column.replace("-", "").lower()
    return {"recipe": f"{data}-resnet32{OURS[row]}-normalised"} if row in OURS else {}


def imagenet(row: str, column: str) -> dict[str, str]:
    """Table 6: ResNet-18."""
    made = {"recipe": "imagenet-" + NETWORKS[column].format(operator(row))}
    starred = column == "Standard, BN" and row != BASELINE
    return made | ({"start": "imagenet-resnet18"} if starred else {})


def attacked(row: str, column: str) -> dict[str, str]:
    """Table 7: the network under attack, naturally trained or on FGSM's images."""
    training, attack = row.split(", ")
    recipe = f"{ATTACKED}{operator(column)}{'-fgsm' if training == 'FGSM-trained' else ''}"
    return {"recipe": recipe, "attack": "none" if attack == "no attack" else attack.lower()}


def transferred(row: str, column: str) -> dict[str, str]:
    """Table 8: the same networks, and images made on another one."""
    made = attacked(row, column)
    if made["attack"] == "none":
        return made
    return made | {"substitute": SUBSTITUTE} | ({"beside": BESIDE} if made["recipe"].endswith("-fgsm") else {})


BY_RELU = ("Cosine without ReLU", "Sq. Cosine without ReLU", "Cosine with ReLU", "Sq. Cosine with ReLU")

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        tabulated(1, "Weighted operators and ways to train: TanhConv in ResNet-32 on CIFAR-100", "top1_error", ("Error",),
                  {row: (error,) for row, (error, _) in METHODS.items()}, weighted),
        tabulated(2, "CNN-9 without batch norm on CIFAR-100", "top1_error", tuple(ANGULARS), WITHOUT_BN, without_bn),
        tabulated(3, "CNN-9 with and without ReLU on CIFAR-100", "top1_error", BY_RELU, CNN9, cnn9),
        tabulated(4, "ResNet-32 on CIFAR-100", "top1_error", tuple(ANGULARS), RESNET32, resnet32),
        tabulated(5, "ResNet-32 beside the best of its time", "top1_error", ("CIFAR-10", "CIFAR-100"), STATE_OF_THE_ART,
                  state_of_the_art),
        tabulated(6, "ResNet-18 on ImageNet-2012, centre crop", "top5_error", tuple(NETWORKS), IMAGENET, imagenet),
        tabulated(7, "CNN-9 under white-box attack on CIFAR-10", "accuracy", TARGETS, WHITE_BOX, attacked),
        tabulated(8, "CNN-9 under black-box attack on CIFAR-10", "accuracy", TARGETS, BLACK_BOX, transferred),
    )
}  # fmt: skip
"""The tables by the name that the command line takes."""
