"""Operator: the frozen spec magnitude × angular × weighting × radius, its text form and its properties."""

from __future__ import annotations

import inspect
import math
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

from torch import nn

from dcnets import analysis, piecewise, text  # noqa: F401 (piecewise registers its functions)
from dcnets.angular import ANGULARS, Angular
from dcnets.magnitude import MAGNITUDES, Magnitude, Sum
from dcnets.naming import choose, refuse_unknown
from dcnets.registry import Named

WEIGHTINGS = ("none", "linear", "product", "separate")
RADII = ("relative", "absolute")


@dataclass(frozen=True)
class Operator:
    """f(w, x) = h(‖w‖, ‖x‖) · g(θ) without its tensors: what is computed, not with which filters or radii.

    `magnitude` and `angular` are registered names; a module's name may carry arguments (`piecewise(init=tanh, knots=9)`);
    a magnitude may be a weighted sum (`tanh+0.5*linear`). `beta`, `k` and `p` belong to the functions that take them, and
    None stands for that function's default.
    """

    magnitude: str = "tanh"
    angular: str = "cosine"
    weighting: str = "none"
    radius: str = "relative"
    alpha: float = 1.0
    beta: float | None = None
    k: float | None = None
    p: float | None = None
    eps: float = 1e-4

    def __post_init__(self) -> None:
        choose("weighting", self.weighting, WEIGHTINGS)
        choose("radius", self.radius, RADII)
        for kind in ("magnitude", "angular"):
            if not isinstance(getattr(self, kind), str):
                raise TypeError(f"{kind} is a name, got {type(getattr(self, kind)).__name__}")
        object.__setattr__(self, "magnitude", text.write_call(self.h.name, text.read_call(self.magnitude)[1]))
        object.__setattr__(self, "angular", text.write_call(self.g.name, text.read_call(self.angular)[1]))
        self._settle("alpha", self.alpha, lowest=-math.inf)
        self._settle("eps", self.eps, lowest=0.0, open_end=True)
        self._settle("beta", self._own_or_default(self.h, "beta"), lowest=-math.inf)
        self._settle("k", self._own_or_default(self.g, "k"), lowest=0.0, open_end=True)
        self._settle("p", self._own_or_default(self.g, "p"), lowest=1.0)
        if self.radius == "absolute" and not self.has_radius:
            raise ValueError(f"{self.h.name} has no radius, so radius='absolute' means nothing; leave it out")
        if not self.h.takes_norm and self.weighting in ("product", "separate"):
            raise ValueError(
                f"{self.h.name} does not depend on a norm, so weighting={self.weighting!r} means nothing; use 'linear'"
            )
        if "weight_norm" in self.h.parameters and self.weighting != "none":
            raise ValueError(f"{self.h.name} contains ‖w‖ already; use weighting='none', not {self.weighting!r}")

    def _own_or_default(self, function: Named, name: str) -> float | None:
        value: float | None = getattr(self, name)
        if name in function.parameters:
            return function.defaults.get(name, 1.0) if value is None else value
        if value is not None:
            raise ValueError(f"{function.name} takes no {name}, got {name}={value!r}; leave it out")
        return None

    def _settle(self, name: str, value: float | None, lowest: float, open_end: bool = False) -> None:
        """Store a checked number: finite, and above (or at) `lowest`."""
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} is a number, got {type(value).__name__}; a tensor goes to dcnets.functional")
            if not math.isfinite(value) or value < lowest or (open_end and value == lowest):
                wanted = "finite" if lowest == -math.inf else f"{'above' if open_end else 'at least'} {lowest:g}"
                raise ValueError(f"{name} must be {wanted}, got {value!r}")
            value = float(value)
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), astuple(self)

    # -- the functions ------------------------------------------------------------------------------------------------

    @cached_property
    def h(self) -> Magnitude:
        """The magnitude function."""
        name, arguments = text.read_call(self.magnitude)
        terms = [(c, MAGNITUDES[choose("magnitude", term, MAGNITUDES)]) for c, term in text.read_sum(name)]
        if len(terms) == 1 and terms[0][0] == 1:
            return _with_arguments(terms[0][1], arguments)
        if arguments or any(h.is_module or "weight_norm" in h.parameters for _, h in terms):
            raise ValueError(f"cannot add up {self.magnitude!r}; a sum takes formulas of ‖x‖, without arguments")
        return Sum(terms)

    @cached_property
    def g(self) -> Angular:
        """The angular function."""
        name, arguments = text.read_call(self.angular)
        return _with_arguments(ANGULARS[choose("angular", name, ANGULARS)], arguments)

    def build(self, part: str, filters: int, **factory: Any) -> nn.Module | None:
        """The module of h (`part="magnitude"`) or g (`"angular"`) for so many filters, or None where it is a formula."""
        function: Named = self.h if part == "magnitude" else self.g
        if not function.is_module:
            return None
        taken = inspect.signature(function.function).parameters
        accepted = {name: value for name, value in factory.items() if name in taken}
        module: nn.Module = function.function(filters, **text.read_call(getattr(self, part))[1], **accepted)
        return module.to(**factory)

    # -- the text form ------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """`tanh-cosine`, `segmented(beta=0.3)-square_cosine-linear`: defaults are left out."""
        plain = type(self)(self.magnitude, self.angular)
        own = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)}
        weighting = own.pop("weighting", None)
        in_angular: dict[str, Any] = {name: own.pop(name) for name in ("k", "p") if name in own}
        parts = [_extend_call(self.magnitude, own), _extend_call(self.angular, in_angular)]
        return "-".join([*parts, weighting] if weighting else parts)

    @classmethod
    def parse(cls, form: str) -> Operator:
        """Read what `str` wrote."""
        parts = text.split_parts(form)
        if not 2 <= len(parts) <= 3:
            raise ValueError(f"cannot read operator {form!r}; expected magnitude-angular or magnitude-angular-weighting")
        options: dict[str, Any] = {"weighting": parts[2]} if len(parts) == 3 else {}
        names: list[str] = []
        for part, own in zip(parts, (("alpha", "beta", "radius", "eps"), ("k", "p")), strict=False):
            name, arguments = text.read_call(part)
            options |= {key: arguments.pop(key) for key in own if key in arguments}
            names.append(text.write_call(name, arguments))
        return cls(names[0], names[1], **options)

    @classmethod
    def of(cls, given: Operator | str) -> Operator:
        """An operator that is given as itself or as its text."""
        if not isinstance(given, cls | str):
            raise TypeError(f"operator is a dcnets.Operator or its text, such as 'tanh-cosine', got {type(given).__name__}")
        return cls.parse(given) if isinstance(given, str) else given

    # -- what is known of it ------------------------------------------------------------------------------------------

    @property
    def has_radius(self) -> bool:
        """Whether h changes at an operator radius ρ."""
        return "rho" in self.h.parameters

    @property
    def weighted(self) -> bool:
        """Whether f depends on ‖w‖."""
        return self.weighting != "none" or "weight_norm" in self.h.parameters

    @property
    def linear_in_x(self) -> bool:
        """Whether f is ⟨w, x⟩ times a number for each filter, so that an ordinary layer computes it."""
        return self.h.name in ("linear", "inner_product") and self.g.name == "cosine"

    @property
    def smooth(self) -> bool:
        """Whether f is continuously differentiable in x (the arc sine counts with its capped slope)."""
        return self.h.smooth and self.g.smooth

    @property
    def bounded(self) -> bool:
        """Whether |f| stays below one number for every w and x."""
        return self.bound is not None and math.isfinite(self.bound)

    @cached_property
    def bound(self) -> float | None:
        """Sup |f| over all w and x: infinite where f is unbounded, None where h or g is a learned module."""
        return analysis.bound(self)

    def lipschitz(self, radius: float = 1.0, weight_norm: float = 1.0) -> float | None:
        """The Lipschitz constant of f in x at a radius (ρ, or ρ·m where it is relative) and a ‖w‖; None as for `bound`."""
        return analysis.lipschitz(self, radius, weight_norm)


F = TypeVar("F", bound=Named)


def _with_arguments(function: F, arguments: dict[str, text.Argument]) -> F:
    """The function itself, after a check that only a module's name carries arguments that it takes."""
    if arguments and not function.is_module:
        raise ValueError(f"{function.name} is a formula and takes no arguments in its name; pass them as keywords")
    refuse_unknown(function.name, arguments, function.options)
    return function


def _extend_call(call: str, more: dict[str, Any]) -> str:
    name, arguments = text.read_call(call)
    return text.write_call(name, {**arguments, **more})
