"""What a GPU is at one moment: plain values that cross the pipe from the sampler and go into the store.

``None`` means that the driver did not give the value; it is never replaced by 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gputui.store.series import GpuSample as GpuSample
from gputui.store.series import GpuSlowSample as GpuSlowSample
from gputui.store.series import GpuState as GpuState


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What does not change while the driver is loaded; read once per session."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    power_limit_default_watts: float | None = None
    power_limit_max_watts: float | None = None
    temperature_slowdown_celsius: float | None = None
    temperature_shutdown_celsius: float | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    compute_capability: str | None = None
    persistence_mode: bool | None = None
    mig_mode: bool | None = None
    power_reading: Literal["instant", "driver"] | None = None
    """Which reading ``GpuSample.power_watts`` is: the instantaneous field, or the driver's own (a one second mean
    on Ampere and later, but for GA100)."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that holds memory of one GPU. ``start_ticks`` ties the PID to this machine's procfs; it is
    None when the PID is not visible here (another PID namespace), and such a PID is never signalled."""

    pid: int
    memory_bytes: int | None = None
    kind: Literal["C", "G", "M"] = "C"
    user: str | None = None
    command: str | None = None
    start_ticks: int | None = None
    sm_percent: int | None = None


# What the sampler process writes, one JSON object a line; `kind` is the tag.


@dataclass(frozen=True, slots=True)
class Inventory:
    """Which GPUs there are, sent at the start and whenever the set changes. ``problem`` is one line a person
    can act on: why there are no GPUs (no driver, version mismatch, ...), or which GPU of the machine is not among
    ``gpus`` and why. A GPU that was seen once stays in ``gpus`` after it is lost."""

    at: float
    source: Literal["nvml", "simulated"]
    driver_version: str | None
    gpus: tuple[GpuFacts, ...]
    problem: str | None = None
    kind: Literal["inventory"] = "inventory"


@dataclass(frozen=True, slots=True)
class FastTick:
    """One tick of the fast tier over all GPUs. ``at`` is UTC unix seconds."""

    at: float
    gpus: tuple[GpuSample, ...]
    kind: Literal["fast"] = "fast"


@dataclass(frozen=True, slots=True)
class SlowTick:
    """One tick of the slow tier over all GPUs."""

    at: float
    gpus: tuple[GpuSlowSample, ...]
    kind: Literal["slow"] = "slow"


@dataclass(frozen=True, slots=True)
class ProcessTick:
    """The processes of every GPU: uuid → processes; None if the driver gave no (believable) list."""

    at: float
    processes: dict[str, tuple[GpuProcess, ...] | None] = field(default_factory=dict)
    kind: Literal["processes"] = "processes"


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something the driver reported by itself, such as an XID."""

    at: float
    uuid: str
    event: Literal["xid", "lost", "returned"]
    code: int | None = None
    text: str | None = None
    kind: Literal["event"] = "event"


@dataclass(frozen=True, slots=True)
class Occupant:
    """Sent down to the sampler: a process of ours that works on a GPU. Only the simulated source uses it: its GPUs
    follow the load of the runs launched on them. ``memory_bytes`` is what it holds there; None lets the source choose
    an amount that stays the same for the run."""

    uuid: str
    pid: int
    run_id: str
    rank: int | None = None
    memory_bytes: int | None = None
