"""Copies of live tensors in host memory, so that training can continue while they are written; and random states.

Host buffers are reused, because allocating memory costs several times as much as filling it. GPU tensors are copied
asynchronously on the current stream, so before any later work on it; `HostSnapshot.wait` waits for the copies.
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
    """Nested containers with CPU tensors, valid after `wait` and until the next snapshot is taken."""

    state: Any
    _copied: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Wait for the copies from the GPU."""
        if self._copied is not None:
            self._copied.synchronize()


class HostBuffers:
    """The reusable host memory of one snapshot at a time."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, state: Any, *, copy: bool) -> HostSnapshot:
        """Copy the tensors of nested dictionaries, lists and tuples to the CPU. Views of one storage share one copy.

        Without `copy`, CPU tensors may be the originals. Of a storage with a single view, only that view is copied.
        """
        tensors = list(_tensors(state))
        copies: dict[int, Tensor] = {}  # by id of the original
        buffers: list[Tensor] = []
        for group in _by_storage(tensors):
            self._take_group(group, copies, buffers, copy)
        self._buffers = buffers
        on_gpu = [tensor.device for tensor in tensors if tensor.is_cuda]
        copied = None
        if on_gpu:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(on_gpu[0]))
        return HostSnapshot(_rebuild(state, copies), copied)

    def _take_group(self, group: list[Tensor], copies: dict[int, Tensor], buffers: list[Tensor], copy: bool) -> None:
        """Add copies of tensors that share one storage to `copies`."""
        first = group[0].detach()
        geometries = {(view.storage_offset(), view.size(), view.stride(), view.dtype) for view in group}
        whole = first.untyped_storage()
        if len(geometries) == 1 and first.numel() * first.element_size() < whole.nbytes():
            # Like torch.clone: dense, with the original's order of dimensions.
            strides = torch.empty_like(first, device="meta").stride()
            buffer = self._buffer(len(buffers), first.numel() * first.element_size(), first.is_cuda)
            buffers.append(buffer)
            dense = _view(buffer, first.dtype, 0, first.size(), strides)
            dense.copy_(first, non_blocking=first.is_cuda)
            copies.update({id(view): dense for view in group})
        elif first.is_cuda or copy:
            buffer = self._buffer(len(buffers), whole.nbytes(), first.is_cuda)
            buffers.append(buffer)
            storage_bytes = torch.empty(0, dtype=torch.uint8, device=first.device).set_(whole)
            buffer.copy_(storage_bytes, non_blocking=first.is_cuda)
            for view in group:
                copies[id(view)] = _view(buffer, view.dtype, int(view.storage_offset()), view.size(), view.stride())
        else:
            copies.update({id(view): view.detach() for view in group})

    def _buffer(self, number: int, size: int, pinned: bool) -> Tensor:
        """Host memory of exactly `size` bytes, the former buffer of this number if it fits; page-locked if `pinned`."""
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


def _rebuild(state: Any, copies: dict[int, Tensor]) -> Any:
    """The same structure of plain containers, with the copies in place of tensors."""
    if isinstance(state, Tensor):
        return copies[id(state)]
    if isinstance(state, dict):
        return {key: _rebuild(value, copies) for key, value in state.items()}
    if isinstance(state, list):
        return [_rebuild(value, copies) for value in state]
    if isinstance(state, tuple):
        return tuple(_rebuild(value, copies) for value in state)
    return state


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
    random.setstate(_as_tuple(state["python"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _as_tuple(value: Any) -> Any:
    """Convert lists back to tuples, which Python's generator requires and a checkpoint may not keep."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list | tuple) else value
