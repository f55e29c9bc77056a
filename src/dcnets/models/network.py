"""What all networks share: named layers that turn images into features, and a classifier on these."""

from __future__ import annotations

from torch import Tensor, nn

from dcnets.fusing.links import in_turn
from dcnets.surroundings import symbolic


class Network(nn.Module):
    """Layers from images (batch, channels, height, width) to features (batch, features), then `classifier`.

    The layers keep their names, so that a checkpoint reads `stage1.unit1.first.conv.weight`. `image_size` is the only side
    of an image that the network takes, `smallest` the least where any will do.
    """

    def __init__(
        self, layers: dict[str, nn.Module], width: int, num_classes: int, *, in_channels: int, image_size: int | None = None,
        smallest: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_channels, self.image_size, self.smallest = in_channels, image_size, smallest
        self.order = tuple(layers)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.classifier: nn.Module = nn.Linear(width, num_classes, bias=False)

    def initialise(self) -> None:
        """Draw every filter and the classifier from N(0, √(2/(k²·C_in))), k being the kernel's side, as the authors do."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """What the classifier gets: one row for each image."""
        self.check_images(x)
        y: Tensor = in_turn([self.get_submodule(name) for name in self.order], x)
        return y

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits

    def check_images(self, x: Tensor) -> None:
        """Refuse what the first or the last convolution would refuse with a message about kernels."""
        if symbolic(x):
            return
        if x.dim() != 4:
            raise ValueError(
                f"expected images (batch, {self.in_channels}, height, width), got a tensor of shape {tuple(x.shape)}"
                + ("; add the batch with x[None]" if x.dim() == 3 else "")
            )
        channels, height, width = x.shape[1:]
        if channels != self.in_channels:
            raise ValueError(
                f"expected {self.in_channels}-channel images, got {channels}-channel ones; "
                f"create the network with in_channels={channels}"
            )
        if self.image_size is not None and (height, width) != (self.image_size, self.image_size):
            raise ValueError(
                f"expected {self.image_size}×{self.image_size} images, got {height}×{width}; "
                "resize them, or create the network with their image_size"
            )
        if min(height, width) < self.smallest:
            raise ValueError(
                f"expected images of {self.smallest}×{self.smallest} or more, got {height}×{width}; enlarge them, or take "
                "a network with fewer poolings"
            )
