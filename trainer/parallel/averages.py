"""Tensors made equal on all ranks: their mean, or rank 0's; many small ones in one exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.world import World

_EXCHANGE_BYTES = 64 * 2**20


def average(tensors: Iterable[Tensor], world: World) -> None:
    """Replaces floating-point tensors by their mean over all ranks, in place (collective)."""

    def exchange(packed: Tensor) -> None:
        packed.div_(world.size)
        dist.all_reduce(packed, group=world.group)

    _in_packs([tensor for tensor in tensors if tensor.is_floating_point()], exchange)


def take_from_main(tensors: Iterable[Tensor], world: World) -> None:
    """Replaces tensors by rank 0's, in place (collective)."""
    _in_packs(tensors, lambda packed: dist.broadcast(packed, src=0, group=world.group))


@torch.no_grad()
def _in_packs(tensors: Iterable[Tensor], exchange: Callable[[Tensor], object]) -> None:
    for pack in _packs(tensors):
        packed = torch.cat([tensor.reshape(-1) for tensor in pack])
        exchange(packed)
        start = 0
        for tensor in pack:
            tensor.copy_(packed[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()


def _packs(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of tensors of one type on one device, of about `_EXCHANGE_BYTES` each."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        pack = kinds.setdefault(kind, [])
        pack.append(tensor)
        if sum(member.nbytes for member in pack) >= _EXCHANGE_BYTES:
            yield kinds.pop(kind)
    yield from kinds.values()
