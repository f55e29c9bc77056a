"""What a registered h or g is: its formula, its slopes and the parameters it takes, all by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor, nn

Value = Tensor | float
Values = Mapping[str, Value]
Slopes = Mapping[str, Callable[..., Value]]


def one_minus_(t: Tensor) -> Tensor:
    """1 − t in the memory of t: a slope's temporaries are its own, and a pass over them costs less in place."""
    return torch.sub(torch.ones((), dtype=t.dtype, device=t.device), t, out=t)


def multiply_add(a: Tensor, b: Tensor, factor: Value) -> Tensor:
    """a + b · factor, in one pass where the factor is a number."""
    return a + b * factor if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)


class Named:
    """A magnitude h or an angular function g under its name.

    `function` is the formula, or an `nn.Module` class that each layer builds for itself. What it takes beyond its first
    argument is handed over by name, so a formula gets exactly what it asks for. `slopes` gives ∂/∂argument for each
    argument, as a function of the value, of the first argument's slope and of the arguments, again by name. A formula
    without slopes is differentiated by autograd.
    """

    symbol: str  # what the value is called in a slope: "h" or "g"
    argument: str  # what the first argument is called: "n" or "c"
    allowed: tuple[str, ...]  # the parameters that an operator can hand over

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        smooth: bool = True,
        slopes: Slopes | None = None,
        degree: int | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.smooth = smooth
        self.degree = degree
        self.is_module = isinstance(function, type) and issubclass(function, nn.Module)
        self.parameters = self._parameters_of(function.forward if self.is_module else function)  # type: ignore[attr-defined]
        takes = inspect.signature(function).parameters if self.is_module else ()
        self.options = tuple(name for name in takes if name not in ("filters", "device", "dtype"))
        self.slopes = dict(slopes or {})
        self._slope_takes = {of: tuple(inspect.signature(slope).parameters) for of, slope in self.slopes.items()}
        self._check_slopes()
        self.__doc__ = function.__doc__

    def _parameters_of(self, function: Callable[..., Any]) -> tuple[str, ...]:
        takes = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        rest = takes[1:]
        unknown = [p.name for p in rest if p.name not in self.allowed and p.default is p.empty]
        if not takes or takes[0].name != self.argument or unknown:
            raise TypeError(
                f"{self.name} takes ({', '.join(p.name for p in takes)}); "
                f"the first argument is {self.argument}, the others are among {', '.join(self.allowed)} or have defaults"
            )
        self.defaults = {p.name: float(p.default) for p in rest if p.name in self.allowed and p.default is not p.empty}
        return tuple(p.name for p in rest if p.name in self.allowed)

    def _check_slopes(self) -> None:
        """Refuse a slope of something that the formula does not take, and one that asks for what is not known."""
        arguments = (self.argument, *self.parameters)
        for of, takes in self._slope_takes.items():
            known = (*arguments, self.symbol, *([] if of == self.argument else [f"{self.symbol}_{self.argument}"]))
            if of not in arguments:
                raise TypeError(f"{self.name} has a slope of {of}, which it does not take; it takes {', '.join(arguments)}")
            if unknown := [name for name in takes if name not in known]:
                raise TypeError(f"the slope of {of} in {self.name} takes {unknown[0]}; it can take {', '.join(known)}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"

    def __call__(self, argument: Tensor, values: Values) -> Tensor:
        """The formula; values that it does not take are left out."""
        result: Tensor = self.function(argument, **{name: values[name] for name in self.parameters})
        return result

    @property
    def has_slopes(self) -> bool:
        """Whether every derivative is written out, so that the hand-written path can take it."""
        return {self.argument, *self.parameters} <= set(self.slopes)

    def slope(self, of: str, known: Values) -> Value:
        """∂/∂`of`, given value, arguments and (as h_n or g_c) the first argument's slope under their names."""
        return self.slopes[of](**{name: known[name] for name in self._slope_takes[of]})


class Bound:
    """A module's h or g in one layer: called like the formulas, differentiated by autograd."""

    has_slopes = False

    def __init__(self, named: Named, module: nn.Module) -> None:
        self.named, self.module = named, module

    def __repr__(self) -> str:
        return f"{self.named!r} as {self.module!r}"

    def __call__(self, argument: Tensor, values: Values) -> Tensor:
        result: Tensor = self.module(argument, **{name: values[name] for name in self.named.parameters})
        return result


N = TypeVar("N", bound=Named)
F = TypeVar("F", bound=Callable[..., Any])


class Registrar(Generic[N]):
    """The decorator that puts a function, or an `nn.Module` class, into a table under its own or a given name.

    `smooth` says whether it is continuously differentiable, `slopes` gives its derivatives (see `Named`), and `degree` is d
    where f(s·argument) = s^d · f(argument) for every s > 0. A module is built
    by each layer with the number of filters, the arguments that its name carries, device and dtype.
    """

    def __init__(self, table: dict[str, N], kind: type[N]) -> None:
        self.table, self.kind = table, kind

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(
        self, /, *, name: str | None = None, smooth: bool = True, slopes: Slopes | None = None, degree: int | None = None
    ) -> Callable[[F], F]: ...
    def __call__(self, function: Any = None, /, *, name: str | None = None, **properties: Any) -> Any:
        if function is None:
            return lambda function: self.add(function, name, properties)
        return self.add(function, name, properties)

    def add(self, function: F, name: str | None, properties: dict[str, Any]) -> F:
        """Register, and hand the function back as it was."""
        entry = self.kind(name or function.__name__, function, **properties)
        if not re.fullmatch(r"[A-Za-z_]\w*", entry.name):
            raise ValueError(f"{entry.name!r} cannot be part of an operator's text; use letters, digits and underscores")
        if entry.name in self.table:
            raise ValueError(f"{self.kind.__name__.lower()} {entry.name!r} is registered already; choose another name")
        self.table[entry.name] = entry
        return function
