"""What all decoupled layers share: options, learned tensors, the running mean norm, checkpoints."""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from dcnets import dispatch
from dcnets.geometry import Geometry
from dcnets.kernels.response import Behind, Response
from dcnets.naming import choose, refuse_unknown
from dcnets.operator import Operator
from dcnets.options import DEFAULTS, LEARNABLE, RADIUS_FLOOR, Options, Raw, absolute, radius_of, raw_of, spelled_out
from dcnets.patches import normalise, patch_norm, scale_filters
from dcnets.precision import kept_wide
from dcnets.processes import SharedMean
from dcnets.reference import mean
from dcnets.settling import Tensors
from dcnets.surroundings import OneCall, in_transform, is_vmapped

K_FLOOR = 0.05
"""k = |v| + K_FLOOR, v being the parameter."""
LEARNED_K = 0.75
"""Where a learned k starts unless it is given."""
SHOWN = ("radius_init", "radius_per", "sync")
"""Options beside the operator's that a layer tells of itself where they are not the default."""
DECAY = 0.999
"""The weight that `running_norm` gives to the past once it has seen a thousand batches."""
WEIGHTS = ("weight", "weight_g", "weight_v", "weight_orig")
"""The weight in a checkpoint: itself, or what torch's older weight and spectral norm and its pruning make it of."""


class Decoupled(OneCall):
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
    has_filters = True
    """Whether the weight is one of filters: a classifier's rows are classes, neither projected nor penalised."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Show every option in the signature that help() and editors read, where the constructor takes options."""
        super().__init_subclass__(**keywords)
        takes = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]
        own = [p for p in takes if p.kind is not p.VAR_KEYWORD]
        options = [name for name in DEFAULTS if name not in {p.name for p in own}] if len(own) < len(takes) else []
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name]) for name in options]
        cls.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]

    def _decouple(self, filters: int, fan_in: int, factory: dict[str, Any], options: Options) -> None:
        """Read the options and make the tensors; the last step of a layer's constructor."""
        refuse_unknown(type(self).__name__, options, {**inspect.signature(type(self)).parameters, **DEFAULTS})
        options = spelled_out(options)
        chosen: Any = {**DEFAULTS, **options}
        self.operator = Operator(**{field.name: chosen[field.name] for field in fields(Operator)})
        self.filters, self.fan_in = filters, fan_in
        self.radius_init = float(chosen["radius_init"])
        self.radius_per = choose("radius_per", chosen["radius_per"], ("filter", "layer"))
        self.sync = bool(chosen["sync"])
        self.learn = self._checked_learn(options)
        self.k_init = options.get("k") or (LEARNED_K if "k" in self.learn else self.operator.k)
        self._check(options)
        if "alpha" not in self.learn:
            self.alpha = self.operator.alpha
        if "beta" not in self.learn:
            self.beta = self.operator.beta
        self.make_tensors(**factory)

    def make_tensors(self, device: Any, dtype: Any) -> None:
        """Make every tensor beside weight and bias, as it is before training."""
        for name, tensor in self._initial(device, dtype).items():
            if name.removeprefix("raw_") in self.learn:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        self.h = self.operator.build("magnitude", self.filters, device=device, dtype=dtype)
        self.g = self.operator.build("angular", self.filters, device=device, dtype=dtype)

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
        return None if raw is None else radius_of(raw)

    @property
    def k(self) -> Tensor | float | None:
        """k = |v| + 0.05 where it is learned."""
        return self.raw_k.abs() + K_FLOOR if "k" in self.learn else self.operator.k

    @property
    def p(self) -> Tensor | float | None:
        """p = |v| + 1 where it is learned."""
        return absolute(self.raw_p) + 1 if "p" in self.learn else self.operator.p

    @property
    def geometry(self) -> Geometry:
        """How patches are taken from an input."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        return self.respond(input, self.geometry)

    def respond(self, x: Tensor, geometry: Geometry) -> Tensor:
        """The output, after which `running_norm` knows the batch."""
        mean_norm = self._mean_norm(x)
        tensors: Tensors = {**self.tensors(), "mean_norm": mean_norm}
        y, m = dispatch.respond(x, self.weight, self.bias, geometry, self.operator, tensors)
        self._track(x, mean_norm, m)
        return y

    def respond_with(self, x: Tensor, behind: Behind) -> Response | None:
        """The output and what is behind it, in Triton; None where there are no programs for it.

        The caller has to average the mean norm into `running_norm`.
        """
        mean_norm = self._mean_norm(x)
        if isinstance(mean_norm, SharedMean):
            return None
        tensors: Tensors = {**self.tensors(), "mean_norm": mean_norm}
        return dispatch.respond_with(x, self.weight, self.geometry, self.operator, tensors, behind, self.bias)

    def tensors(self) -> Tensors:
        """What the functional form computes with, all but the mean norm."""
        raw: Tensor | None = getattr(self, "raw_radius", None)
        return {
            "rho": None if raw is None else Raw(raw), "alpha": self.alpha, "beta": self.beta, "k": self.k, "p": self.p,
            "h": self.h, "g": self.g,
        }  # fmt: skip

    @property
    def running_mean(self) -> Tensor | None:
        """m in evaluation: `running_norm` where the radius is relative, None elsewhere."""
        return self._buffers.get("running_norm")

    def _mean_norm(self, x: Tensor) -> Any:
        """The running mean in evaluation; in training the batch's, or that of all processes' batches."""
        if not self._tracks:
            return self.running_mean
        if is_vmapped(x):
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
        if m is None or not self._tracks or in_transform() or (x.numel() == 0 and used is None):
            return
        with torch.no_grad():
            seen = used.seen if isinstance(used, SharedMean) else torch.ones_like(self.num_batches_tracked)
            count = self.num_batches_tracked.add_(seen).clamp(min=1).to(self.running_norm.dtype)
            share = share_of_batch(count) * seen
            # detach: torch 2.13 compiles an update of a float64 scalar buffer itself to nothing
            self.running_norm.detach().lerp_(m.to(self.running_norm.dtype), share)

    def reset_statistics(self) -> None:
        """Let `running_norm` begin anew with the next batch."""
        if "running_norm" in self._buffers:
            self.num_batches_tracked.zero_()

    def mean_patch_norm(self, x: Tensor) -> Tensor:
        """The mean norm of the patches of x, one scalar."""
        x, patches, _ = self.geometry.take(x, self.weight)
        return mean(patch_norm(x, patches, self.operator.eps))

    def set_radius(self, rho: Tensor | float) -> None:
        """Set ρ, of every filter alike or of each; in mean norms where the radius is relative."""
        raw: Tensor | None = getattr(self, "raw_radius", None)
        if raw is None:
            raise ValueError(f"{self.operator} has no radius")
        if "raw_radius" not in self._parameters and "raw_radius" not in self._buffers:
            raise ValueError("raw_radius is computed from other parameters; remove the parametrisation before setting ρ")
        with torch.no_grad():
            raw.copy_(raw_of(rho, raw))

    def plain_weight(self) -> Tensor:
        """The weight of the ordinary layer that computes the same, where the operator is linear in x."""
        if not self.operator.linear_in_x:
            raise ValueError(f"{self.operator} is not linear in x, so no ordinary layer computes it")
        patches = self.geometry.patches(self.weight)
        unit, norms = normalise(self.weight, patches, self.operator.eps)
        if self.operator.weighted and not isinstance(self.alpha, Tensor) and self.alpha == 1:
            return self.weight
        alpha = torch.as_tensor(self.alpha, device=norms.device, dtype=norms.dtype)
        alpha = alpha.reshape(norms.shape if alpha.numel() == norms.numel() else ()).expand(norms.shape)
        return scale_filters(unit, patches, alpha * norms if self.operator.weighted else alpha)

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
        """Load as torch does; what an ordinary layer's checkpoint lacks takes its initial value.

        A checkpoint that has no weight for this layer is none of its own: then nothing is made up.
        """
        names = {key.removeprefix(prefix) for key in state_dict}
        if any(name in WEIGHTS or name.startswith("parametrizations.weight.") for name in names):
            self._complete(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _complete(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Add the initial value of every tensor beside weight and bias that the checkpoint lacks."""
        device = None if self.weight.is_meta else self.weight.device  # a meta tensor would lose the value
        lacking = self._initial(device, self.weight.dtype)
        for name, part in (("h", "magnitude"), ("g", "angular")):
            module = self.operator.build(part, self.filters, device=device, dtype=self.weight.dtype)
            lacking |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()} if module else {}
        for name, tensor in lacking.items():
            state_dict.setdefault(prefix + name, tensor)

    def _apply(self, fn: Any, recurse: bool = True) -> Decoupled:
        """Move or convert as torch does, but keep the running mean in float32 or better."""
        with kept_wide(self, ["running_norm"]):
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        shown = {"operator": str(self.operator)} | ({"learn": self.learn} if self.learn else {})
        shown |= {name: getattr(self, name) for name in SHOWN if getattr(self, name) != DEFAULTS[name]}
        return ", ".join([super().extra_repr(), *(f"{name}={value}" for name, value in shown.items())])


def share_of_batch(count: Tensor) -> Tensor:
    """What the newest of so many batches counts in a running mean: all alike at first, then with decay."""
    return count.reciprocal().clamp(min=1 - DECAY)
