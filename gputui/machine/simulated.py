"""Simulated GPUs, whose load follows the runs on them, with the faults of a scenario."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
)
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.scenario import Fault, PlayedScenario
from gputui.machine.xid import xid_text
from gputui.store.series import GpuSample, GpuSlowSample

RESERVED_BYTES = 640 * 2**20
# Values as an H100 SXM shows them.
_IDLE_WATTS = 62.0
_LIMIT_WATTS = 700.0
_IDLE_CELSIUS = 30.0
_CELSIUS_PER_WATT = 0.066
_POWER_INERTIA_SECONDS = 3.0
_INERTIA_SECONDS = 25.0
_FORCED_INERTIA_SECONDS = 3.0
_SLOWDOWN_CELSIUS = 87.0
_SHUTDOWN_CELSIUS = 92.0
_CLOCK_IDLE_MHZ = 345
_CLOCK_MHZ = 1980
_CLOCK_HELD_MHZ = 1200
_MEMORY_CLOCK_MHZ = 2619
_HOT = "hardware thermal"
_LOAD_PERCENT = 95.0  # of a training that waits for its data now and then
_WARM_UP_SECONDS = 4.0  # short, for a demonstration; a real training takes a minute
_COOLER_WHEN_IDLE = 8.0  # so that a hot GPU follows its load, too
_FOREIGN_PIDS_FROM = 4_190_000  # just below the kernel's largest PID, so unused
_HANG_STEP_SECONDS = 3600.0  # a sleep takes no infinite time


def noise(seed: int, *what: int) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    return zlib.crc32(repr((seed, *what)).encode()) / 2**32


class TrainingLoad(NamedTuple):
    """The load of one GPU of a training, a function of time alone: waves of its own, and the pauses of its run."""

    run_seed: int
    gpu: int

    def is_validating(self, at: float) -> bool:
        """Whether the run's ranks wait for a validation or a checkpoint."""
        every = 65.0 + 45.0 * noise(self.run_seed, 1)
        pause, into = divmod(at + every * noise(self.run_seed, 2), every)
        return into < 7.0 + 6.0 * noise(self.run_seed, int(pause))

    def percent(self, at: float) -> float:
        fast = self._wave(at, 19.0, 3)
        if self.is_validating(at):
            return 58.0 + 4.0 * fast
        usual = 77.0 + 9.0 * noise(self.run_seed, 6)
        waves = 4.0 * fast + 6.0 * self._wave(at, 67.0, 4) + 10.0 * self._wave(at, 241.0, 5)
        return min(100.0, usual + waves)

    def memory_share(self, at: float, since: float) -> float:
        """The share of its most memory: the context, then the weights, then the steps, more in a validation."""
        if at < since + _WARM_UP_SECONDS / 2:
            return 0.02
        if at < since + _WARM_UP_SECONDS:
            return 0.4
        if self.is_validating(at):
            return 1.0
        return 0.86

    def _wave(self, at: float, seconds: float, number: int) -> float:
        period = seconds * (0.8 + 0.4 * noise(self.run_seed, self.gpu, number))
        return math.sin(math.tau * (at / period + noise(self.run_seed, self.gpu, number, 1)))


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


class SimulatedLoad(NamedTuple):
    """What is done to a simulated GPU until its next sample.

    Attributes:
        percent: The utilization by its processes.
        memory_bytes: The memory that its processes hold.
        loaded_seconds: The age of a load that was not there before: more than since the last sample, where the source
            began later.
        forced_celsius: The temperature that a fault sets, None without such a fault.
        reasons: The throttle reasons of faults.
    """

    percent: float
    memory_bytes: int
    loaded_seconds: float = 0.0
    forced_celsius: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class SimulatedGpu:
    """A simulated GPU and its state between samples.

    Attributes:
        seed: The seed of the scenario's noise.
        temperature: In degrees Celsius.
        power: In watts.
        utilization: In percent.
    """

    facts: GpuFacts
    seed: int
    temperature: float = _IDLE_CELSIUS
    power: float = _IDLE_WATTS
    utilization: float = 0.0
    energy_joules: float = 0.0

    def advance(self, at: float, seconds: float, load: SimulatedLoad) -> GpuSample:
        """The GPU ``seconds`` after the previous call, at UTC unix seconds ``at``."""
        reasons = load.reasons
        index = self.facts.index
        wobble = noise(self.seed, index, int(at)) - 0.5
        self.utilization = 0.0
        if load.percent:
            self.utilization = float(round(min(100.0, max(0.0, load.percent + 6.0 * wobble))))
        full_share = 0.88 + 0.04 * wobble
        if reasons or self.temperature >= _SLOWDOWN_CELSIUS:
            full_share = 0.55
        share = self.utilization / 100.0 * full_share
        target = _IDLE_WATTS + 1.5 * index % 7 + (_LIMIT_WATTS - _IDLE_WATTS) * share
        if math.isfinite(seconds):
            self.energy_joules += self.power * seconds
        seconds = max(seconds, load.loaded_seconds)
        self.power = _approached(self.power, target, _POWER_INERTIA_SECONDS, seconds)
        target = _IDLE_CELSIUS + index % 4 + _CELSIUS_PER_WATT * self.power
        inertia_seconds = _INERTIA_SECONDS
        if load.forced_celsius is not None:
            target = load.forced_celsius
            inertia_seconds = _FORCED_INERTIA_SECONDS
        self.temperature = _approached(self.temperature, target, inertia_seconds, seconds)
        if self.temperature >= _SLOWDOWN_CELSIUS and _HOT not in reasons:
            reasons = (*reasons, _HOT)
        clock_mhz = _CLOCK_IDLE_MHZ
        performance_state = 8
        if self.utilization > 0:
            clock_mhz = _CLOCK_MHZ
            performance_state = 0
            if reasons:
                clock_mhz = _CLOCK_HELD_MHZ
        return GpuSample(
            uuid=self.facts.uuid,
            utilization_percent=self.utilization,
            memory_utilization_percent=float(round(self.utilization * 0.62)),
            memory_used_bytes=load.memory_bytes,
            memory_reserved_bytes=RESERVED_BYTES,
            memory_total_bytes=self.facts.memory_total_bytes,
            temperature_celsius=float(round(self.temperature)),
            power_watts=round(self.power, 1),
            power_limit_watts=_LIMIT_WATTS,
            sm_clock_mhz=clock_mhz,
            memory_clock_mhz=_MEMORY_CLOCK_MHZ,
            performance_state=performance_state,
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


def _approached(value: float, target: float, inertia_seconds: float, seconds: float) -> float:
    return value + (target - value) * (1.0 - math.exp(-seconds / inertia_seconds))


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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if epoch is None:
            epoch = time.time()
        self._script = PlayedScenario(scenario_path, epoch)
        self._reader = GpuProcessReader(is_first_namespace=True)
        self._sleep = sleep
        self._reported: set[tuple[int, int]] = set()
        scenario = self._script.scenario
        if gpu_count is None:
            gpu_count = scenario.gpus
        self._gpus = [
            SimulatedGpu(simulated_facts(index, scenario.seed, scenario.name, scenario.memory), scenario.seed)
            for index in range(gpu_count)
        ]
        self._lost: set[int] = set()
        self._occupants: tuple[Occupant, ...] = ()
        self._loaded_since: dict[str, float] = {}
        self._advanced_at: float | None = None

    def inventory(self, at: float) -> Inventory:
        problem = None if self._gpus else "The simulation has no GPUs. Add some with --gpus 8"
        return Inventory(
            at=at,
            source="simulated",
            driver_version="simulated",
            gpus=tuple(gpu.facts for gpu in self._gpus),
            problem=problem,
        )

    def recheck_after_seconds(self) -> float | None:
        return None

    def fast(self, at: float) -> FastTick:
        if self._script.has_changed():
            self._reported.clear()
        for fault in self._script.active(at, "hang"):
            self._hang(fault, at)
        # At the first sample, what is there has been there for long.
        seconds = math.inf
        if self._advanced_at is not None:
            seconds = max(0.0, at - self._advanced_at)
        self._advanced_at = at
        return FastTick(at=at, gpus=tuple(self._sample(gpu, at, seconds) for gpu in self._gpus))

    def slow(self, at: float) -> SlowTick:
        return SlowTick(at=at, gpus=tuple(gpu.slow(at) for gpu in self._gpus if not self._is_lost(gpu, at)))

    def processes(self, at: float) -> ProcessTick:
        by_uuid: dict[str, tuple[GpuProcess, ...] | None] = {}
        for gpu in self._gpus:
            by_uuid[gpu.facts.uuid] = None
            if not self._is_lost(gpu, at):
                by_uuid[gpu.facts.uuid] = self._listed(gpu, at)
        return ProcessTick(at=at, processes=by_uuid)

    def link_step(self) -> None:
        """Nothing to do: the slow tier has its own values."""

    def events(self, at: float) -> list[GpuEvent]:
        events: list[GpuEvent] = []
        for gpu in self._gpus:
            uuid = gpu.facts.uuid
            index = gpu.facts.index
            for fault in self._script.active(at, "xid", index):
                if (id(fault), index) not in self._reported:
                    self._reported.add((id(fault), index))
                    events.append(GpuEvent(at=at, uuid=uuid, event="xid", code=fault.code, text=xid_text(fault.code)))
            if self._is_lost(gpu, at) != (index in self._lost):
                self._lost ^= {index}
                event = GpuEvent(at=at, uuid=uuid, event="returned", text="the scenario says so")
                if index in self._lost:
                    event = replace(event, event="lost")
                events.append(event)
        return events

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Replace the occupants."""
        before = {(occupant.uuid, occupant.pid) for occupant in self._occupants}
        new = [occupant for occupant in occupants if (occupant.uuid, occupant.pid) not in before]
        self._loaded_since |= {occupant.uuid: occupant.since for occupant in new}
        self._occupants = tuple(occupants)

    def close(self) -> None:
        """Nothing is open."""

    def _sample(self, gpu: SimulatedGpu, at: float, seconds: float) -> GpuSample:
        index = gpu.facts.index
        if self._is_lost(gpu, at):
            return GpuSample(uuid=gpu.facts.uuid, state="lost", detail="the scenario lost this GPU")
        listed = self._listed(gpu, at)
        load_percent = max((float(process.sm_percent or 0) for process in listed), default=0.0)
        forced_celsius = max((fault.celsius for fault in self._script.active(at, "hot", index)), default=None)
        if forced_celsius is not None and self._script.scenario.load == "training":
            forced_celsius -= _COOLER_WHEN_IDLE * (1.0 - load_percent / 100.0)
        load = SimulatedLoad(
            load_percent,
            memory_bytes=sum(process.memory_bytes or 0 for process in listed),
            loaded_seconds=at - self._loaded_since.pop(gpu.facts.uuid, at),
            forced_celsius=forced_celsius,
            reasons=tuple(fault.reason for fault in self._script.active(at, "throttle", index)),
        )
        return gpu.advance(at, seconds, load)

    def _listed(self, gpu: SimulatedGpu, at: float) -> tuple[GpuProcess, ...]:
        """The processes on a GPU, those of runs first. Together they hold at most its memory."""
        free_bytes = (gpu.facts.memory_total_bytes or 0) - RESERVED_BYTES
        fitting = []
        for process in (*self._processes_of_runs(gpu, at), *self._foreign_on(gpu, at)):
            memory_bytes = min(process.memory_bytes or 0, free_bytes)
            fitting.append(replace(process, memory_bytes=memory_bytes))
            free_bytes -= memory_bytes
        return tuple(fitting)

    def _processes_of_runs(self, gpu: SimulatedGpu, at: float) -> Iterator[GpuProcess]:
        """The occupants of a GPU. Load and memory grow while one warms up."""
        for occupant in self._occupants:
            if occupant.uuid != gpu.facts.uuid:
                continue
            warm = min(1.0, max(0.0, at - occupant.since) / _WARM_UP_SECONDS)
            percent = _LOAD_PERCENT * warm
            memory_share = warm
            if self._script.scenario.load == "training":
                training = TrainingLoad(zlib.crc32(occupant.run_id.encode(), gpu.seed), gpu.facts.index)
                percent = training.percent(at) * warm
                memory_share = training.memory_share(at, occupant.since)
            memory = occupant.memory_bytes
            if memory is None:
                share = 0.3 + 0.4 * noise(gpu.seed, *occupant.run_id.encode())
                memory = int((gpu.facts.memory_total_bytes or 0) * share)
            held_bytes = int(memory * memory_share)
            process = GpuProcess(pid=occupant.pid, memory_bytes=held_bytes, sm_percent=round(percent))
            if (owner := self._reader.identify(occupant.pid)) is not None:
                process = replace(process, user=owner.user, command=owner.command, start_ticks=owner.start_ticks)
            yield process

    def _foreign_on(self, gpu: SimulatedGpu, at: float) -> Iterator[GpuProcess]:
        """The scenario's processes of other people."""
        for number, foreign in enumerate(self._script.scenario.foreign):
            if foreign.gpu in (None, gpu.facts.index):
                load = foreign.load
                if self._script.scenario.load == "training":
                    load *= TrainingLoad(gpu.seed + number, gpu.facts.index).percent(at) / 100.0
                yield GpuProcess(
                    pid=_FOREIGN_PIDS_FROM + number,
                    memory_bytes=foreign.memory,
                    user=foreign.user,
                    command=foreign.command,
                    sm_percent=round(load),
                )

    def _is_lost(self, gpu: SimulatedGpu, at: float) -> bool:
        return any(self._script.active(at, "lost", gpu.facts.index))

    def _hang(self, fault: Fault, at: float) -> None:
        """Block, as a driver would, until the fault is over."""
        if fault.for_ is not None:
            self._sleep(self._script.begun_at + fault.at + fault.for_ - at)
            return
        while True:
            self._sleep(_HANG_STEP_SECONDS)
