"""The driver's reports about the GPUs of an attempt: which of them may explain its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from gputui.machine.xid import FALLEN_OFF_THE_BUS, FIRMWARE_SILENT, XidClass, xid_class, xid_text
from gputui.recovery.evidence import ObservedCause

# A kernel error ends its program at once; torchrun then gives the other ranks up to 30 s.
NEAR_SECONDS = 90.0
# A broken link or memory may hang a collective; NCCL gives up after 10 min by default, and torchrun
# takes 30 s more.
HARDWARE_SECONDS = 900.0

_KINDS = {
    XidClass.APPLICATION: "illegal_access",
    XidClass.CONTAINED: "ecc",
    XidClass.MEMORY: "ecc",
    XidClass.LINK: "nvlink_error",
    XidClass.LOST: "gpu_lost",
}


class Sighting(Struct, frozen=True):
    """One report about a GPU.

    Attributes:
        at: UTC unix seconds.
        what: an event of the driver (``xid``, ``lost``, ``returned``), or a counter that rose: ``ecc`` (uncorrected
            errors) or ``remap`` (a row could not be remapped).
        code: of an XID, or by how many errors the counter rose.
    """

    at: float
    uuid: str
    what: Literal["xid", "lost", "returned", "ecc", "remap"]
    code: int | None = None

    @property
    def xid_class(self) -> XidClass | None:
        if self.what == "xid":
            return xid_class(self.code)
        return None

    @property
    def kind(self) -> str | None:
        """The kind of incident that it may explain; None for none."""
        if self.what == "lost":
            return "gpu_lost"
        if self.xid_class is None:
            return "ecc"
        return _KINDS.get(self.xid_class)

    @property
    def is_gone(self) -> bool:
        """True if the GPU stays gone until the driver reports its return."""
        return self.what == "lost" or self.xid_class is XidClass.LOST

    @property
    def may_hang_calls(self) -> bool:
        """True if calls to the driver may hang from now on. After other XIDs of `XidClass.LOST`
        they fail, and the attempt ends by itself."""
        is_silent = self.what == "xid" and self.code in FIRMWARE_SILENT | {FALLEN_OFF_THE_BUS}
        return self.what == "lost" or is_silent

    @property
    def counts_for_seconds(self) -> float:
        if self.xid_class is XidClass.APPLICATION:
            return NEAR_SECONDS
        return HARDWARE_SECONDS

    @property
    def text(self) -> str:
        errors = self.code or 1
        plural = "s" if errors > 1 else ""
        texts = {
            "xid": xid_text(self.code or 0),
            "ecc": f"{errors} uncorrectable ECC error{plural} counted",
            "remap": "a memory row could not be remapped",
        }
        return texts.get(self.what, "the driver calls it lost")


def observations(
    sightings: Sequence[Sighting], gpus: Sequence[str], nproc: int, *, ended_at: float
) -> tuple[ObservedCause, ...]:
    """Observations that may explain the end of an attempt, earliest first, one per GPU and kind.

    Not every report is a cause: a run survives many, and others are written because it ended. So
    each kind of report counts only for as long before the end as its effect may take.

    Args:
        gpus: its UUIDs in the order of local ranks.
        nproc: the number of its ranks.
        ended_at: UTC unix seconds.
    """
    observed: dict[tuple[str, str], ObservedCause] = {}
    for sighting in sorted(sightings, key=lambda event: event.at):
        if sighting.uuid not in gpus:
            continue
        if sighting.what == "returned":
            # The GPU was back before the end, so the run survived that.
            observed.pop((sighting.uuid, "lost"), None)
            continue
        kind = sighting.kind
        age = ended_at - sighting.at
        if kind is None or (age > sighting.counts_for_seconds and not sighting.is_gone):
            continue
        position = gpus.index(sighting.uuid)
        rank = position if nproc == len(gpus) else None
        cause = ObservedCause(
            kind=kind,
            at=sighting.at,
            text=f"{sighting.text}; GPU {position} of the run, {sighting.uuid}",
            rank=rank,
            gpu=sighting.uuid,
            contained=sighting.xid_class in (XidClass.APPLICATION, XidClass.CONTAINED),
            ended_run=False,
            distant=kind != "gpu_lost" and age > NEAR_SECONDS,
        )
        # A GPU may be lost by several kinds of errors.
        what = "lost" if sighting.what == "lost" else kind
        key = (sighting.uuid, what)
        before = observed.get(key)
        if before is None or (before.contained and not cause.contained):
            observed[key] = cause
    return tuple(sorted(observed.values(), key=lambda event: event.at))
