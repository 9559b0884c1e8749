"""Tensors across ranks: packed all-reduces and broadcasts; DTensors, their shards and the norm of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.utils import get_total_norm

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


def local(tensor: Tensor) -> Tensor:
    """This rank's part, live."""
    kept = tensor.detach()
    return kept.to_local() if isinstance(kept, DTensor) else kept


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank (collective)."""
    kept = tensor.detach()
    if not isinstance(kept, DTensor):
        return kept
    # Parts that are kept in host memory travel between devices.
    gathered: DTensor = kept.to(kept.device_mesh.device_type)  # type: ignore[assignment]
    # One dimension of the mesh after the other, the last one cut first: torch warns about doing both at once.
    for dimension in range(gathered.device_mesh.ndim):
        placements = (*[Replicate()] * (dimension + 1), *gathered.placements[dimension + 1 :])
        gathered = gathered.redistribute(placements=placements)
    return gathered.to_local()


def part(whole_tensor: Tensor, like: Tensor) -> Tensor:
    """What a rank keeps of a whole tensor that all ranks have, laid out as `like`; no exchange."""
    if not isinstance(like, DTensor):
        return whole_tensor
    mesh = like.device_mesh
    on_device = whole_tensor.to(mesh.device_type)
    return distribute_tensor(on_device, mesh, like.placements, src_data_rank=None).to(like.device)


def from_part(local_part: Tensor, like: Tensor) -> Tensor:
    """A tensor laid out as `like` of which this rank has the given part."""
    if not isinstance(like, DTensor):
        return local_part
    return DTensor.from_local(
        local_part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """The ranks it is spread over; None where every rank has all of it."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, device: torch.device) -> Tensor:
    """As torch's clip_grad_norm_, for parameters that are not all spread over the same ranks (collective)."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Squares add up over the ranks that a gradient is cut for; ranks with copies of it count it once.
    by_groups: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    for gradient in gradients:
        by_groups.setdefault(_cut_for(gradient), []).append(local(gradient))
    square = torch.zeros((), device=device)
    for groups, parts in by_groups.items():
        own = get_total_norm(parts).to(device) ** 2
        for group in groups:
            dist.all_reduce(own, group=group)
        square += own
    norm = square.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if gradients:
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor.to(gradients[0].device))
    return norm


def _cut_for(tensor: Tensor) -> tuple[dist.ProcessGroup, ...]:
    """The groups of ranks that have different parts of it."""
    if not isinstance(tensor, DTensor):
        return ()
    placements = enumerate(tensor.placements)
    return tuple(tensor.device_mesh.get_group(dimension) for dimension, cut in placements if not cut.is_replicate())
