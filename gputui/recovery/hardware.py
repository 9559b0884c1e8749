"""The driver's reports about an attempt's GPUs as observations. Pure.

Not every report is a cause: a run survives many, and others are written because it ended. So each kind of report counts
only for as long before the end as its effect may take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from gputui.machine.xid import XidClass, xid_class, xid_text
from gputui.recovery.evidence import ObservedCause

# A kernel error ends its program at once; torchrun then gives the other ranks up to 30 s.
NEAR_SECONDS = 90.0
# A broken link or memory may hang a collective; NCCL gives up after 10 min by default, and torchrun takes 30 s more.
HARDWARE_SECONDS = 900.0

_KINDS = {
    XidClass.APPLICATION: "illegal_access",
    XidClass.CONTAINED: "ecc",
    XidClass.MEMORY: "ecc",
    XidClass.LINK: "nvlink_error",
    XidClass.LOST: "gpu_lost",
}


class Sighting(Struct, frozen=True):
    """One report about a GPU. ``what`` is an event of the driver (``xid``, ``lost``, ``returned``), or a counter that
    rose: ``ecc`` (by ``code`` uncorrected errors) or ``remap`` (a row could not be remapped). ``at`` is UTC unix
    seconds."""

    at: float
    uuid: str
    what: Literal["xid", "lost", "returned", "ecc", "remap"]
    code: int | None = None


def observations(
    sightings: Sequence[Sighting], gpus: Sequence[str], nproc: int, *, ended_at: float
) -> tuple[ObservedCause, ...]:
    """Observations that may explain the end of an attempt at ``ended_at``, earliest first, one per GPU and kind.
    ``gpus`` are its UUIDs in the order of local ranks."""
    observed: dict[tuple[str, str], ObservedCause] = {}
    for sighting in sorted(sightings, key=lambda event: event.at):
        if sighting.uuid not in gpus:
            continue
        if sighting.what == "returned":
            # The GPU was back before the end, so the run survived that.
            observed.pop((sighting.uuid, "lost"), None)
            continue
        name = xid_class(sighting.code) if sighting.what == "xid" else None
        kind = _kind(sighting, name)
        if kind is None or ended_at - sighting.at > _counts_for(sighting, name):
            continue
        position = gpus.index(sighting.uuid)
        observation = ObservedCause(
            kind=kind,
            at=sighting.at,
            text=f"{_text(sighting)}; GPU {position} of the run, {sighting.uuid}",
            rank=position if nproc == len(gpus) else None,
            gpu=sighting.uuid,
            contained=name in (XidClass.APPLICATION, XidClass.CONTAINED),
            ended_run=False,
            distant=kind != "gpu_lost" and ended_at - sighting.at > NEAR_SECONDS,
        )
        key = (sighting.uuid, "lost" if sighting.what == "lost" else kind)
        before = observed.get(key)
        if before is None or (before.contained and not observation.contained):
            observed[key] = observation
    return tuple(sorted(observed.values(), key=lambda event: event.at))


def _kind(sighting: Sighting, name: XidClass | None) -> str | None:
    if name is not None:
        return _KINDS.get(name)
    return "gpu_lost" if sighting.what == "lost" else "ecc"


def _counts_for(sighting: Sighting, name: XidClass | None) -> float:
    if name is XidClass.APPLICATION:
        return NEAR_SECONDS
    # A GPU that is gone stays gone until the driver reports its return.
    return float("inf") if sighting.what == "lost" or name is XidClass.LOST else HARDWARE_SECONDS


def _text(sighting: Sighting) -> str:
    match sighting.what:
        case "xid":
            return xid_text(sighting.code or 0)
        case "ecc":
            return f"{sighting.code or 1} uncorrectable ECC error{'s' if (sighting.code or 1) > 1 else ''} counted"
        case "remap":
            return "a memory row could not be remapped"
        case _:
            return "the driver calls it lost"
