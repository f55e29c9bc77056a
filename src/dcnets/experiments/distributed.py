"""Data-parallel training: which process of how many this is, and what they tell each other."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist


@dataclass(frozen=True)
class Team:
    """The number of this process among `world` processes; a run without torchrun is a team of one."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def wrap(self, model: nn.Module, device: torch.device, sync_bn: bool = False) -> nn.Module:
        """The model for the forward pass of training: DistributedDataParallel where there are several processes."""
        if self.world == 1:
            return model
        if sync_bn and device.type != "cuda":
            raise ValueError("synchronised batch norm needs GPUs; leave out sync_bn")
        if sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def average(self, values: Tensor) -> Tensor:
        """The mean over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
            values /= self.world
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Which flags are raised in at least one process."""
        if self.world == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.int32, device=device_of_messages())
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def stacked(self, values: Tensor) -> Tensor:
        """The values of all processes, (world, …), in every process."""
        if self.world == 1:
            return values.unsqueeze(0)
        own = values.to(device_of_messages())
        gathered = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(gathered, own)
        return torch.stack(gathered).cpu()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()


def device_of_messages() -> str:
    """Where tensors must lie to be sent."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


@contextmanager
def join(device: str) -> Iterator[tuple[Team, torch.device]]:
    """The team that torchrun started, or a team of one, and this process's device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Team(), torch.device("cuda", 0) if device == "cuda" else torch.device(device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    own = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    team = Team(rank, world)
    try:
        yield team, own
        gc.collect()  # wrapped models go before the group that they hold on to
        team.wait()
    finally:
        dist.destroy_process_group()
