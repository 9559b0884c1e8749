"""Simulated GPUs for the demo and for tests. Their load follows the runs launched on them, and a scenario plans faults.
The same seed, times and occupants give the same values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from gputui.machine.gpu_model import (
    FastTick,
    GpuEvent,
    GpuProcess,
    GpuSample,
    GpuSlowSample,
    Inventory,
    Occupant,
    ProcessTick,
    SlowTick,
)
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.gpu_source import say
from gputui.machine.scenario import Fault, FaultKind, Foreign, Scenario, load_scenario
from gputui.machine.simulated_gpu import RESERVED_BYTES, SimulatedGpu, noise, simulated_facts
from gputui.machine.xid import xid_text

_LOAD_PERCENT = 95.0
_WARM_UP_SECONDS = 4.0
_FOREIGN_PIDS_FROM = 4_190_000  # just below the kernel's largest PID, so unused
_HANG_STEP_SECONDS = 3600.0

S = TypeVar("S", GpuSample, GpuSlowSample)


class SimulatedSource:
    """The source of ``--demo``. ``epoch`` is the start of the simulation (UTC unix seconds), which restarts of the
    sampler do not change. ``sleep`` implements a planned hang. Raises OSError, and ValueError for an invalid
    scenario."""

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
        self._reader = reader or GpuProcessReader(first_namespace=True)
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
