"""A state in host memory: copied so that training can continue, split by ranks, put together again; random states.

The main file of a sharded checkpoint has a reference by name in place of each sharded tensor. A shard file maps names
to pieces: ``{"offsets": …, "shape": …, "tensor": …}``, with the offsets and shape of the full tensor.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.checkpoints.files import State
from trainer.checkpoints.streams import load_file
from trainer.collectives import full_tensor
from trainer.errors import CheckpointError
from trainer.world import World

# The only key of a reference to a sharded tensor; the value is the tensor's name. Part of the file format.
_SHARDED = "__spread__"

Pieces = dict[str, dict[str, Any]]
Parts = tuple[State, Pieces]  # what is not sharded, and a rank's pieces


def _converted(value: Any, change: Callable[[Any, str], Any], name: str = "") -> Any:
    """The same structure of plain containers, with what `change` returns for each value and its name.

    Containers for which it returns the same object are converted in turn.
    """
    if (changed := change(value, name)) is not value:
        return changed
    if isinstance(value, dict):
        prefix = f"{name}/" if name else ""
        return {key: _converted(item, change, f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_converted(item, change, f"{name}/{number}") for number, item in enumerate(value)]
        if isinstance(value, list):
            return items
        return tuple(items)
    return value


# --- copies in host memory --------------------------------------------------------------------------------------------


class HostBuffers:
    """The host memory of one copy at a time, reused: allocating it costs several times as much as filling it."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None

    def take(self, state: Any, *, copy: bool) -> Any:
        """Copy the tensors of nested containers to the CPU; equal views share one copy. Valid after `wait`.

        Without `copy`, CPU tensors that fill their storage stay the originals. GPU tensors are copied before any later
        work of the current stream.
        """
        former = iter(self._buffers)
        self._buffers = []
        self._copied = None
        copies: dict[tuple[int, torch.device, Any], Tensor] = {}

        def change(value: Any, _: str) -> Any:
            if not isinstance(value, Tensor):
                return value
            tensor = value.detach()
            form = (tensor.dtype, tensor.size(), tensor.stride())
            view = (tensor.data_ptr() or id(value), tensor.device, form)  # empty tensors have no address
            if view in copies:
                return copies[view]
            if not (copy or tensor.is_cuda) and tensor.nbytes == tensor.untyped_storage().nbytes():
                copies[view] = tensor
                return tensor
            buffer = next(former, None)
            if buffer is None or (buffer.dtype, buffer.size(), buffer.stride()) != form:
                buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)  # dense
            self._buffers.append(buffer)
            copies[view] = buffer.copy_(tensor, non_blocking=True)
            return buffer

        copied_state = _converted(state, change)
        if any(device.type == "cuda" for _, device, _ in copies):
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        return copied_state

    def wait(self) -> None:
        """Wait for the copies from the GPU."""
        if self._copied is not None:
            self._copied.synchronize()


# --- shards -----------------------------------------------------------------------------------------------------------


def split(state: State) -> Parts:
    """Split a state into one with references in place of DTensors, and this rank's pieces of these; nothing is copied.

    Of ranks with the same piece, only the first returns it.
    """
    pieces: Pieces = {}

    def change(value: Any, name: str) -> Any:
        if not isinstance(value, DTensor):
            return value
        if _is_first_replica(value):
            (chunk,) = value.__create_chunk_list__()  # type: ignore[no-untyped-call]  # one block per rank
            local = value.to_local().detach()
            assert tuple(chunk.sizes) == tuple(local.shape), name
            pieces[name] = {"offsets": list(chunk.offsets), "shape": list(value.shape), "tensor": local}
        return {_SHARDED: name}

    return _converted(state, change), pieces


def whole(state: State, world: World) -> State:
    """Gather the full tensors of DTensors on rank 0's CPU, one at a time; None elsewhere (collective)."""

    def change(value: Any, _: str) -> Any:
        if not isinstance(value, DTensor):
            return value
        full = full_tensor(value)
        if world.is_main:
            return full.cpu()
        return None

    gathered: State = _converted(state, change)
    return gathered


def parts_on_host(state: State, world: World) -> Parts:
    """This rank's part of a sharded state in host memory: its shards, on rank 0 also all that is not sharded."""
    rest, pieces = split(state)
    if not world.is_main:
        rest = {}
    buffers = HostBuffers()
    parts: Parts = buffers.take((rest, pieces), copy=False)
    buffers.wait()
    return parts


def shared_state(parts: Parts, world: World, folder: Path) -> State:
    """Copy the parts of all ranks to memory that all can read; returns a state like `assembled` (collective).

    Ranks of several machines use files in `folder` until all have opened them. Raises OSError.
    """
    on_one_machine = len(set(world.gather(os.uname().nodename))) == 1
    path = folder / f".state_rank_{world.rank}.tmp"
    descriptor = os.memfd_create(path.name)
    if on_one_machine:
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    try:
        torch.save(parts, path)
        shared = [load_file(part_path) for part_path in world.gather(path)]
        world.barrier()
    finally:
        os.close(descriptor)
        if not on_one_machine:
            path.unlink(missing_ok=True)
    return assembled(shared[0][0], [pieces for _, pieces in shared], folder)


def assembled(state: State, shards: list[Pieces], path: Path) -> State:
    """A state with full tensors in place of references: its dictionaries become `Assembled`. `path` is for errors."""
    full = dict(state)
    for name, value in state.items():
        if isinstance(value, dict):
            full[name] = Assembled(value, shards, path)
    return full


class Assembled(Mapping[str, Any]):
    """Assembles a tensor, or one parameter's optimizer state, at each access: only that one needs memory.

    Raises CheckpointError then if a part is missing.
    """

    def __init__(self, values: Mapping[str, Any], shards: list[Pieces], path: Path) -> None:
        self._values = values
        self._shards = shards
        self._path = path

    def __getitem__(self, name: str) -> Any:
        return _converted(self._values[name], self._resolve)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _resolve(self, value: Any, _: str) -> Any:
        if not isinstance(value, dict) or value.keys() != {_SHARDED}:
            return value
        pieces = [shard[value[_SHARDED]] for shard in self._shards if value[_SHARDED] in shard]
        if not pieces or sum(piece["tensor"].numel() for piece in pieces) != math.prod(pieces[0]["shape"]):
            raise CheckpointError(f"checkpoint {self._path} is not complete: a part of {value[_SHARDED]} is missing")
        if len(pieces) == 1:
            return pieces[0]["tensor"]
        joined = torch.empty(pieces[0]["shape"], dtype=pieces[0]["tensor"].dtype)
        for piece in pieces:
            part = piece["tensor"]
            if part.numel():
                ranges = zip(piece["offsets"], part.shape, strict=True)
                joined[tuple(slice(offset, offset + length) for offset, length in ranges)] = part
        return joined


def _is_first_replica(tensor: Any) -> bool:
    mesh = tensor.device_mesh
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        return False
    root = mesh._get_root_mesh()
    # Ranks that differ only in a dimension of the root mesh that the tensor's mesh lacks have the same piece.
    for name, coordinate in zip(root.mesh_dim_names or (), root.get_coordinate(), strict=False):
        if name not in (mesh.mesh_dim_names or ()) and coordinate:
            return False
    placements = zip(tensor.placements, coordinates, strict=True)
    return all(coordinate == 0 for placement, coordinate in placements if placement.is_replicate())


# --- random states ----------------------------------------------------------------------------------------------------


def seed_everything(seed: int) -> None:
    """Seed every global random generator of this process, including those of GPUs. `seed` is 0 or more."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> State:
    """The state of every global random generator of this process, as plain values and tensors."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    state: State = {
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: State, device: torch.device) -> None:
    """Restore the generators in `state`; a GPU's only if this process has one, too."""
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
