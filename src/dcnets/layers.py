"""The layers: what stands where `nn.Conv1d/2d/3d`, `nn.ConvTranspose2d` or `nn.Linear` stood.

They share torch's positional signatures, weight layout and checkpoint keys, but are not `nn.Conv2d` or `nn.Linear`: a tool
that folds, merges or quantises those takes f(w, x) for linear in w, and ours is not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from dcnets import dispatch, functional
from dcnets.dispatch import Tensors
from dcnets.functional import Sizes
from dcnets.naming import choose, refuse_unknown
from dcnets.operator import Operator

RADIUS_FLOOR = 1e-4
"""ρ = r² + RADIUS_FLOOR, r being the parameter."""
K_FLOOR = 0.05
"""k = |v| + K_FLOOR, v being the parameter."""
LEARNED_K = 0.75
"""Where a learned k starts unless it is given."""
DECAY = 0.999
"""The weight that `running_norm` gives to the past once it has seen a thousand batches."""
LEARNABLE = ("radius", "alpha", "beta", "k", "p")


class Options(TypedDict, total=False):
    """The keywords of every layer, beside torch's.

    magnitude, angular, weighting: names, see `dcnets.Operator`; alpha, beta, k, p, eps: its numbers, which are the starting
    values of what is learned. radius: "relative" (in mean patch norms) or "absolute"; radius_init: ρ at the start;
    radius_per: "filter" or "layer"; learn: which of radius, alpha, beta, k, p are parameters; sync: whether processes
    share the mean norm of a batch.
    """

    magnitude: str
    angular: str
    weighting: str
    alpha: float
    beta: float | None
    k: float | None
    p: float | None
    eps: float
    radius: str
    radius_init: float
    radius_per: str
    learn: Sequence[str]
    sync: bool


class Decoupled(nn.Module):
    """What every decoupled layer has: an operator, its learned tensors and the running mean of its patch norms.

    `rho`, `k`, `p`, `alpha` and `beta` are the effective values, whether learned or fixed.
    """

    weight: Tensor
    bias: Tensor | None
    alpha: Tensor | float
    beta: Tensor | float | None
    raw_k: Tensor
    raw_p: Tensor
    running_norm: Tensor
    num_batches_tracked: Tensor

    def _decouple(self, filters: int, fan_in: int, factory: dict[str, Any], options: Options) -> None:
        """Read the options and make the tensors; the last step of a layer's constructor."""
        own = [name for name in inspect.signature(type(self).__init__).parameters if name not in ("self", "options")]
        refuse_unknown(type(self).__name__, options, (*own, *Options.__annotations__))
        known = {field.name for field in fields(Operator)}
        self.operator = Operator(**{name: value for name, value in options.items() if name in known})  # type: ignore[arg-type]
        self.filters, self.fan_in = filters, fan_in
        self.radius_init = float(options.get("radius_init", 1.0))
        self.radius_per = choose("radius_per", options.get("radius_per", "filter"), ("filter", "layer"))
        self.sync = options.get("sync", False)
        self.learn = self._checked_learn(options)
        self.k_init = options.get("k") or (LEARNED_K if "k" in self.learn else self.operator.k)
        self._check(options)
        if "alpha" not in self.learn:
            self.alpha = self.operator.alpha
        if "beta" not in self.learn:
            self.beta = self.operator.beta
        for name, tensor in self._initial(**factory).items():
            if name.removeprefix("raw_") in self.learn:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        self.h = self.operator.build("magnitude", filters, **factory)
        self.g = self.operator.build("angular", filters, **factory)

    def _checked_learn(self, options: Options) -> tuple[str, ...]:
        """The names that are learned; the default `radius` is dropped where there is none."""
        h, g = self.operator.h.parameters, self.operator.g.parameters
        takes = {"alpha", *("radius" if name == "rho" else name for name in (*h, *g))}
        given = options.get("learn", ("radius",) if self.operator.has_radius else ())
        for name in (learn := (given,) if isinstance(given, str) else tuple(given)):
            if choose("name in learn", name, LEARNABLE) not in takes:
                raise ValueError(f"{self.operator} has no {name} to learn; leave it out of learn={learn!r}")
        return learn

    def _check(self, options: Options) -> None:
        for name in ("radius", "radius_init", "radius_per", "sync"):
            if name in options and not self.operator.has_radius:
                raise ValueError(f"{self.operator.h.name} has no radius, so {name} means nothing; leave it out")
        if not (math.isfinite(self.radius_init) and self.radius_init > RADIUS_FLOOR):
            raise ValueError(f"radius_init must be above {RADIUS_FLOOR:g}, got {self.radius_init!r}")
        if "k" in self.learn and not (self.k_init and self.k_init > K_FLOOR):
            raise ValueError(f"a learned k must start above {K_FLOOR:g}, got {self.k_init!r}")
        if self.sync and self.operator.radius == "absolute":
            raise ValueError("an absolute radius has no mean norm to share; leave sync out")

    def _initial(self, device: Any = None, dtype: Any = None) -> dict[str, Tensor]:
        """Every tensor beside weight and bias, as it is before training."""
        operator, statistics = self.operator, torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)

        def each(value: float, count: int = self.filters) -> Tensor:
            return torch.full((count,), value, device=device, dtype=dtype)

        initial: dict[str, Tensor] = {}
        if operator.has_radius:
            raw = math.sqrt(self.radius_init - RADIUS_FLOOR)
            initial["raw_radius"] = each(raw, self.filters if self.radius_per == "filter" else 1)
        if operator.has_radius and operator.radius == "relative":
            initial["running_norm"] = torch.tensor(math.sqrt(self.fan_in), device=device, dtype=statistics)
            initial["num_batches_tracked"] = torch.tensor(0, device=device, dtype=torch.long)
        start = {"alpha": operator.alpha, "beta": operator.beta, "k": self.k_init, "p": operator.p}
        lowest = {"k": K_FLOOR, "p": 1.0}
        for name, value in start.items():
            if name in self.learn and value is not None:
                initial[f"raw_{name}" if name in lowest else name] = each(value - lowest.get(name, 0.0))
        return initial

    @property
    def rho(self) -> Tensor | None:
        """ρ = r² + 1e-4, one a filter or one a layer; in mean norms where the radius is relative; None without radius."""
        raw: Tensor | None = getattr(self, "raw_radius", None)
        return None if raw is None else raw.square() + RADIUS_FLOOR

    @property
    def k(self) -> Tensor | float | None:
        """K = |v| + 0.05 where it is learned."""
        return self.raw_k.abs() + K_FLOOR if "k" in self.learn else self.operator.k

    @property
    def p(self) -> Tensor | float | None:
        """P = |v| + 1 where it is learned."""
        return absolute(self.raw_p) + 1 if "p" in self.learn else self.operator.p

    def _tensors(self, x: Tensor) -> Tensors:
        """What the functional form computes with."""
        return {
            "rho": self.rho, "alpha": self.alpha, "beta": self.beta, "k": self.k, "p": self.p,
            "mean_norm": self._mean_norm(x), "h": self.h, "g": self.g,
        }  # fmt: skip

    def _mean_norm(self, x: Tensor) -> Any:
        """The running mean in evaluation; in training the batch's, or that of all processes' batches."""
        if not self._tracks:
            return None if self.operator.radius == "absolute" or not self.operator.has_radius else self.running_norm
        if dispatch.is_vmapped(x):
            raise RuntimeError(
                f"vmap over {type(self).__name__} in training: a relative radius is measured by the batch's mean norm, "
                "as batch norm is; call eval() first, or use radius='absolute'"
            )
        return SharedMean() if self.sync and dist.is_available() and dist.is_initialized() else None

    @property
    def _tracks(self) -> bool:
        return self.training and "running_norm" in self._buffers

    def _track(self, x: Tensor, used: Any, m: Tensor | None) -> None:
        """Average a batch's mean norm into `running_norm`: all batches alike at first, then with decay.

        Left alone by an empty batch, and by torch.func, whose functions are pure.
        """
        if m is None or not self._tracks or dispatch.in_transform() or (x.numel() == 0 and used is None):
            return
        with torch.no_grad():
            seen = used.seen if isinstance(used, SharedMean) else torch.ones_like(self.num_batches_tracked)
            count = self.num_batches_tracked.add_(seen).clamp(min=1).to(self.running_norm.dtype)
            share = count.reciprocal().clamp(min=1 - DECAY) * seen
            # detach: torch 2.13 compiles an update of a float64 scalar buffer itself to nothing
            self.running_norm.detach().lerp_(m.to(self.running_norm.dtype), share)

    def reset_parameters(self) -> None:
        """Start anew: torch's initial weights, and the operator's own tensors as they were."""
        super().reset_parameters()  # type: ignore[misc]
        if "operator" in self.__dict__:
            with torch.no_grad():
                for name, tensor in self._initial(self.weight.device, self.weight.dtype).items():
                    getattr(self, name).copy_(tensor)
            for module, part in ((self.h, "magnitude"), (self.g, "angular")):
                if module is not None:
                    fresh = self.operator.build(part, self.filters, device=self.weight.device, dtype=self.weight.dtype)
                    module.load_state_dict(cast(nn.Module, fresh).state_dict())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load as torch does; what an ordinary layer's checkpoint lacks takes its initial value."""
        device = None if self.weight.is_meta else self.weight.device  # a meta tensor would lose the value
        lacking = self._initial(device, self.weight.dtype)
        for name, part in (("h", "magnitude"), ("g", "angular")):
            module = self.operator.build(part, self.filters, device=device, dtype=self.weight.dtype)
            lacking |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()} if module else {}
        for name, tensor in lacking.items():
            state_dict.setdefault(prefix + name, tensor)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any, recurse: bool = True) -> Decoupled:
        """Move or convert as torch does, but keep the running mean in float32 or better."""
        kept = self._buffers.get("running_norm")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = self._buffers.get("running_norm")
        if kept is not None and moved is not None and moved.dtype in (torch.float16, torch.bfloat16):
            self.running_norm = kept.to(device=moved.device, dtype=torch.float32)
        return self

    def extra_repr(self) -> str:
        learn = f", learn={self.learn}" if self.learn else ""
        return f"{super().extra_repr()}, operator={self.operator}{learn}"


def absolute(v: Tensor) -> Tensor:
    """|v|, with slope 1 at 0, so that a value that starts at its lowest can leave it."""
    return torch.where(v < 0, -v, v)


class SharedMean:
    """The mean norm over the batches of all processes, with its gradient; `seen` is 0 where all of them were empty."""

    seen: Tensor

    def __call__(self, n: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_reduce

        total: Tensor = all_reduce(torch.stack([n.sum(), n.new_tensor(float(n.numel()))]))  # type: ignore[no-untyped-call]
        self.seen = (total[1] > 0).long()
        return torch.where(total[1] > 0, total[0] / total[1].clamp(min=1), 1.0)


class _DecoupledConvNd(Decoupled, _ConvNd):
    dims: int

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = False, padding_mode: Any = "zeros", device: Any = None,
        dtype: Any = None, **options: Unpack[Options],
    ) -> None:  # fmt: skip

        def expand(name: str, sizes: Sizes) -> Any:
            return functional.expand(name, sizes, self.dims)

        super().__init__(
            in_channels, out_channels, expand("kernel_size", kernel_size), expand("stride", stride),
            padding if isinstance(padding, str) else expand("padding", padding), expand("dilation", dilation), False,
            expand("output_padding", 0), groups, bias, padding_mode, device, dtype,
        )  # fmt: skip
        self._decouple(out_channels, self.weight[0].numel(), {"device": device, "dtype": dtype}, options)

    def forward(self, x: Tensor) -> Tensor:
        tensors = self._tensors(x)
        y, m = functional.convolve(
            self.dims, x, self.weight, self.operator, self.bias, self.stride, self.padding, self.dilation, self.groups,
            self.padding_mode, tensors,
        )  # fmt: skip
        self._track(x, tensors["mean_norm"], m)
        return y


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

        def expand(name: str, sizes: Sizes) -> Any:
            return functional.expand(name, sizes, 2)

        super().__init__(
            in_channels, out_channels, expand("kernel_size", kernel_size), expand("stride", stride),
            expand("padding", padding), expand("dilation", dilation), True, expand("output_padding", output_padding),
            groups, bias, padding_mode, device, dtype,
        )  # fmt: skip
        fan_in = in_channels // groups * math.prod(self.kernel_size)
        self._decouple(out_channels, fan_in, {"device": device, "dtype": dtype}, options)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        extra = self._output_padding(
            x, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation  # type: ignore[arg-type]
        )  # fmt: skip
        tensors = self._tensors(x)
        y, m = functional.convolve(
            2, x, self.weight, self.operator, self.bias, self.stride, self.padding, self.dilation, self.groups, "zeros",
            tensors, transposed=True, output_padding=extra,
        )  # fmt: skip
        self._track(x, tensors["mean_norm"], m)
        return y


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

    def forward(self, x: Tensor) -> Tensor:
        tensors = self._tensors(x)
        y, m = functional.multiply(x, self.weight, self.operator, self.bias, tensors)
        self._track(x, tensors["mean_norm"], m)
        return y
