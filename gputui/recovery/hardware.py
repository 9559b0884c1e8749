"""The driver's reports about an attempt's GPUs, as observations. Pure.

Not every word of the driver is a cause: a run continues after many of them, and others are written because the run
ended. So each kind of word counts only for as long before the end as its effect may take to end a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gputui.gpu.xid import xid_text
from gputui.gpu.xid_classes import XidClass, xid_class
from gputui.recovery.evidence import Observation

# An error in a kernel ends its program at once; torchrun then gives the other ranks up to 30 s.
NEAR_SECONDS = 90.0
# A broken link or memory may make a collective hang; NCCL gives up after 10 min by default, then come 30 s.
HARDWARE_SECONDS = 900.0

_KINDS = {
    XidClass.APPLICATION: "illegal_access",
    XidClass.CONTAINED: "ecc",
    XidClass.MEMORY: "ecc",
    XidClass.LINK: "nvlink_error",
    XidClass.LOST: "gpu_lost",
}


@dataclass(frozen=True, slots=True)
class Sighting:
    """One thing that the sampler saw of a GPU. ``what`` is an event of the driver (``xid``, ``lost``, ``returned``),
    or a counter that grew: ``ecc`` (uncorrected errors, ``code`` says by how many) or ``remap`` (a row could not be
    remapped). ``at`` is UTC unix seconds."""

    at: float
    uuid: str
    what: Literal["xid", "lost", "returned", "ecc", "remap"]
    code: int | None = None


def observations(
    sightings: Sequence[Sighting], gpus: Sequence[str], nproc: int, *, ended_at: float
) -> tuple[Observation, ...]:
    """What may have ended an attempt that held ``gpus`` (UUIDs in the order of its local ranks) at ``ended_at``, the
    earliest first; one for each GPU and kind."""
    found: dict[tuple[str, str], Observation] = {}
    for seen in sorted(sightings, key=lambda one: one.at):
        if seen.uuid not in gpus:
            continue
        if seen.what == "returned":
            # It was back before the end: the run outlived it.
            found.pop((seen.uuid, "lost"), None)
            continue
        name = xid_class(seen.code) if seen.what == "xid" else None
        kind = _kind(seen, name)
        if kind is None or ended_at - seen.at > _counts_for(seen, name):
            continue
        place = gpus.index(seen.uuid)
        observation = Observation(
            kind=kind,
            at=seen.at,
            text=f"GPU {place} of the run ({seen.uuid}): {_text(seen)}",
            rank=place if nproc == len(gpus) else None,
            gpu=seen.uuid,
            contained=name in (XidClass.APPLICATION, XidClass.CONTAINED),
            ended_run=False,
            distant=kind != "gpu_lost" and ended_at - seen.at > NEAR_SECONDS,
        )
        key = (seen.uuid, "lost" if seen.what == "lost" else kind)
        before = found.get(key)
        if before is None or (before.contained and not observation.contained):
            found[key] = observation
    return tuple(sorted(found.values(), key=lambda one: one.at))


def _kind(seen: Sighting, name: XidClass | None) -> str | None:
    if name is not None:
        return _KINDS.get(name)
    return "gpu_lost" if seen.what == "lost" else "ecc"


def _counts_for(seen: Sighting, name: XidClass | None) -> float:
    if name is XidClass.APPLICATION:
        return NEAR_SECONDS
    # A GPU that is gone stays gone until the driver reports its return.
    return float("inf") if seen.what == "lost" or name is XidClass.LOST else HARDWARE_SECONDS


def _text(seen: Sighting) -> str:
    match seen.what:
        case "xid":
            return xid_text(seen.code or 0)
        case "ecc":
            return f"{seen.code or 1} uncorrectable ECC error{'s' if (seen.code or 1) > 1 else ''} counted"
        case "remap":
            return "a memory row could not be remapped"
        case _:
            return "the driver calls it lost"
