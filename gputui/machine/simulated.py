"""The scenario of simulated GPUs: a small YAML file, which may change while they run.

    gpus: 8                       # how many; these four only count at the start
    memory: 80GiB                 # of each
    name: Simulated GPU
    seed: 1
    foreign:                      # processes of other people
      - {gpu: 7, memory: 20GiB, user: bob, command: python serve.py, load: 40}
    faults:
      - {kind: lost, gpu: 3, at: 20, for: 60}
      - {kind: hang, at: 5, for: 10}

``at`` is in seconds from the time at which the file was written, or from the start of the
simulation if that is later; without it a fault begins at once. ``for`` is its duration; without it,
it lasts until the file changes. Without ``gpu`` it concerns all GPUs.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.machine.gpu_model import (
    FastTick,
    GpuEvent,
    GpuFacts,
    GpuProcess,
    Inventory,
    Occupant,
    ProcessTick,
    SlowTick,
    say,
)
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.xid import xid_text
from gputui.store.series import GpuSample, GpuSlowSample

FaultKind = Literal["lost", "hang", "stale", "xid", "hot", "throttle", "memory_leak", "no_value", "busy"]


class Foreign(Struct, frozen=True):
    """A process of another user."""

    gpu: int | None = 0
    memory_bytes: int = 8 * 2**30
    user: str = "somebody"
    command: str = "python other.py"
    load_percent: float = 50.0


class Fault(Struct, frozen=True):
    """A planned fault; which of the last fields matter depends on the kind."""

    kind: FaultKind
    gpu: int | None = None
    at_seconds: float = 0.0
    for_seconds: float | None = None
    code: int = 31
    celsius: float = 96.0
    reason: str = "hardware slowdown"
    field: str = "temperature_celsius"
    bytes_per_second: int = 2**30
    process: Foreign = Foreign()

    def hits(self, gpu: int) -> bool:
        return self.gpu is None or self.gpu == gpu

    def active(self, elapsed_seconds: float) -> bool:
        return self.at_seconds <= elapsed_seconds and (
            self.for_seconds is None or elapsed_seconds < self.at_seconds + self.for_seconds
        )


class Scenario(Struct, frozen=True):
    """The whole file."""

    gpus: int = 8
    memory_bytes: int = 80 * 2**30
    name: str = "Simulated GPU"
    seed: int = 1
    foreign: tuple[Foreign, ...] = ()
    faults: tuple[Fault, ...] = ()


def load_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises ValueError with every mistake and its line."""
    # Imported here: real GPUs need no YAML parser.
    from gputui.core.yaml_forms.file import read_text
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.machine.scenario_form import read_scenario

    try:
        return read_scenario(read_text(path, "scenario"), path)
    except ProfileError as error:
        raise ValueError("; ".join(map(str, error.problems))) from None


RESERVED_BYTES = 640 * 2**20
_IDLE_WATTS = 62.0
_LIMIT_WATTS = 700.0
_IDLE_CELSIUS = 30.0
_CELSIUS_PER_WATT = 0.066
_INERTIA_SECONDS = 25.0
_FORCED_INERTIA_SECONDS = 3.0
_SLOWDOWN_CELSIUS = 87.0
_SHUTDOWN_CELSIUS = 92.0
_CLOCK_IDLE_MHZ, _CLOCK_MHZ, _CLOCK_HELD_MHZ = 345, 1980, 1200
_MEMORY_CLOCK_MHZ = 2619
_HOT = "hardware thermal"


def noise(seed: int, *what: int) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    return zlib.crc32(repr((seed, *what)).encode()) / 2**32


def simulated_facts(index: int, seed: int, name: str, memory_bytes: int) -> GpuFacts:
    return GpuFacts(
        uuid=f"GPU-{seed & 0xFFFFFFFF:08x}-0000-4000-8000-{index:012x}",
        index=index,
        name=name,
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        memory_total_bytes=memory_bytes,
        power_limit_default_watts=_LIMIT_WATTS,
        power_limit_max_watts=_LIMIT_WATTS,
        temperature_slowdown_celsius=_SLOWDOWN_CELSIUS,
        temperature_shutdown_celsius=_SHUTDOWN_CELSIUS,
        pcie_generation_max=5,
        pcie_width_max=16,
        compute_capability="9.0",
        persistence_mode=True,
        mig_mode=False,
        power_reading="instant",
    )


@dataclass(slots=True)
class SimulatedGpu:
    """``load_percent`` and ``memory_bytes`` come from its processes, ``forced_celsius`` and
    ``reasons`` from faults."""

    facts: GpuFacts
    seed: int
    temperature: float = _IDLE_CELSIUS
    power: float = _IDLE_WATTS
    utilization: float = 0.0
    energy_joules: float = 0.0

    def advance(
        self,
        at: float,
        seconds: float,
        load_percent: float,
        memory_bytes: int,
        forced_celsius: float | None = None,
        reasons: tuple[str, ...] = (),
    ) -> GpuSample:
        """The GPU ``seconds`` after the previous call, at UTC unix seconds ``at``."""
        index = self.facts.index
        wobble = noise(self.seed, index, int(at)) - 0.5
        self.utilization = float(round(min(100.0, max(0.0, load_percent + 6.0 * wobble)))) if load_percent else 0.0
        held = bool(reasons) or self.temperature >= _SLOWDOWN_CELSIUS
        share = self.utilization / 100.0 * (0.55 if held else 0.88 + 0.04 * wobble)
        self.power = _IDLE_WATTS + 1.5 * index % 7 + (_LIMIT_WATTS - _IDLE_WATTS) * share
        self.energy_joules += self.power * seconds
        if forced_celsius is None:
            self._approach(_IDLE_CELSIUS + index % 4 + _CELSIUS_PER_WATT * self.power, _INERTIA_SECONDS, seconds)
        else:
            self._approach(forced_celsius, _FORCED_INERTIA_SECONDS, seconds)
        if self.temperature >= _SLOWDOWN_CELSIUS and _HOT not in reasons:
            reasons = (*reasons, _HOT)
        busy = self.utilization > 0
        return GpuSample(
            uuid=self.facts.uuid,
            utilization_percent=self.utilization,
            memory_utilization_percent=float(round(self.utilization * 0.62)),
            memory_used_bytes=memory_bytes,
            memory_reserved_bytes=RESERVED_BYTES,
            memory_total_bytes=self.facts.memory_total_bytes,
            temperature_celsius=float(round(self.temperature)),
            power_watts=round(self.power, 1),
            power_limit_watts=_LIMIT_WATTS,
            sm_clock_mhz=(_CLOCK_HELD_MHZ if reasons else _CLOCK_MHZ) if busy else _CLOCK_IDLE_MHZ,
            memory_clock_mhz=_MEMORY_CLOCK_MHZ,
            performance_state=0 if busy else 8,
            throttle_reasons=reasons,
        )

    def slow(self, at: float) -> GpuSlowSample:
        """The slow tier. Such boards have no fan of their own, so its speed is unknown."""
        traffic = self.utilization / 100.0 * (0.9 + 0.2 * noise(self.seed, self.facts.index, int(at), 1))
        return GpuSlowSample(
            uuid=self.facts.uuid,
            memory_temperature_celsius=float(round(self.temperature + 7)),
            pcie_generation=5,
            pcie_width=16,
            pcie_received_bytes_per_second=round(1.2e9 * traffic, 0),
            pcie_sent_bytes_per_second=round(0.3e9 * traffic, 0),
            nvlink_received_bytes_per_second=round(40e9 * traffic, 0),
            nvlink_sent_bytes_per_second=round(40e9 * traffic, 0),
            ecc_corrected=0,
            ecc_uncorrected=0,
            row_remap_pending=False,
            row_remap_failed=False,
            energy_joules=round(self.energy_joules, 3),
        )

    def _approach(self, target: float, inertia_seconds: float, seconds: float) -> None:
        self.temperature += (target - self.temperature) * (1.0 - math.exp(-seconds / inertia_seconds))


_LOAD_PERCENT = 95.0
_WARM_UP_SECONDS = 4.0
_FOREIGN_PIDS_FROM = 4_190_000  # just below the kernel's largest PID, so unused
_HANG_STEP_SECONDS = 3600.0

S = TypeVar("S", GpuSample, GpuSlowSample)


class SimulatedSource:
    """The source of ``--demo``. ``epoch`` is the start of the simulation (UTC unix seconds), which
    restarts of the sampler do not change. ``sleep`` implements a planned hang. Raises OSError, and
    ValueError for an invalid scenario."""

    def __init__(
        self,
        scenario_path: Path | None = None,
        gpu_count: int | None = None,
        epoch: float | None = None,
        *,
        reader: GpuProcessReader | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = scenario_path
        self._epoch = time.time() if epoch is None else epoch
        self._reader = reader or GpuProcessReader(is_first_namespace=True)
        self._sleep = sleep
        self._scenario = Scenario()
        self._begun_at = self._epoch
        self._reported: set[tuple[int, int]] = set()
        self._stamp = _stamp(scenario_path)
        if scenario_path is not None and self._stamp is not None:
            self._adopt(load_scenario(scenario_path))
        scenario = self._scenario
        self._gpus = [
            SimulatedGpu(simulated_facts(index, scenario.seed, scenario.name, scenario.memory_bytes), scenario.seed)
            for index in range(scenario.gpus if gpu_count is None else gpu_count)
        ]
        self._lost: set[int] = set()
        self._occupants: dict[tuple[str, int], tuple[Occupant, float | None]] = {}
        self._advanced_at: float | None = None
        self._last: FastTick | None = None

    def inventory(self, at: float) -> Inventory:
        return Inventory(
            at=at,
            source="simulated",
            driver_version="simulated",
            gpus=tuple(gpu.facts for gpu in self._gpus),
            problem=None if self._gpus else "The simulation has no GPUs. Add some with --gpus 8",
        )

    def recheck_after_seconds(self) -> float | None:
        return None

    def fast(self, at: float) -> FastTick:
        self._reread()
        for fault in self._active(at, "hang"):
            self._hang(fault, at)
        if self._last is not None and any(self._active(at, "stale")):
            return self._last
        seconds = 0.0 if self._advanced_at is None else max(0.0, at - self._advanced_at)
        self._advanced_at = at
        self._last = FastTick(at=at, gpus=tuple(self._sample(gpu, at, seconds) for gpu in self._gpus))
        return self._last

    def slow(self, at: float) -> SlowTick:
        answering = [gpu for gpu in self._gpus if not any(self._active(at, "lost", gpu.facts.index))]
        return SlowTick(at=at, gpus=tuple(self._hidden(gpu.slow(at), gpu.facts.index, at) for gpu in answering))

    def processes(self, at: float) -> ProcessTick:
        listed: dict[str, tuple[GpuProcess, ...] | None] = {}
        for gpu in self._gpus:
            lost = any(self._active(at, "lost", gpu.facts.index))
            listed[gpu.facts.uuid] = None if lost else self._listed(gpu, at)
        return ProcessTick(at=at, processes=listed)

    def link_step(self) -> None:
        """Nothing to do: the slow tier has its own values."""

    def events(self, at: float) -> list[GpuEvent]:
        found: list[GpuEvent] = []
        for gpu in self._gpus:
            uuid, index = gpu.facts.uuid, gpu.facts.index
            for fault in self._active(at, "xid", index):
                if (id(fault), index) not in self._reported:
                    self._reported.add((id(fault), index))
                    found.append(GpuEvent(at=at, uuid=uuid, event="xid", code=fault.code, text=xid_text(fault.code)))
            if any(self._active(at, "lost", index)) != (index in self._lost):
                self._lost ^= {index}
                event = GpuEvent(at=at, uuid=uuid, event="lost" if index in self._lost else "returned")
                found.append(replace(event, text="the scenario says so"))
        return found

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Replace the occupants. Those that stay keep their start."""
        before = self._occupants
        self._occupants = {}
        for occupant in occupants:
            key = (occupant.uuid, occupant.pid)
            self._occupants[key] = (occupant, before[key][1] if key in before else None)

    def close(self) -> None:
        """Nothing is open."""

    def _sample(self, gpu: SimulatedGpu, at: float, seconds: float) -> GpuSample:
        index, uuid = gpu.facts.index, gpu.facts.uuid
        if any(self._active(at, "lost", index)):
            return GpuSample(uuid=uuid, state="lost", detail="the scenario lost this GPU")
        listed = self._listed(gpu, at)
        sample = gpu.advance(
            at,
            seconds,
            load_percent=max((float(process.sm_percent or 0) for process in listed), default=0.0),
            memory_bytes=sum(process.memory_bytes or 0 for process in listed),
            forced_celsius=max((fault.celsius for fault in self._active(at, "hot", index)), default=None),
            reasons=tuple(fault.reason for fault in self._active(at, "throttle", index)),
        )
        return self._hidden(sample, index, at)

    def _listed(self, gpu: SimulatedGpu, at: float) -> tuple[GpuProcess, ...]:
        """The processes on a GPU, those of runs first. Together they hold at most its memory."""
        index = gpu.facts.index
        processes = [*self._occupying(gpu, at), *self._foreign_on(index, at)]
        for fault in self._active(at, "memory_leak", index):
            if processes:
                leaked = int(fault.bytes_per_second * (at - self._begun_at - fault.at_seconds))
                processes[0] = replace(processes[0], memory_bytes=(processes[0].memory_bytes or 0) + leaked)
        left = (gpu.facts.memory_total_bytes or 0) - RESERVED_BYTES
        fitting = []
        for process in processes:
            held = min(process.memory_bytes or 0, left)
            fitting.append(replace(process, memory_bytes=held))
            left -= held
        return tuple(fitting)

    def _occupying(self, gpu: SimulatedGpu, at: float) -> Iterator[GpuProcess]:
        """The processes of runs. Load and memory grow while one warms up."""
        for key, (occupant, since) in list(self._occupants.items()):
            if key[0] != gpu.facts.uuid:
                continue
            if since is None:
                since = at
                self._occupants[key] = (occupant, at)
            yield self._ours(gpu, occupant, min(1.0, max(0.0, at - since) / _WARM_UP_SECONDS))

    def _foreign_on(self, index: int, at: float) -> Iterator[GpuProcess]:
        """Processes of the scenario: permanent ones, and those of active ``busy`` faults."""
        for number, foreign in enumerate(self._scenario.foreign):
            if foreign.gpu is None or foreign.gpu == index:
                yield _foreign(foreign, _FOREIGN_PIDS_FROM + number)
        for number, fault in enumerate(self._scenario.faults):
            if fault.kind == "busy" and fault.hits(index) and fault.active(at - self._begun_at):
                yield _foreign(fault.process, _FOREIGN_PIDS_FROM + 1000 + number)

    def _ours(self, gpu: SimulatedGpu, occupant: Occupant, warm: float) -> GpuProcess:
        who = self._reader.identify(occupant.pid)
        memory = occupant.memory_bytes
        if memory is None:
            share = 0.3 + 0.4 * noise(gpu.seed, *occupant.run_id.encode())
            memory = int((gpu.facts.memory_total_bytes or 0) * share)
        return GpuProcess(
            pid=occupant.pid,
            memory_bytes=int(memory * warm),
            user=who.user if who else None,
            command=who.command if who else None,
            start_ticks=who.start_ticks if who else None,
            sm_percent=round(_LOAD_PERCENT * warm),
        )

    def _hidden(self, sample: S, index: int, at: float) -> S:
        """The sample without the values that a ``no_value`` fault hides."""
        names = {fault.field for fault in self._active(at, "no_value", index)}
        gone: dict[str, Any] = {name: None for name in names if hasattr(sample, name)}
        return replace(sample, **gone)

    def _active(self, at: float, kind: FaultKind, gpu: int | None = None) -> Iterator[Fault]:
        elapsed = at - self._begun_at
        for fault in self._scenario.faults:
            if fault.kind == kind and fault.active(elapsed) and (gpu is None or fault.hits(gpu)):
                yield fault

    def _hang(self, fault: Fault, at: float) -> None:
        """Block, as a driver would, until the fault is over."""
        if fault.for_seconds is not None:
            self._sleep(self._begun_at + fault.at_seconds + fault.for_seconds - at)
            return
        while True:
            self._sleep(_HANG_STEP_SECONDS)

    def _adopt(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._reported.clear()
        self._begun_at = max(self._epoch, self._stamp[0] / 1e9) if self._stamp else self._epoch

    def _reread(self) -> None:
        """Load a changed scenario. An invalid one is reported, and the old one stays."""
        stamp = _stamp(self._path)
        if stamp == self._stamp or self._path is None:
            return
        self._stamp = stamp
        try:
            self._adopt(load_scenario(self._path) if stamp else Scenario())
        except (OSError, ValueError) as error:
            say(f"scenario not taken over: {error}")


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """(mtime in nanoseconds, size) of a file; None without one."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found else None


def _foreign(foreign: Foreign, pid: int) -> GpuProcess:
    return GpuProcess(
        pid=pid,
        memory_bytes=foreign.memory_bytes,
        user=foreign.user,
        command=foreign.command,
        sm_percent=round(foreign.load_percent),
    )
