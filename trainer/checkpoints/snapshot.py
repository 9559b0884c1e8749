"""Taking the state out of live tensors, so that training can continue while it is written.

Copies go into host buffers that are kept and used again: filling memory that is already there costs a fraction of
asking for it. Tensors on a GPU are copied without waiting, in the current stream's order, so before anything that is
launched on it afterwards; `HostSnapshot.wait` says when they have arrived.

The state of a process's random generators is here too: a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.checkpoints.files import State


@dataclass(frozen=True)
class HostSnapshot:
    """Nested dictionaries and lists with tensors on the CPU, valid after `wait` and until the next one is taken."""

    state: Any
    _copied: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Returns when everything has arrived from the GPU."""
        if self._copied is not None:
            self._copied.synchronize()


class HostBuffers:
    """The memory that snapshots are taken into. One snapshot at a time."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, state: Any, *, copy: bool) -> HostSnapshot:
        """A state's tensors on the CPU, sharing memory where the originals do.

        `state` is made of nested dictionaries, lists and tuples. With `copy` nothing in the result changes when the
        originals do; without, tensors that are on the CPU already may be the originals. Of memory that only one view
        of is wanted, only that view is taken.
        """
        tensors = list(_tensors(state))
        taken: dict[int, Tensor] = {}
        buffers: list[Tensor] = []
        for group in _by_storage(tensors):
            self._take_group(group, taken, buffers, copy)
        self._buffers = buffers
        on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
        copied = None
        if on_gpu:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(on_gpu[0]))
        return HostSnapshot(_rebuilt(state, taken), copied)

    def _take_group(self, group: list[Tensor], taken: dict[int, Tensor], buffers: list[Tensor], copy: bool) -> None:
        """Takes tensors that share one storage."""
        first = group[0].detach()
        geometries = {(one.storage_offset(), one.size(), one.stride(), one.dtype) for one in group}
        whole = first.untyped_storage()
        if len(geometries) == 1 and first.numel() * first.element_size() < whole.nbytes():
            # As torch.clone would have it: dense, in the original's order of dimensions.
            strides = torch.empty_like(first, device="meta").stride()
            buffer = self._buffer(len(buffers), first.numel() * first.element_size(), first.is_cuda)
            buffers.append(buffer)
            dense = _view(buffer, first.dtype, 0, first.size(), strides)
            dense.copy_(first, non_blocking=first.is_cuda)
            taken.update({id(one): dense for one in group})
        elif first.is_cuda or copy:
            buffer = self._buffer(len(buffers), whole.nbytes(), first.is_cuda)
            buffers.append(buffer)
            everything = torch.empty(0, dtype=torch.uint8, device=first.device).set_(whole)
            buffer.copy_(everything, non_blocking=first.is_cuda)
            for one in group:
                taken[id(one)] = _view(buffer, one.dtype, int(one.storage_offset()), one.size(), one.stride())
        else:
            taken.update({id(one): one.detach() for one in group})

    def _buffer(self, number: int, size: int, pinned: bool) -> Tensor:
        """Host memory of exactly `size` bytes, the former one where that fits; page-locked for copies from a GPU."""
        if number < len(self._buffers):
            former = self._buffers[number]
            if former.numel() == size and former.is_pinned() == pinned:
                return former
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _by_storage(tensors: list[Tensor]) -> list[list[Tensor]]:
    groups: dict[tuple[Any, ...], list[Tensor]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        # Empty tensors have no address and share nothing.
        groups.setdefault((tensor.device, address or ("empty", id(tensor))), []).append(tensor)
    return list(groups.values())


def _view(buffer: Tensor, dtype: torch.dtype, offset: int, size: torch.Size, strides: tuple[int, ...]) -> Tensor:
    return torch.empty(0, dtype=dtype).set_(buffer.untyped_storage(), offset, size, strides)


def _rebuilt(state: Any, taken: dict[int, Tensor]) -> Any:
    """The same structure with plain containers around the tensors that were taken."""
    if isinstance(state, Tensor):
        return taken[id(state)]
    if isinstance(state, dict):
        return {key: _rebuilt(value, taken) for key, value in state.items()}
    if isinstance(state, list):
        return [_rebuilt(value, taken) for value in state]
    if isinstance(state, tuple):
        return tuple(_rebuilt(value, taken) for value in state)
    return state


def seed_everything(seed: int) -> None:
    """Sets every global random generator of this process, those of GPUs too, by a seed of 0 or more."""
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
    """Sets every generator that `state` has something for; that of a GPU only where this process has one too."""
    random.setstate(_as_tuple(state["python"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _as_tuple(value: Any) -> Any:
    """Python accepts only tuples back, but storage may have changed them."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list | tuple) else value
