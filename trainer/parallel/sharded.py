"""Tensors of which every rank holds a part (DTensor): their local part, the whole, and the norm of their gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm


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
    on_device: DTensor = kept.to(kept.device_mesh.device_type)  # type: ignore[assignment]
    return on_device.full_tensor()


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
    by_mesh: dict[DeviceMesh | None, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_mesh.setdefault(mesh_of(parameter.grad), []).append(parameter.grad)
    norms = [whole(get_total_norm(gradients)).to(device) for gradients in by_mesh.values()]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradients in by_mesh.values():
        for gradient in gradients:
            local(gradient).mul_(factor.to(gradient.device))
    return norm
