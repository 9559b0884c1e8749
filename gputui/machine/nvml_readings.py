"""The facts and values of one GPU, read through NVML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil
from msgspec import Struct
from msgspec.structs import replace

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.nvml_calls import Calls, FieldValue
from gputui.machine.throttle import throttle_words
from gputui.store.series import GpuSample, GpuSlowSample, GpuState

# nvml.h: nvmlTemperatureSensors_t, nvmlClockType_t, nvmlPcieUtilCounter_t; P32 of nvmlPstates_t
# means unknown.
_SENSOR_GPU = 0
_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_PCIE_SENT = 0
_PCIE_RECEIVED = 1
_LAST_PERFORMANCE_STATE = 15

# Field IDs of nvml.h with their scope: one link, or all.
_ECC_CORRECTED = 3
_ECC_UNCORRECTED = 4
_MEMORY_TEMPERATURE = 82
_ENERGY_MILLIJOULES = 83
_PCIE_REPLAYS = 94
_NVLINK_SENT_KIB = 138
_NVLINK_RECEIVED_KIB = 139
_REMAP_PENDING = 144
_REMAP_FAILED = 145
_ALL_LINKS = 0xFFFFFFFF
_SLOW_FIELDS = (
    (_ECC_CORRECTED, 0),
    (_ECC_UNCORRECTED, 0),
    (_MEMORY_TEMPERATURE, 0),
    (_ENERGY_MILLIJOULES, 0),
    (_PCIE_REPLAYS, 0),
    (_REMAP_PENDING, 0),
    (_REMAP_FAILED, 0),
    (_NVLINK_SENT_KIB, _ALL_LINKS),
    (_NVLINK_RECEIVED_KIB, _ALL_LINKS),
)

# nvml.h: nvmlTemperatureThresholds_t, NVML_FI_DEV_POWER_INSTANT.
_THRESHOLD_SHUTDOWN = 0
_THRESHOLD_SLOWDOWN = 1
FIELD_POWER_INSTANT = 186


class Link(Struct, frozen=True):
    """The PCIe link of one GPU. Rates are measured over 20 ms."""

    generation: int | None = None
    width: int | None = None
    received_bytes_per_second: float | None = None
    sent_bytes_per_second: float | None = None


@dataclass(slots=True)
class Gpu:
    """A GPU that was seen at least once, and its state between readings.

    Attributes:
        handle: The driver's; None while the GPU is not read.
        detail: What the driver says, if it is lost.
        throttle_reasons: The driver's bits.
        sm_clock_mhz: Read less often than a tick, and reported with each; so are the fields after it.
    """

    facts: GpuFacts
    handle: Any
    state: GpuState = "ok"
    detail: str | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    memory_clock_mhz: int | None = None
    performance_state: int | None = None
    power_limit_watts: float | None = None
    link: Link = field(default_factory=Link)
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    _power_fields: list[tuple[int, int]] = field(default_factory=lambda: [(FIELD_POWER_INSTANT, 0)])
    _slow_fields: list[tuple[int, int]] = field(default_factory=lambda: list(_SLOW_FIELDS))
    _counters: dict[int, FieldValue] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return self.facts.uuid

    def read_fast(self, calls: Calls, *, with_clocks: bool) -> GpuSample:
        """Read the values of each tick; the SM clock and what throttles it only ``with_clocks``. Raises GpuGoneError,
        DriverGoneError."""
        uuid = self.facts.uuid
        handle = self.handle
        calls.last_error.pop(uuid, None)
        utilization = calls.ask(uuid, "nvmlDeviceGetUtilizationRates", handle)
        memory = read_memory(calls, uuid, handle)
        temperature = calls.number(uuid, "nvmlDeviceGetTemperature", handle, _SENSOR_GPU)
        power = self._power_watts(calls)
        if with_clocks:
            self._read_sm_clock(calls)
        changes: dict[str, Any] = {}
        if utilization is not None:
            changes["utilization_percent"] = _percent(utilization.gpu)
            changes["memory_utilization_percent"] = _percent(utilization.memory)
        if memory is not None:
            changes["memory_total_bytes"] = memory.total
            changes["memory_used_bytes"] = memory.used
            changes["memory_reserved_bytes"] = memory.reserved
        if self.throttle_reasons is not None:
            changes["throttle_reasons"] = throttle_words(self.throttle_reasons)
        has_own_memory = memory is not None and not isinstance(memory, UnifiedMemory)
        has_sensors = utilization is not None or temperature is not None or power is not None
        error = calls.last_error.get(uuid)
        if error and not has_own_memory and not has_sensors:
            changes |= {"state": "error", "detail": error}
        return GpuSample(
            uuid=uuid,
            temperature_celsius=_as_float(temperature),
            power_watts=power,
            power_limit_watts=self.power_limit_watts,
            sm_clock_mhz=self.sm_clock_mhz,
            memory_clock_mhz=self.memory_clock_mhz,
            performance_state=self.performance_state,
            **changes,
        )

    def read_slow(self, calls: Calls) -> GpuSlowSample:
        """Raises GpuGoneError, DriverGoneError."""
        uuid = self.facts.uuid
        handle = self.handle
        self._read_clocks(calls)
        fan = calls.number(uuid, "nvmlDeviceGetFanSpeed", handle)
        fields = calls.fields(uuid, handle, self._slow_fields)

        def value(field_id: int) -> float | None:
            if field_id in fields:
                return fields[field_id].value
            return None

        def whole(field_id: int) -> int | None:
            if field_id in fields:
                return int(fields[field_id].value)
            return None

        def flag(field_id: int) -> bool | None:
            if field_id in fields:
                return bool(fields[field_id].value)
            return None

        energy = value(_ENERGY_MILLIJOULES)
        if energy is not None:
            energy /= 1000.0
        return GpuSlowSample(
            uuid=uuid,
            fan_percent=_as_float(fan),
            memory_temperature_celsius=value(_MEMORY_TEMPERATURE) or None,  # some boards report 0 without a sensor
            pcie_generation=self.link.generation,
            pcie_width=self.link.width,
            pcie_received_bytes_per_second=self.link.received_bytes_per_second,
            pcie_sent_bytes_per_second=self.link.sent_bytes_per_second,
            nvlink_received_bytes_per_second=self._rate(_NVLINK_RECEIVED_KIB, fields),
            nvlink_sent_bytes_per_second=self._rate(_NVLINK_SENT_KIB, fields),
            ecc_corrected=whole(_ECC_CORRECTED),
            ecc_uncorrected=whole(_ECC_UNCORRECTED),
            row_remap_pending=flag(_REMAP_PENDING),
            row_remap_failed=flag(_REMAP_FAILED),
            energy_joules=energy,
            pcie_replays=whole(_PCIE_REPLAYS),
            encoder_percent=self.encoder_percent,
            decoder_percent=self.decoder_percent,
        )

    def read_settings(self, calls: Calls) -> None:
        """Read what the fast tier reports but does not read. Raises GpuGoneError,
        DriverGoneError."""
        self._read_sm_clock(calls)
        self._read_clocks(calls)
        self._read_power_limit(calls)

    def read_link(self, calls: Calls) -> None:
        """Read the PCIe link, and values that change or matter seldom: the video engines and the
        power limit. Blocks for 2 x 20 ms, the window of the throughput. Raises GpuGoneError,
        DriverGoneError."""
        uuid = self.facts.uuid
        handle = self.handle
        self._read_power_limit(calls)
        encoder = calls.ask(uuid, "nvmlDeviceGetEncoderUtilization", handle)
        decoder = calls.ask(uuid, "nvmlDeviceGetDecoderUtilization", handle)
        self.encoder_percent = None
        self.decoder_percent = None
        if encoder is not None:
            percent, _measured_microseconds = encoder
            self.encoder_percent = _percent(percent)
        if decoder is not None:
            percent, _measured_microseconds = decoder
            self.decoder_percent = _percent(percent)
        received = calls.number(uuid, "nvmlDeviceGetPcieThroughput", handle, _PCIE_RECEIVED)
        sent = calls.number(uuid, "nvmlDeviceGetPcieThroughput", handle, _PCIE_SENT)
        self.link = Link(
            generation=calls.number(uuid, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            width=calls.number(uuid, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            received_bytes_per_second=_as_float(received, 1000.0),
            sent_bytes_per_second=_as_float(sent, 1000.0),
        )

    def _read_sm_clock(self, calls: Calls) -> None:
        uuid = self.facts.uuid
        handle = self.handle
        self.sm_clock_mhz = calls.number(uuid, "nvmlDeviceGetClockInfo", handle, _CLOCK_SM)
        self.throttle_reasons = calls.number(uuid, "nvmlDeviceGetCurrentClocksEventReasons", handle)

    def _read_clocks(self, calls: Calls) -> None:
        uuid = self.facts.uuid
        handle = self.handle
        self.memory_clock_mhz = calls.number(uuid, "nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY)
        state = calls.number(uuid, "nvmlDeviceGetPerformanceState", handle)
        self.performance_state = None
        if state is not None and state <= _LAST_PERFORMANCE_STATE:
            self.performance_state = state

    def _read_power_limit(self, calls: Calls) -> None:
        self.power_limit_watts = watts(calls.number(self.facts.uuid, "nvmlDeviceGetEnforcedPowerLimit", self.handle))

    def _power_watts(self, calls: Calls) -> float | None:
        if self._power_fields:
            answer = calls.fields(self.facts.uuid, self.handle, self._power_fields).get(FIELD_POWER_INSTANT)
            if answer is not None:
                return watts(answer.value)
        return watts(calls.number(self.facts.uuid, "nvmlDeviceGetPowerUsage", self.handle))

    def _rate(self, field_id: int, fields: Mapping[int, FieldValue]) -> float | None:
        """Bytes per second since the previous reading of a counter in KiB, by the driver's
        timestamps. None for the first reading and after the counter decreased."""
        now = fields.get(field_id)
        before = self._counters.get(field_id)
        if now is None:
            return None
        self._counters[field_id] = now
        if before is None or now.at_microseconds <= before.at_microseconds or now.value < before.value:
            return None
        seconds = (now.at_microseconds - before.at_microseconds) / 1e6
        return (now.value - before.value) * 1024.0 / seconds


def _percent(value: int) -> float | None:
    if 0 <= value <= 100:
        return float(value)
    return None


class UnifiedMemory(NamedTuple):
    """The host's memory, which an integrated GPU has in place of its own."""

    total: int
    used: int
    reserved: int | None = None


def read_facts(calls: Calls, index: int, uuid: str, handle: Any) -> GpuFacts:
    """The facts of the GPU behind ``handle``. Raises GpuGoneError, DriverGoneError."""
    pci = calls.ask(uuid, "nvmlDeviceGetPciInfo", handle)
    limits = calls.ask(uuid, "nvmlDeviceGetPowerManagementLimitConstraints", handle)
    capability = calls.ask(uuid, "nvmlDeviceGetCudaComputeCapability", handle)
    persistence = calls.number(uuid, "nvmlDeviceGetPersistenceMode", handle)
    mig = calls.ask(uuid, "nvmlDeviceGetMigMode", handle)
    memory = read_memory(calls, uuid, handle)
    has_instant_power = bool(calls.fields(uuid, handle, [(FIELD_POWER_INSTANT, 0)]))
    facts = GpuFacts(
        uuid=uuid,
        index=index,
        name=calls.text(uuid, "nvmlDeviceGetName", handle) or "NVIDIA GPU",
        power_limit_default_watts=watts(calls.number(uuid, "nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        temperature_slowdown_celsius=_threshold(calls, uuid, handle, _THRESHOLD_SLOWDOWN),
        temperature_shutdown_celsius=_threshold(calls, uuid, handle, _THRESHOLD_SHUTDOWN),
        pcie_generation_max=calls.number(uuid, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width_max=calls.number(uuid, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        memory_is_unified=isinstance(memory, UnifiedMemory),
    )
    if pci is not None:
        facts = replace(facts, pci_bus_id=str(pci.busId))
    if memory is not None:
        facts = replace(facts, memory_total_bytes=memory.total)
    if limits is not None:
        _least, most = limits
        facts = replace(facts, power_limit_max_watts=watts(most))
    if capability is not None:
        major, minor = capability
        facts = replace(facts, compute_capability=f"{major}.{minor}")
    if persistence is not None:
        facts = replace(facts, persistence_mode=bool(persistence))
    if mig is not None:
        current, _pending = mig
        facts = replace(facts, mig_mode=bool(current))
    if has_instant_power:
        facts = replace(facts, power_reading="instant")
    return facts


def _as_float(number: int | None, factor: float = 1.0) -> float | None:
    if number is None:
        return None
    return number * factor


def read_memory(calls: Calls, uuid: str, handle: Any) -> Any:
    """Total, used and reserved bytes; None if unknown. A GPU that has neither memory nor a window
    into it (BAR1) uses the host's. Raises GpuGoneError, DriverGoneError."""
    # Only the used bytes of the call's second version exclude reserved memory.
    version = calls.nvml.nvmlMemory_v2
    memory = calls.ask(uuid, "nvmlDeviceGetMemoryInfo", handle, version)
    if memory is None and not calls.answers(uuid, "nvmlDeviceGetMemoryInfo", version):
        calls.ask(uuid, "nvmlDeviceGetBAR1MemoryInfo", handle)
        if not calls.answers(uuid, "nvmlDeviceGetBAR1MemoryInfo"):
            host = psutil.virtual_memory()
            return UnifiedMemory(host.total, host.total - host.available)
    return memory


def watts(milliwatts: float | None) -> float | None:
    if milliwatts is None:
        return None
    return milliwatts / 1000.0


def _threshold(calls: Calls, uuid: str, handle: Any, which: int) -> float | None:
    value = calls.number(uuid, "nvmlDeviceGetTemperatureThreshold", handle, which)
    if not value:
        return None
    return float(value)
