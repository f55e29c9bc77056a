"""What a function of tensors did once, done again: its allocations, torch's calls and launches, without the Python between.

In eager mode the passes of a layer are chosen, cut and addressed by Python, which takes longer than the GPU has work. All of
it follows from shapes, strides and settings: for the same ones a tape has it ready.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dcnets.kernels.gpu import launcher

MOST = 1000
"""Tapes of a function that are kept before all are thrown away."""
ALIGNED = 15
"""Bits of an address that are 0 for the tensors that recorded kernels were compiled for."""
EMPTY = {
    torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default, torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default, torch.ops.aten.new_empty_strided.default,
}  # fmt: skip
"""What allocates memory, and no more."""

Values = list[Any]
"""The tensors and constants of a tape, each in its slot; beside it the same with a tensor's address in its place."""
Step = Callable[[Values, Values], None]


class OtherwiseError(Exception):
    """Something is not as it was when the tape was recorded."""


class Taped:
    """A function of tensors and hashable settings that changes none of its arguments and returns tensors that it made."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function = function
        self.tapes: dict[Any, Tape] = {}

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        key: list[Any] = []
        inputs: list[Tensor] = []
        for argument in arguments:
            if isinstance(argument, Tensor):
                inputs.append(argument)
                key += argument.shape, argument.stride(), argument.dtype
            else:
                key.append(argument)
        if not launcher.at_home(inputs[0]):
            with torch.cuda.device(inputs[0].device):
                return self(*arguments)
        where = (inputs[0].get_device(), torch.is_inference_mode_enabled(), *key)
        tape = self.tapes.get(where)
        if tape is None:
            if any(t.data_ptr() & ALIGNED for t in inputs):
                return self.function(*arguments)
            if len(self.tapes) >= MOST:
                self.tapes.clear()
            with Recorder(inputs) as recorder, launcher.recorded_by(recorder):
                outputs = self.function(*arguments)
            self.tapes[where] = recorder.tape(outputs)
            return outputs
        try:
            return tape(inputs)
        except OtherwiseError:
            return self.function(*arguments)


class Tape:
    """Steps over slots: first those of the inputs, then of constants and of what the steps make."""

    def __init__(self, steps: list[Step], constants: Values, outputs: list[int]) -> None:
        self.steps, self.constants, self.outputs = steps, constants, outputs
        self.places = [0 if isinstance(value, Tensor) else value for value in constants]

    def __call__(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        addresses = [t.data_ptr() for t in inputs]
        for address in addresses:
            if address & ALIGNED:
                raise OtherwiseError
        values, places = [*inputs, *self.constants], [*addresses, *self.places]
        for step in self.steps:
            step(values, places)
        return tuple([values[slot] for slot in self.outputs])


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done with the inputs and with what comes of them."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept = list(inputs)  # no other tensor may get their ids
        self.slots = {id(t): slot for slot, t in enumerate(inputs)}
        self.begin = self.count = len(inputs)
        self.constants: dict[int, Any] = {}
        self.steps: list[Step] = []
        self.whole = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        made = [outputs] if isinstance(outputs, Tensor) else list(outputs or ())
        if function is torch.ops.aten.detach.default:  # which torch adds to allocations
            self.kept.append(outputs)
            self.slots[id(outputs)] = self.slot_of(args[0])
            return outputs
        if function in EMPTY:
            slot = self.slot_of(outputs)
            if outputs.numel():
                self.steps.append(allocation(slot, outputs))
            else:
                self.constants[slot] = outputs.clone()  # nothing can be written there
            return outputs
        others = [each for each in args if isinstance(each, (list, tuple)) and any(isinstance(t, Tensor) for t in each)]
        if others or any(isinstance(each, Tensor) for each in (kwargs or {}).values()):
            self.whole = False  # tensors where a call does not look for them
        new = [(self.slot_of(t), t.stride()) for t in made if isinstance(t, Tensor) and id(t) not in self.slots]
        places = [place for place, t in enumerate(made) if isinstance(t, Tensor)] if new else []
        pick = picking([self.slot_of(each) for each in args])
        self.steps.append(call(function, pick, kwargs or {}, places, new))
        return outputs

    def launched(self, tensors: tuple[Any, ...], launch: Callable[..., None] | None, rest: tuple[Any, ...] | None) -> None:
        """A launch took place: by addresses with the rest behind them, or by tensors, or (without `launch`) never again."""
        if launch is None:
            self.whole = False
            return
        pick = picking([self.slot_of(each) for each in tensors])
        self.steps.append(by_tensors(launch, pick) if rest is None else by_addresses(launch, pick, rest))

    def slot_of(self, value: Any) -> int:
        """The slot of a tensor, or a new one; a constant has one of its own."""
        if isinstance(value, Tensor):
            if id(value) not in self.slots:
                self.kept.append(value)
                self.slots[id(value)] = self.count
                self.count += 1
            return self.slots[id(value)]
        self.constants[self.count] = value
        self.count += 1
        return self.count - 1

    def tape(self, outputs: tuple[Tensor, ...]) -> Tape:
        """The tape, or one that always finds things otherwise."""
        if not self.whole or any(id(t) not in self.slots or self.slots[id(t)] < self.begin for t in outputs):
            return Tape([otherwise], [], [])
        constants = [self.constants.get(slot) for slot in range(self.begin, self.count)]
        return Tape(self.steps, constants, [self.slots[id(t)] for t in outputs])


def otherwise(values: Values, places: Values) -> None:
    """What cannot be done again."""
    raise OtherwiseError


def picking(slots: list[int]) -> Callable[[Values], tuple[Any, ...]]:
    """What is in some slots."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple([values[slot] for slot in slots])


def allocation(slot: int, t: Tensor) -> Step:
    """New memory like t's."""
    size, stride, dtype, device = t.shape, t.stride(), t.dtype, t.device

    def step(values: Values, places: Values) -> None:
        made = values[slot] = torch.empty_strided(size, stride, dtype=dtype, device=device)
        places[slot] = made.data_ptr()

    return step


def call(
    function: Any, pick: Callable[[Values], tuple[Any, ...]], options: dict[str, Any], places_made: list[int],
    new: list[tuple[int, tuple[int, ...]]],
) -> Step:  # fmt: skip
    """A call of torch; the outputs at some places are new, in slots of their own and with these strides."""

    def step(values: Values, places: Values) -> None:
        outputs = function(*pick(values), **options)
        made = (outputs,) if isinstance(outputs, Tensor) else outputs
        for place, (slot, stride) in zip(places_made, new, strict=True):
            t = made[place]
            if t.stride() != stride:
                raise OtherwiseError
            values[slot], places[slot] = t, t.data_ptr()

    return step


def by_addresses(launch: Callable[..., None], pick: Callable[[Values], tuple[Any, ...]], rest: tuple[Any, ...]) -> Step:
    """A launch of a compiled kernel."""
    return lambda values, places: launch(*pick(places), *rest)


def by_tensors(launch: Callable[..., None], pick: Callable[[Values], tuple[Any, ...]]) -> Step:
    """A launch by Triton's interpreter."""
    return lambda values, places: launch(*pick(values))
