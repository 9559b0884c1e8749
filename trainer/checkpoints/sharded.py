"""Sharded checkpoints: every rank writes its own shards of tensors.

The main file holds the state with a reference by name in place of each sharded tensor. A shard file maps such names to
pieces: ``{"offsets": …, "shape": …, "tensor": …}``, with the offsets and shape of the full tensor. The main file is
written last, with the hashes of all shard files; without it they are no checkpoint. Reading works with any number of
ranks and any sharding, and needs no process group.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoints import files, names, streams
from trainer.checkpoints.snapshot import HostBuffers
from trainer.errors import CheckpointError
from trainer.world import World

# The only key of a reference to a sharded tensor; the value is the tensor's name. Part of the file format.
_SHARDED = "__spread__"

Pieces = dict[str, dict[str, Any]]
Parts = tuple[files.State, Pieces]  # what is not sharded, and a rank's pieces


def split(state: files.State) -> tuple[files.State, Pieces]:
    """Split a state into one with references in place of DTensors, and this rank's pieces of these.

    Of ranks with the same piece, only the first returns it. Nothing is copied or exchanged.
    """
    from torch.distributed.tensor import DTensor

    pieces: Pieces = {}

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, DTensor):
            if _is_first_replica(value):
                pieces[name] = _piece(value, name)
            return {_SHARDED: name}
        if isinstance(value, dict):
            return {key: walk(item, f"{name}/{key}" if name else str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [walk(item, f"{name}/{number}") for number, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        return value

    rest: files.State = walk(state, "")
    return rest, pieces


def parts_on_host(state: files.State, world: World) -> Parts:
    """This rank's part of a sharded state in host memory: its shards, on rank 0 also all that is not sharded.

    Tensors in host memory stay the originals.
    """
    rest, pieces = split(state)
    snapshot = HostBuffers().take((rest if world.is_main else {}, pieces), copy=False)
    snapshot.wait()
    parts: Parts = snapshot.state
    return parts


def shared_state(parts: Parts, world: World, folder: Path) -> files.State:
    """Copy the parts of all ranks to memory that all of them can read (collective). Returns a state like `whole_state`.

    Ranks of several machines share no memory, and use files in `folder` until all have opened them. Raises OSError.
    """
    on_one_machine = len(set(world.gather(os.uname().nodename))) == 1
    path = names.temporary_file(folder / f"state_rank_{world.rank}")
    descriptor = os.memfd_create(path.name)
    if on_one_machine:
        path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    try:
        torch.save(parts, path)
        shared = [streams.load(one) for one in world.gather(path)]
        world.barrier()
    finally:
        os.close(descriptor)
        if not on_one_machine:
            path.unlink(missing_ok=True)
    return _assembled(shared[0][0], [pieces for _, pieces in shared], folder)


def whole_state(state: files.State, path: Path) -> files.State:
    """The state of the sharded checkpoint `path`, whose main file holds `state`, with full tensors.

    Entries with sharded tensors become read-only mappings, which assemble a tensor, or one parameter's optimizer state,
    at each access: only that one needs memory. Raises CheckpointError, also later from those mappings.
    """
    return _assembled(state, [_load_shard(path, name) for name in sorted(state["shards"])], path)


def _assembled(state: files.State, shards: list[Pieces], path: Path) -> files.State:
    assembled = Assembled(state, shards, path)
    whole: files.State = {}
    for name, value in state.items():
        if not _is_sharded(value):
            whole[name] = value
        elif isinstance(value, dict) and value.keys() != {_SHARDED}:
            whole[name] = Assembled(value, shards, path)
        else:
            whole[name] = assembled[name]
    return whole


class Assembled(Mapping[str, Any]):
    """A mapping of a sharded checkpoint's state, which assembles sharded tensors at each access."""

    def __init__(self, values: Mapping[str, Any], shards: list[Pieces], path: Path) -> None:
        self._values = values
        self._shards = shards
        self._path = path

    def __getitem__(self, name: str) -> Any:
        return self._resolve(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {_SHARDED}:
                return self._tensor(value[_SHARDED])
            return {key: self._resolve(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self._resolve(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _tensor(self, name: str) -> Tensor:
        # By offsets: older versions wrote pieces that ranks share once for each of them.
        by_offsets = {tuple(shard[name]["offsets"]): shard[name] for shard in self._shards if name in shard}
        pieces = list(by_offsets.values())
        if not pieces or sum(piece["tensor"].numel() for piece in pieces) != math.prod(pieces[0]["shape"]):
            raise CheckpointError(f"checkpoint {self._path} is not complete: a part of {name} is missing")
        if len(pieces) == 1:
            tensor: Tensor = pieces[0]["tensor"]
            return tensor
        whole = torch.empty(pieces[0]["shape"], dtype=pieces[0]["tensor"].dtype)
        for piece in pieces:
            part = piece["tensor"]
            if part.numel():
                ranges = zip(piece["offsets"], part.shape, strict=True)
                whole[tuple(slice(offset, offset + length) for offset, length in ranges)] = part
        return whole


def _is_sharded(value: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() == {_SHARDED} or any(_is_sharded(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_is_sharded(item) for item in value)


def _load_shard(path: Path, name: str) -> Pieces:
    pieces = files.load(names.shards_folder(path) / name)
    if not isinstance(pieces, dict):
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {name} is no shard")
    return pieces


def _is_first_replica(tensor: Any) -> bool:
    mesh = tensor.device_mesh
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        return False
    # Ranks that differ only in a dimension of the root mesh that the tensor's mesh lacks have the same piece.
    root = _root_of(mesh)
    for name, coordinate in zip(root.mesh_dim_names or (), root.get_coordinate(), strict=False):
        if name not in (mesh.mesh_dim_names or ()) and coordinate:
            return False
    placements = zip(tensor.placements, coordinates, strict=True)
    return all(coordinate == 0 for placement, coordinate in placements if placement.is_replicate())


def _root_of(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    # torch before 2.10
    from torch.distributed.device_mesh import _mesh_resources

    return _mesh_resources.get_root_mesh(mesh)


def _piece(tensor: Any, name: str) -> dict[str, Any]:
    # Newer torch refuses these itself; 2.6 would take one summand for the sum.
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"{name} is a partial sum on each rank: {tensor.placements}")
    chunks = tensor.__create_chunk_list__()
    local = tensor.to_local()
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(local.shape):
        raise ValueError(f"{name} is not sharded in one block per rank: {tensor.placements}")
    return {"offsets": list(chunks[0].offsets), "shape": list(tensor.shape), "tensor": local.detach()}
