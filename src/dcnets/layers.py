"""The layers: what stands where `nn.Conv1d/2d/3d`, `nn.ConvTranspose2d` or `nn.Linear` stood.

They share torch's positional signatures, weight layout and checkpoint keys, but are not `nn.Conv2d` or `nn.Linear`: a tool
that folds, merges or quantises those takes f(w, x) for linear in w, and ours is not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from dcnets.decoupled import Decoupled
from dcnets.geometry import Rows, Sizes, Windows, expand
from dcnets.options import Options

__all__ = ["DecoupledConv1d", "DecoupledConv2d", "DecoupledConv3d", "DecoupledConvTranspose2d", "DecoupledLinear"]


class _DecoupledConvNd(Decoupled, _ConvNd):
    dims: int

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = False, padding_mode: Any = "zeros", device: Any = None,
        dtype: Any = None, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        sizes: Any = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        sizes |= {name: expand(name, size, self.dims) for name, size in sizes.items() if not isinstance(size, str)}
        super().__init__(
            in_channels, out_channels, **sizes, transposed=False, output_padding=(0,) * self.dims, groups=groups, bias=bias,
            padding_mode=padding_mode, device=device, dtype=dtype,
        )  # fmt: skip
        self._decouple(out_channels, self.weight[0].numel(), {"device": device, "dtype": dtype}, options)

    @property
    def geometry(self) -> Windows:
        return Windows(self.dims, self.stride, self.padding, self.dilation, self.groups, self.padding_mode)


class DecoupledConv1d(_DecoupledConvNd):
    """`nn.Conv1d` with f(w, x) = h(‖w‖, ‖x‖)·g(θ) in place of ⟨w, x⟩; its keywords are those of `Options`."""

    dims = 1


class DecoupledConv2d(_DecoupledConvNd):
    """`nn.Conv2d` with f(w, x) = h(‖w‖, ‖x‖)·g(θ) in place of ⟨w, x⟩; its keywords are those of `Options`."""

    dims = 2


class DecoupledConv3d(_DecoupledConvNd):
    """`nn.Conv3d` with f(w, x) = h(‖w‖, ‖x‖)·g(θ) in place of ⟨w, x⟩; its keywords are those of `Options`."""

    dims = 3


class DecoupledConvTranspose2d(Decoupled, _ConvTransposeNd):
    """The decoupled convolution over the zero-stuffed input, in `nn.ConvTranspose2d`'s place; keywords as in `Options`."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = False, dilation: Sizes = 1, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        sizes: Any = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        sizes |= {"output_padding": output_padding}
        sizes = {name: expand(name, size, 2) for name, size in sizes.items()}
        super().__init__(
            in_channels, out_channels, **sizes, transposed=True, groups=groups, bias=bias, padding_mode=padding_mode,
            device=device, dtype=dtype,
        )  # fmt: skip
        fan_in = in_channels // groups * math.prod(self.kernel_size)
        self._decouple(out_channels, fan_in, {"device": device, "dtype": dtype}, options)

    @property
    def geometry(self) -> Windows:
        return Windows(
            2, self.stride, self.padding, self.dilation, self.groups, transposed=True, output_padding=self.output_padding
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        settings: Any = (self.stride, self.padding, self.kernel_size, 2, self.dilation)
        padding = self._output_padding(input, output_size, *settings)
        return self.respond(input, replace(self.geometry, output_padding=padding))


class _Linear(nn.Module):
    """The tensors of `nn.Linear` without its type."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", nn.Parameter(self.weight.new_empty(out_features)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.Linear.reset_parameters(cast(nn.Linear, self))

    def extra_repr(self) -> str:
        return nn.Linear.extra_repr(cast(nn.Linear, self))


class DecoupledLinear(Decoupled, _Linear):
    """`nn.Linear` with f(w, x) = h(‖w‖, ‖x‖)·g(θ) in place of ⟨w, x⟩; its keywords are those of `Options`."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, device: Any = None, dtype: Any = None,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self._decouple(out_features, in_features, {"device": device, "dtype": dtype}, options)

    @property
    def geometry(self) -> Rows:
        return Rows()
