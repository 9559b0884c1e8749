"""The GPUs that a profile, ``--gpus`` or ``gpus.yaml`` selects, and which of this machine's GPUs these are."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainValidator

from gputui.core.units import count_of
from gputui.core.yaml_forms.forms import Model, expected
from gputui.core.yaml_forms.problems import did_you_mean, shorten
from gputui.machine.gpu_model import GpuFacts
from gputui.runs.gpu_conditions import EXCLUDED
from gputui.runs.spec import GpuRequest

MAX_GPUS = 1024  # more than any node has: a typing mistake

EXPECTED = 'a number, a part of one such as 0.5, "all", or a list of indices or UUIDs'

_UUID = re.compile(r"GPU-[A-Za-z0-9-]{1,64}")
_NO_MIG = "MIG instances cannot be used, for ranks on them cannot talk to each other; name whole GPUs"


class SelectionError(ValueError):
    """The selected GPUs are not available. ``is_refusal``: the request is well-formed, but this
    machine cannot serve it."""

    def __init__(self, text: str, *, is_refusal: bool = True) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class NoSelectionError(SelectionError):
    """The value is no selection of GPUs."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Any ``count`` GPUs, or exactly ``devices`` (indices and UUIDs) if there are any, or all; or a
    ``share`` of one."""

    count: int = 0
    devices: tuple[int | str, ...] = ()
    is_all: bool = False
    share: float = 1.0

    @property
    def is_none(self) -> bool:
        """True if this is a CPU run."""
        return not (self.count or self.devices or self.is_all)


def parse_selection(selection: object) -> Selection:
    """Read ``2``, ``0.5``, ``"all"``, ``[0, 1]``, ``"0,1"``, ``"0,"`` (index 0 alone), a UUID or a list of UUIDs.

    Raises SelectionError.
    """
    if isinstance(selection, bool) or selection is None:
        raise _malformed(selection)
    if isinstance(selection, int):
        if not 0 <= selection <= MAX_GPUS:
            raise _malformed(selection)
        return Selection(count=selection)
    if isinstance(selection, float):
        if not 0 < selection < 1:
            raise _malformed(selection)
        return Selection(count=1, share=selection)
    if isinstance(selection, str):
        text = selection.strip()
        if re.fullmatch(r"0?\.\d{1,6}", text):
            return parse_selection(float(text))
        if text.lower() == "all":
            return Selection(is_all=True)
        if text.isascii() and text.isdigit():
            count = MAX_GPUS + 1
            if len(text) < 10:
                count = int(text)
            return parse_selection(count)
        selection = [part.strip() for part in text.removesuffix(",").split(",")]
    if not isinstance(selection, (list, tuple)) or not selection:
        raise _malformed(selection)
    devices = tuple(_device(item) for item in selection)
    if len(set(devices)) < len(devices):
        raise SelectionError("a GPU is named twice", is_refusal=False)
    return Selection(devices=devices)


def shell_selection(text: str) -> Selection:
    """The GPUs that CUDA_VISIBLE_DEVICES names. As for CUDA, the first entry that names none, such
    as -1, ends the list.

    Raises SelectionError.
    """
    devices: list[int | str] = []
    for part in text.split(","):
        try:
            devices.append(_device(part.strip()))
        except NoSelectionError:
            break
    if devices:
        return parse_selection(devices)
    return Selection()


def request_gpus(
    selection: Selection,
    inventory: Sequence[GpuFacts] | None,
    memory_bytes: int | None,
    excluded: Collection[str] = (),
) -> GpuRequest:
    """The request for the scheduler.

    Args:
        inventory: None if the driver has not been asked, and empty if it shows no GPU.
        memory_bytes: What must be free on each, None for any.
        excluded: The UUIDs of those that this home does not use.

    Raises:
        SelectionError: The machine cannot serve it; with a remedy.
    """
    if selection.is_none:
        return GpuRequest(0, (), memory_bytes=None)
    if inventory is None:
        if selection.is_all or any(isinstance(device, int) for device in selection.devices):
            raise SelectionError(
                "which GPUs those are is not known while the driver's list is missing; "
                "give a number or UUIDs, or see gputui doctor"
            )
        uuids = tuple(device for device in selection.devices if isinstance(device, str))
        return GpuRequest(len(selection.devices) or selection.count, uuids, memory_bytes, share=selection.share)
    if not inventory:
        raise SelectionError("no NVIDIA GPU is visible on this machine; use --gpus 0 to run on the CPU")
    used = [gpu for gpu in inventory if gpu.uuid not in excluded]
    if not used:
        raise SelectionError(f"gpus.yaml names no GPU of this machine, which has {_indices(inventory)}")
    whole = [gpu for gpu in used if not gpu.mig_mode]
    if selection.is_all:
        if len(whole) < len(used):
            split = _indices([gpu for gpu in used if gpu.mig_mode])
            raise SelectionError(f"GPU {split} is in MIG mode and cannot be used; {_others(whole)}")
        return GpuRequest(len(whole), (), memory_bytes)
    if not selection.devices:
        if selection.count > len(whole):
            fewer = "to run on the CPU" if not whole else "instead"
            request = f"{count_of(selection.count, 'GPU')} asked for"
            raise SelectionError(f"{request}, {machine_has(inventory, excluded)}; use --gpus {len(whole)} {fewer}")
        return GpuRequest(selection.count, (), memory_bytes, share=selection.share)
    chosen = [_find(device, inventory) for device in selection.devices]
    for gpu in chosen:
        if gpu.uuid in excluded:
            raise SelectionError(f"GPU {gpu.index} {EXCLUDED}; {_others(whole)}")
        if gpu.mig_mode:
            raise SelectionError(f"GPU {gpu.index} is in MIG mode and cannot be used; {_others(whole)}")
    uuids = tuple(gpu.uuid for gpu in chosen)
    if len(set(uuids)) < len(uuids):
        raise SelectionError("a GPU is named twice", is_refusal=False)
    return GpuRequest(len(uuids), uuids, memory_bytes)


def machine_has(inventory: Sequence[GpuFacts], excluded: Collection[str] = ()) -> str:
    """The number of GPUs that a run may have, and those that MIG or ``gpus.yaml`` keeps from it."""
    others = [gpu for gpu in inventory if gpu.uuid in excluded]
    split = [gpu for gpu in inventory if gpu.mig_mode and gpu not in others]
    parts = [f"this machine has {len(inventory) - len(split) - len(others)}"]
    if split:
        parts.append(f"without GPU {_indices(split)}, in MIG mode")
    if others:
        parts.append(f"without GPU {_indices(others)}, not used here (gpus.yaml)")
    return " ".join(parts)


def _device(item: object) -> int | str:
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < MAX_GPUS:
        return item
    if isinstance(item, str):
        if item.startswith("MIG"):
            raise SelectionError(_NO_MIG, is_refusal=False)
        if _UUID.fullmatch(item):
            return item
        if item.isascii() and item.isdigit() and len(item) < 5:
            return int(item)
    raise _malformed(item)


def _find(device: int | str, inventory: Sequence[GpuFacts]) -> GpuFacts:
    for gpu in inventory:
        if device in (gpu.uuid, gpu.index):
            return gpu
    if isinstance(device, int):
        raise SelectionError(f"GPU {device} does not exist; this machine has {_indices(inventory)}")
    abbreviated = [gpu for gpu in inventory if gpu.uuid.startswith(device)]
    if len(abbreviated) == 1:
        return abbreviated[0]
    uuids = [gpu.uuid for gpu in inventory]
    hint = did_you_mean(device, uuids) or f"this machine has {', '.join(uuids)}"
    raise SelectionError(f"GPU {device} does not exist; {hint}")


def _indices(gpus: Sequence[GpuFacts]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus)


def _others(whole: Sequence[GpuFacts]) -> str:
    if not whole:
        return "use --gpus 0 to run on the CPU"
    indices = _indices(whole).replace(" ", "")
    if len(whole) == 1:
        # Without the comma it would be a number of GPUs.
        indices += ","
    return f"use --gpus {indices}"


def _malformed(selection: object) -> NoSelectionError:
    return NoSelectionError(f"expected {EXPECTED}, found {shorten(repr(selection))}", is_refusal=False)


def _used(content: object) -> frozenset[int | str]:
    try:
        devices = parse_selection(content).devices if isinstance(content, list) else ()
    except SelectionError:
        devices = ()
    if not devices:
        raise expected("a list of indices or UUIDs such as [0, 1, 2]")
    return frozenset(devices)


class GpusForm(Model):
    """``gpus.yaml``: the GPUs that runs of the home may have; the others are left to other users."""

    use: Annotated[frozenset[int | str], PlainValidator(_used)]
