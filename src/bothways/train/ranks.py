"""One process or several: torch's DDP and FSDP2, started by torchrun."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

T = TypeVar("T")
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the world size."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """The local rank: the number of this process's GPU."""
    control: Any = None
    """A gloo group for small messages between CPUs, which does not block on a GPU."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all ranks, exchanged between CPUs."""
        if self.size == 1:
            return list(numbers)
        table = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(table, group=self.control)
        found: list[float] = table.tolist()
        return found

    def share(self, items: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """This rank's items, and whether each counts. FSDP2 needs as many on every rank, so the last may be a repeat.

        >>> from bothways.train.ranks import Ranks
        >>> list(Ranks(0, 2).share("abc")), list(Ranks(1, 2).share("abc"))
        ([('a', True), ('c', True)], [('b', True), ('c', False)])
        """
        count = 0
        for count, item in enumerate(items, 1):
            if (count - 1) % self.size == self.rank:
                yield item, True
        if count and self.rank >= (count % self.size or self.size):
            yield item, False

    def gather(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Concatenate the rows of all ranks; `sizes` are the numbers of rows of each."""
        if self.size == 1:
            return rows
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        everyone = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(everyone, padded)
        return torch.cat([part[:size] for part, size in zip(everyone, sizes, strict=True)])

    def wait(self) -> None:
        """Block until all ranks have reached this point."""
        if self.size > 1:
            dist.barrier(group=self.control)


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the process group that torchrun started; a single rank without torchrun."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    started = not dist.is_initialized()
    if started:
        if device == "cuda":
            torch.cuda.set_device(local)
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield Ranks(rank, size, local, dist.new_group(backend="gloo"))
    finally:
        if started:
            dist.destroy_process_group()


def parallelize(
    module: nn.Module, blocks: Sequence[nn.Module], ranks: Ranks, parallel: Parallel, half: torch.dtype | None
) -> nn.Module:
    """Wrap the module: gradients are averaged over ranks (ddp), or weights are sharded over them too (fsdp).

    With `half`, fsdp keeps fp32 weights and computes in this 16-bit type.
    """
    if ranks.size == 1:
        return module
    if parallel == "ddp":
        on_gpu = next(module.parameters()).is_cuda
        return nn.parallel.DistributedDataParallel(module, device_ids=[ranks.local] if on_gpu else None)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    return module


@contextmanager
def no_gradient_sync(module: nn.Module, enabled: bool) -> Iterator[None]:
    """Do not synchronise gradients in this block: for all but the last forward pass of a step."""
    set_sync: Any = getattr(module, "set_requires_gradient_sync", None)  # FSDP2's modules have it
    if set_sync is not None:
        set_sync(not enabled)
        yield
    elif enabled and isinstance(module, nn.parallel.DistributedDataParallel):
        with module.no_sync():
            yield
    else:
        yield


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of one that FSDP2 has sharded. All ranks must call this together."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The full tensor on the device of `like`, sharded as `like` is."""
    if not hasattr(like, "device_mesh"):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)  # type: ignore[attr-defined]
