"""A simulated GPU: utilisation, power, temperature and clocks that follow its load. The numbers are those of an 80 GiB
data centre board, rounded."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

from gputui.machine.gpu_model import GpuFacts, GpuSample, GpuSlowSample

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
    """``load_percent`` and ``memory_bytes`` come from its processes, ``forced_celsius`` and ``reasons`` from faults."""

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
