"""One step of a network, to be timed: eager, compiled, captured, or an inference."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from dcnets.experiments.gpu_table.conditions import precision
from dcnets.experiments.gpu_table.networks import build
from dcnets.experiments.gpu_table.paths import PATHS
from dcnets.experiments.gpu_table.ready import captured, warmed_up
from dcnets.experiments.gpu_table.rows import Case, Contender
from dcnets.experiments.update import arithmetic


class Job:
    """One training step, Adam included, or one inference, of a network on a random batch each time that it is called."""

    def __init__(self, case: Case, contender: Contender, device: torch.device) -> None:
        self.device, self.path = device, PATHS[contender.path]
        self.model = build(case, contender, device)
        self.x = torch.randn(case.batch, 3, case.side, case.side, device=device).to(memory_format=torch.channels_last)
        self.y = torch.randint(case.classes, (case.batch,), device=device)
        self.optimiser: torch.optim.Adam | None = None
        if case.how != "inference":
            rate = torch.tensor(1e-3, device=device)
            parameters = self.model.parameters()
            self.optimiser = torch.optim.Adam(parameters, lr=rate, fused=True, capturable=device.type == "cuda")
        score: Callable[[], Tensor] = self.logits if self.optimiser is None else self.loss
        self.score = score if case.how == "eager" else torch.compile(score, dynamic=False)
        self.how = case.how
        self.once: Callable[[], object] = warmed_up(self.run)

    def __call__(self) -> None:
        self.once()

    def settle(self) -> None:
        """Let cuDNN choose its algorithms anew, now that the device is ours, and record the step if it is to be captured."""
        self.once = captured(self.run, self.device) if self.how == "captured" else warmed_up(self.run)

    def run(self) -> None:
        """The step, call by call."""
        with self.path.taken():
            if self.optimiser is None:
                with torch.no_grad():
                    self.score()
                return
            self.score().backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)

    def logits(self) -> Tensor:
        """What the network says of the batch."""
        with arithmetic(self.device, precision(self.device)):
            found: Tensor = self.model(self.x)
        return found

    def loss(self) -> Tensor:
        """The loss of the batch."""
        return F.cross_entropy(self.logits().float(), self.y)

    def held_bytes(self) -> int:
        """What lies in memory between two steps."""
        states = self.optimiser.state.values() if self.optimiser else ()
        of_states = (value for state in states for value in state.values() if isinstance(value, Tensor))
        return sum(t.nbytes for t in chain(self.model.parameters(), self.model.buffers(), of_states, (self.x, self.y)))
