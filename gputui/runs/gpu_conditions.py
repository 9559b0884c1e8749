"""Whether a GPU is free, and how well it suits a run: one answer for the scheduler, the checks and the lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from gputui.core.text import clean
from gputui.machine.gpu_model import GpuFacts, unseen_use
from gputui.machine.throttle import HARMFUL
from gputui.runs.process_words import script_of
from gputui.runs.scheduler import GpuAvailability
from gputui.store.hardware import GpuView
from gputui.store.series import GpuProcess, GpuSample, GpuSlowSample

DESKTOP_BYTES = 2 << 30
"""Graphics processes that hold no more of a GPU's memory together are a desktop, which occupies no GPU."""

HOT_CELSIUS = 80.0  # a few degrees below the slowdown of most GPUs
# Cooler than this, a degree more or less says nothing.
_COOL_CELSIUS = 50.0
_BAND_CELSIUS = 15.0  # smaller differences are chance, and would shuffle the GPUs

EXCLUDED = "is not used here (gpus.yaml)"


class GpuCondition(Struct, frozen=True):
    """A GPU at one moment, as far as the agent or a view knows it.

    Attributes:
        sample: None if it has not been read yet.
        slow: the values that are read less often.
        processes: those on it that belong to no run of this home.
        has_processes: any process is on it.
        holders: the runs that lease it.
        shared_by: the study whose trials share it, "" for runs of none; None if nobody shares it.
        shares: the part of it that each run takes that shares it, by run.
        quarantine: the reason of one.
        alert: the title of an active one.
        locked_by: another home or user that holds its lock, in words.
        is_excluded: ``gpus.yaml`` leaves it to others.
        is_lingering: a process of an ended attempt is still on it.
    """

    facts: GpuFacts
    sample: GpuSample | None = None
    slow: GpuSlowSample | None = None
    processes: Sequence[GpuProcess] = ()
    has_processes: bool = False
    holders: tuple[str, ...] = ()
    shared_by: str | None = None
    shares: Mapping[str, float] = msgspec.field(default_factory=dict)
    quarantine: str | None = None
    alert: str | None = None
    locked_by: str | None = None
    is_excluded: bool = False
    is_lingering: bool = False

    @property
    def total_bytes(self) -> int | None:
        total = None if self.sample is None else self.sample.memory_total_bytes
        return total or self.facts.memory_total_bytes

    @property
    def free_bytes(self) -> int | None:
        used = None if self.sample is None else self.sample.memory_used_bytes
        total = self.total_bytes
        if total is None or used is None:
            return None
        return max(0, total - used)

    @property
    def broken(self) -> str | None:
        """The reason why nothing can run on it until somebody allows, repairs or replaces it, or None."""
        if self.is_excluded:
            return EXCLUDED
        if self.quarantine is not None:
            return f"is in quarantine ({self.quarantine})"
        if self.sample is not None and self.sample.state != "ok":
            is_lost = self.sample.state == "lost"
            if is_lost:
                return "is lost"
            return f"answers with an error ({self.sample.detail or 'unknown'})"
        if self.facts.mig_mode:
            return "is in MIG mode"
        if self.slow is not None and self.slow.row_remap_failed:
            return "has memory that could not be remapped"
        return None

    @property
    def occupied(self) -> str | None:
        """The reason why nobody but its holders can start on it now, or None."""
        if self.sample is None:
            return "has not been read yet"
        if self.is_lingering:
            return "is held by a process of the previous attempt"
        if computing := [process for process in self.processes if process.kind != "G"]:
            return f"is used by {users_of(computing)}"
        if self.locked_by is not None:
            return f"is held by {self.locked_by}"
        if not self.holders and not self.has_processes:
            used = None if self.facts.memory_is_unified else self.sample.memory_used_bytes
            return unseen_use(used, self.sample.utilization_percent)
        return None

    @property
    def graphics(self) -> list[GpuProcess]:
        return [process for process in self.processes if process.kind == "G"]

    @property
    def desktop(self) -> str | None:
        """The reason why only a run that accepts a desktop can start on it, or None."""
        graphics = self.graphics
        held_bytes = sum(process.memory_bytes or 0 for process in graphics)
        if held_bytes > DESKTOP_BYTES:
            return f"is used by {users_of(graphics)}"
        return None

    @property
    def is_free(self) -> bool:
        return not self.holders and not (self.broken or self.occupied or self.desktop)

    @property
    def defect(self) -> str | None:
        """A fault of the hardware that does not prevent work, or None."""
        if self.slow is not None and self.slow.row_remap_pending:
            return "waits for a reset to remap memory"
        if self.slow is not None and self.slow.ecc_uncorrected:
            return f"has had {self.slow.ecc_uncorrected} uncorrectable memory errors"
        return None

    @property
    def warning(self) -> str | None:
        """The reason to take another GPU if there is one: a defect, an alert, heat; or None."""
        if self.defect is not None:
            return self.defect
        if self.alert is not None:
            return f"has an active alert: {self.alert}"
        if self.sample is None:
            return None
        if harmful := [reason for reason in self.sample.throttle_reasons or () if reason in HARMFUL]:
            return f"is throttled ({', '.join(harmful)})"
        celsius = self.sample.temperature_celsius
        if celsius is not None and celsius >= HOT_CELSIUS:
            return f"is at {celsius:.0f} °C"
        return None

    @property
    def preference(self) -> tuple[int, ...]:
        """The order in which runs get it, smaller first: empty GPUs, then healthy, then cool ones."""
        celsius = None if self.sample is None else self.sample.temperature_celsius
        band = 0 if celsius is None else max(0, 1 + int((celsius - _COOL_CELSIUS) // _BAND_CELSIUS))
        return (bool(self.processes), self.warning is not None, band)

    def availability(self) -> GpuAvailability:
        """The GPU as the scheduler sees it."""
        broken = self.broken
        return GpuAvailability(
            self.facts.uuid,
            self.facts.index,
            self.holders,
            broken or self.occupied,
            free_bytes=self.free_bytes,
            # Only a person can end these states.
            out_of_service=broken is not None,
            is_settling=self.quarantine is None and self.sample is None,
            total_bytes=self.total_bytes,
            shared_by=self.shared_by,
            shares=self.shares,
            desktop=self.desktop,
            preference=self.preference,
        )


def condition_of(gpu: GpuView, quarantine: str | None = None, alert: str | None = None) -> GpuCondition:
    """The condition of a GPU as the agent stored it."""
    foreign = tuple(process for process in gpu.processes or () if process.run_id is None)
    state = gpu.state if gpu.state in ("lost", "error") else "ok"
    return GpuCondition(
        gpu.facts,
        GpuSample(
            gpu.uuid,
            state=state,
            detail=gpu.detail,
            utilization_percent=gpu.utilization_percent,
            memory_used_bytes=gpu.memory_used_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
            temperature_celsius=gpu.temperature_celsius,
            throttle_reasons=gpu.throttle_reasons,
        ),
        gpu.slow,
        foreign,
        has_processes=bool(gpu.processes),
        holders=gpu.run_ids,
        shared_by=gpu.shared_by,
        shares=gpu.shares,
        quarantine=quarantine,
        alert=alert,
        locked_by=gpu.locked_by,
        is_excluded=gpu.is_excluded,
    )


def users_of(processes: Sequence[GpuProcess]) -> str:
    """``Xorg of root and 2 more``: the process that came first, as harmless text."""
    first = min(processes, key=lambda process: process.pid)
    program = script_of(clean(first.command or "")).partition(" ")[0] or f"process {first.pid}"
    user = f" of {clean(first.user)}" if first.user else ""
    if len(processes) == 1:
        return f"{program}{user}"
    return f"{program}{user} and {len(processes) - 1} more"
