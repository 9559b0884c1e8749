"""Tensors across ranks: packed broadcasts; DTensors, their shards and the norm of their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import get_total_norm

from trainer.world import World

_EXCHANGE_BYTES = 64 * 2**20


@torch.no_grad()
def broadcast_from_main(tensors: Iterable[Tensor], world: World) -> None:
    """Broadcast rank 0's tensors to all ranks, in place."""
    group: Any = world.group or dist.group.WORLD
    if sent := list(tensors):
        dist._broadcast_coalesced(group, sent, _EXCHANGE_BYTES, 0)  # type: ignore[attr-defined]


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard, live."""
    # As `to_local` without its dispatch, which takes longer than small steps can spare.
    if isinstance(tensor, DTensor):
        return tensor._local_tensor.detach()
    return tensor.detach()


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor gathered from its shards, on every rank (collective)."""
    detached = tensor.detach()
    if not isinstance(detached, DTensor):
        return detached
    # Shards in host memory are gathered through the devices.
    gathered: DTensor = detached.to(detached.device_mesh.device_type)  # type: ignore[assignment]
    # One dimension of the mesh after the other, the last one sharded first: torch warns about doing both at once.
    for dimension in range(gathered.device_mesh.ndim):
        placements = (*[Replicate()] * (dimension + 1), *gathered.placements[dimension + 1 :])
        gathered = gathered.redistribute(placements=placements)
    return gathered.to_local()


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a full tensor that all ranks have, laid out as `like`; no collective, maybe no copy."""
    if not isinstance(like, DTensor):
        return full
    (chunk,) = like.__create_chunk_list__()  # type: ignore[no-untyped-call]
    shard = full[tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))]
    sharded = DTensor.from_local(
        shard, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return sharded.to(like.device)  # from_local moves it to the mesh's devices, also one that belongs into host memory


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, device: torch.device) -> Tensor:
    """As torch's clip_grad_norm_, for parameters that are not all sharded over the same ranks (collective).

    With a `max_norm` of 0 the norm is only measured.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Squares add up over the ranks that a gradient is sharded over; ranks with copies of it count it once.
    by_groups: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    for gradient in gradients:
        groups: tuple[dist.ProcessGroup, ...] = ()
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            placements = enumerate(gradient.placements)
            groups = tuple(mesh.get_group(axis) for axis, placement in placements if not placement.is_replicate())
        by_groups.setdefault(groups, []).append(local_shard(gradient))
    square = torch.zeros((), device=device)
    for groups, shards in by_groups.items():
        group_square = get_total_norm(shards).to(device) ** 2
        for group in groups:
            dist.all_reduce(group_square, group=group)
        square += group_square
    norm = square.sqrt()
    factor = ((max_norm or math.inf) / (norm + 1e-6)).clamp(max=1.0)
    if gradients:
        torch._foreach_mul_([local_shard(gradient) for gradient in gradients], factor.to(gradients[0].device))
    return norm
