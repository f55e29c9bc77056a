"""Decoupled networks against plain ones on one GPU, row by row: time and memory of a step, and the kernels' bandwidth."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcnets
from dcnets import conversion, functional
from dcnets.experiments import results
from dcnets.experiments.update import WARM_UP, arithmetic
from dcnets.fusing import fuse
from dcnets.models import create
from dcnets.models.selection import spatial
from dcnets.naming import choose

ROUNDS, STEPS = 10, 5
"""In each round both sides take so many steps; an even number, since half of the rounds are compared with the other half."""
COMPILATIONS = 64
"""How often one function may be compiled anew, once for each network and again where torch finds a reason to."""
BLOCKS = 256
"""Partial sums of the norms that the passes over a layer are given."""
UNCACHED = 2**28
"""Bytes that no GPU keeps near its processors: the tensors of a pass are together as large, so that it reads memory."""
COLUMNS = ("row", "what", "baseline", "measured", "ratio", "control", "bar", "stretch", "met")
NUMBERS = COLUMNS[2:-1]


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What both sides of a row have in common; `how` is compiled, eager, captured (compiled too) or inference (likewise)."""

    network: str
    classes: int
    batch: int
    side: int
    how: str = "compiled"
    width: int | None = None


@dataclass(frozen=True)
class Contender:
    """What stands in the place of the convolutions, and the path that computes it."""

    operator: str | None
    backend: str = "fused"


@dataclass(frozen=True)
class Row:
    """A comparison with the plain network; the ratio may be `bar` and should be `stretch`."""

    name: str
    case: Case
    contender: Contender
    bar: float | None = None
    stretch: float | None = None
    of_memory: bool = False


CIFAR = Case("resnet32", 100, 512, 32)
IMAGENET = Case("resnet18", 1000, 256, 224)
PLAIN, B_COS, TANH = Contender(None, "auto"), Contender("b-cos", "auto"), Contender("tanh-cosine")
ROWS = (  # those that share networks stand together
    Row("resnet32", CIFAR, TANH, 1.20, 1.08),
    Row("memory", CIFAR, TANH, 1.05, 1.0, of_memory=True),
    Row("segmented", CIFAR, Contender("segmented-square_cosine"), 1.25, 1.10),
    Row("angle", CIFAR, Contender("tanh-linear"), 1.25, 1.10),
    Row("b-cos", CIFAR, B_COS),
    Row("reference", CIFAR, replace(TANH, backend="reference")),
    Row("eager", replace(CIFAR, how="eager"), TANH, 1.5, 1.2),
    Row("captured", replace(CIFAR, batch=128, how="captured"), TANH, 1.25, 1.10),
    Row("inference", replace(CIFAR, how="inference"), TANH, 1.10, 1.03),
    Row("resnet18", IMAGENET, TANH, 1.20, 1.08),
)
BANDWIDTH = "bandwidth"
SHAPES = ((512, 96, 32, 32), (512, 384, 8, 8))
"""The first and the last stage of the ResNet-32."""


def names() -> list[str]:
    """The rows that can be asked for."""
    return [*(row.name for row in ROWS), BANDWIDTH]


def read_names(text: str) -> list[str]:
    """Rows that a text names, separated by commas."""
    return [choose("row", name.strip(), names()) for name in text.split(",")]


# -- the table ---------------------------------------------------------------------------------------------------------


def table(chosen: Iterable[str], results_file: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """Measure the rows of these names, each of which is appended to the results as soon as it is there.

    `baseline` is the plain network, or a copy on the device where the bandwidth of a pass is measured; `ratio` is to it,
    taking turns; `control` is the baseline's second half of rounds against its first. Compilation takes most of the time.
    """
    wanted = set(chosen)
    torch.backends.cudnn.benchmark = True
    rows = measure([row for row in ROWS if row.name in wanted], device)
    passes = (bandwidth(shape, device) for shape in SHAPES if BANDWIDTH in wanted)
    for found in chain(rows, chain.from_iterable(passes)):
        results.append(results_file, {**results.environment(device.type), **found})
        yield found


def measure(rows: Sequence[Row], device: torch.device) -> Iterator[dict[str, Any]]:
    """The rows, with one plain network for neighbours of the same case and one of a kind for those that share it too."""
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=COMPILATIONS, fail_on_recompile_limit_hit=True):  # never eager unasked
        for case, of_case in groupby(rows, lambda row: row.case):
            plain = Job(case, PLAIN, device)
            for contender, of_contender in groupby(of_case, lambda row: row.contender):
                own = Job(case, contender, device)
                for row in of_contender:
                    found = peaks(plain, own) if row.of_memory else in_turns(plain, own, device)
                    yield {**conditions(row, device), **found, "bar": row.bar, "stretch": row.stretch}
                del own
                free(device)
            del plain
            torch._dynamo.reset()
            free(device)


def conditions(row: Row, device: torch.device) -> dict[str, Any]:
    """How a row is measured."""
    case, kind = row.case, row.contender
    path = " by the plain formula" if kind.backend == "reference" else ""
    what = f"{kind.operator}{path}, {case.network}, {case.how}, batch {case.batch}, {case.side}×{case.side}"
    return {
        "row": row.name, "what": what, **asdict(case), **asdict(kind), "precision": precision_name(device),
        "memory_format": "channels_last", "rounds": ROUNDS, "steps": STEPS, "unit": "MiB" if row.of_memory else "ms",
    }  # fmt: skip


def cells(found: dict[str, Any]) -> tuple[str, ...]:
    """A row as it is shown, below `COLUMNS`."""
    limits = ["–" if found[name] is None else f"{found[name]:.2f}" for name in ("bar", "stretch")]
    sides = [f"{four_digits(found[name])} {found['unit']}" for name in ("baseline", "measured")]
    return found["row"], found["what"], *sides, f"{found['ratio']:.3f}", f"{found['control']:.3f}", *limits, met(found)


def four_digits(number: float) -> str:
    """A number with four digits, or as many as it has before the point."""
    return f"{number:.4g}" if number < 1000 else f"{number:,.0f}"


def met(found: dict[str, Any]) -> str:
    """Which of its bars a row meets."""
    if found["bar"] is None:
        return "–"
    return "stretch" if found["ratio"] <= found["stretch"] else "yes" if found["ratio"] <= found["bar"] else "no"


# -- networks ----------------------------------------------------------------------------------------------------------


class Job:
    """One training step, Adam included, or one inference, of a network on a random batch each time that it is called."""

    def __init__(self, case: Case, contender: Contender, device: torch.device) -> None:
        self.device, self.backend = device, contender.backend
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
        self.once = captured(self.run, device) if case.how == "captured" else warmed_up(self.run)

    def __call__(self) -> None:
        self.once()

    def run(self) -> None:
        """The step, call by call."""
        with functional.backend(self.backend):
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


def build(case: Case, contender: Contender, device: torch.device) -> nn.Module:
    """The network in the state in which it is fastest."""
    torch.manual_seed(0)
    decoupled = contender not in (PLAIN, B_COS)
    own: dict[str, Any] = {} if case.width is None else {"width": case.width}
    network = create(case.network, num_classes=case.classes, operator=contender.operator if decoupled else None, **own)
    model: nn.Module = with_b_cos(network) if contender == B_COS else network
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if case.how == "inference":
        model = dcnets.freeze(model) if decoupled else model.eval()
    return fuse(model) if contender.backend == "fused" else model


class BCosConv2d(nn.Conv2d):
    """B-cos, ⟨ŵ, x⟩ · |cos θ|, as one writes it down: the norms of the patches by average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        unit = self.weight / torch.linalg.vector_norm(self.weight, dim=(1, 2, 3), keepdim=True)
        z: Tensor = self._conv_forward(x, unit, self.bias)
        window: Any = (self.kernel_size, self.stride, self.padding)
        means = F.avg_pool2d((x**2).sum(1, keepdim=True), *window)
        n = (means * math.prod(self.kernel_size) + 1e-6).sqrt()
        return (z * (z.abs() / n)).to(z.dtype)


def with_b_cos(network: nn.Module) -> nn.Module:
    """The network with B-cos in the place of the convolutions that are decoupled elsewhere."""
    twins: dict[nn.Module, nn.Module] = {}
    for name, module in network.named_modules():
        if spatial(name, module):
            twin = BCosConv2d(**{part: getattr(module, part) for part in conversion.SHAPE}, bias=False)
            twin.weight = module.weight
            twins[module] = twin
    return conversion.replace(network, twins)


def precision(device: torch.device) -> torch.dtype:
    """bf16, but on a CPU float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def precision_name(device: torch.device) -> str:
    """The same as results have it."""
    return str(precision(device)).removeprefix("torch.")


# -- measurement -------------------------------------------------------------------------------------------------------


def in_turns(baseline: Callable[[], object], own: Callable[[], object], device: torch.device) -> dict[str, float]:
    """The median milliseconds of two jobs that take turns, their ratio, and the control."""
    turns = [[milliseconds(job, device) for job in (baseline, own)] for _ in range(ROUNDS)]
    early, late = turns[: ROUNDS // 2], turns[ROUNDS // 2 :]

    def median(turns: list[list[list[float]]], side: int) -> float:
        return statistics.median(chain.from_iterable(turn[side] for turn in turns))

    base, measured = median(turns, 0), median(turns, 1)
    control = median(late, 0) / median(early, 0)
    return {"baseline": base, "measured": measured, "ratio": measured / base, "control": control}


def milliseconds(job: Callable[[], object], device: torch.device) -> list[float]:
    """The time of each of some calls in a row, after one that is not timed; on a GPU by its events."""
    job()
    if device.type != "cuda":
        moments = [time.perf_counter()]
        for _ in range(STEPS):
            job()
            moments.append(time.perf_counter())
        return [1000 * (end - begin) for begin, end in pairwise(moments)]
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        job()
        event.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) for begin, end in pairwise(events)]


def peaks(plain: Job, own: Job) -> dict[str, float]:
    """The memory that two jobs need at most, in MiB, their ratio, and the control."""
    base, measured, again = peak_mib(plain), peak_mib(own), peak_mib(plain)
    return {"baseline": base, "measured": measured, "ratio": measured / base, "control": again / base}


def peak_mib(job: Job) -> float:
    """The most memory allocated in a step, without what belongs to others."""
    torch.cuda.synchronize(job.device)
    others = torch.cuda.memory_allocated(job.device) - job.held_bytes()
    torch.cuda.reset_peak_memory_stats(job.device)
    job()
    torch.cuda.synchronize(job.device)
    return (torch.cuda.max_memory_allocated(job.device) - others) / 2**20


def warmed_up(job: Callable[[], object]) -> Callable[[], object]:
    """The job after some calls: compilation, cuDNN's choice of algorithms, the optimiser's first state."""
    for _ in range(WARM_UP):
        job()
    return job


def captured(job: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The job as a CUDA graph; on a CPU as it is."""
    if device.type != "cuda":
        return warmed_up(job)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        warmed_up(job)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job()
    return graph.replay


def free(device: torch.device) -> None:
    """Give back the memory of what is gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# -- bandwidth ---------------------------------------------------------------------------------------------------------


def bandwidth(shape: tuple[int, ...], device: torch.device) -> Iterator[dict[str, Any]]:
    """GB/s of each Triton pass over a layer's products of a shape, against a copy of a tensor of that shape.

    Tensors as large as z are counted, those with one element a position or a filter are not.
    """
    size = math.prod(shape) * precision(device).itemsize
    layers = [passes(shape, device) for _ in range(math.ceil(UNCACHED / size))]
    (moved, _), copy = layers[0]["copy"], all_of("copy", layers, device)
    for name, (tensors, _) in layers[0].items():
        if name == "copy":
            continue
        found = in_turns(copy, all_of(name, layers, device), device)
        rates = [
            1e-6 * len(layers) * size * count / found[side] for count, side in ((moved, "baseline"), (tensors, "measured"))
        ]
        yield {
            "row": BANDWIDTH, "what": f"{name}, {'×'.join(map(str, shape))}", "shape": shape, "tensors": tensors,
            "precision": precision_name(device), "memory_format": "channels_last", "rounds": ROUNDS, "steps": STEPS,
            "milliseconds": found["measured"] / len(layers), "unit": "GB/s", "baseline": rates[0], "measured": rates[1],
            "ratio": rates[1] / rates[0], "control": 1 / found["control"], "bar": None, "stretch": None,
        }  # fmt: skip


Pass = tuple[int, Callable[[], object]]
"""How many tensors as large as z are read and written, and what does it."""


def all_of(name: str, layers: list[dict[str, Pass]], device: torch.device) -> Callable[[], object]:
    """One pass over all layers, whose results are in memory at once."""
    return captured(lambda: [layer[name][1]() for layer in layers], device)


def passes(shape: tuple[int, ...], device: torch.device) -> dict[str, Pass]:
    """The Triton passes over a layer of tanh-cosine with batch norm and ReLU behind it, and a copy."""
    from dcnets.kernels.gpu.launch import Layer, Norm

    batch, filters, height, width = shape

    def random() -> Tensor:
        return torch.randn(shape, device=device, dtype=precision(device)).to(memory_format=torch.channels_last)

    z, dy, y, residual = random(), random(), random(), random()
    n = 1 + torch.rand(batch, 1, 1, height, width, device=device)
    partials = (n.sum() / BLOCKS).repeat(BLOCKS)
    m, dsums = n.mean(), torch.randn(batch, 1, height * width, device=device)
    gamma, beta, raw = torch.ones(filters, device=device), torch.zeros(filters, device=device), n.new_ones(filters)
    layer = Layer(z, n, "tanh", "cosine", {"rho": raw}, True, True, 1)
    moments = layer.statistics(None, m, partials)
    norm = Norm(moments[0], moments[1], gamma, 1e-3)
    sums, _ = layer.gradient_sums(dy, dsums, None, m, beta, norm, True)
    return {
        "copy": (2, z.clone),
        "statistics": (1, lambda: layer.statistics(None, m, partials)),
        "respond": (2, lambda: layer.respond(m, m, partials, beta, norm, None, True, True)),
        "respond with a residual": (3, lambda: layer.respond(m, m, partials, beta, norm, residual, True, True)),
        "gradient_sums": (2, lambda: layer.gradient_sums(dy, dsums, None, m, beta, norm, True)),
        "gradient_sums with a residual": (4, lambda: layer.gradient_sums(dy, dsums, y, m, beta, norm, True)),
        "respond_backward": (3, lambda: layer.respond_backward(dy, dsums, m, beta, norm, sums, True, ["rho"])),
    }  # fmt: skip
