"""Observations of GPUs and of the host, second by second. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.throttle import HARMFUL
from gputui.machine.xid import XidClass, xid_class, xid_text
from gputui.recovery.watch.leaks import MemorySample, steady_growth
from gputui.recovery.watch.rules import Observation, RuleSet
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

MINUTE_SECONDS = 60.0
POWER_SECONDS = 300.0
POWER_BEFORE_SECONDS = 3600.0
# The share of its span that a mean needs before it has a value.
MIN_SHARE = 0.6
# No GPU slows down below this; a lower limit means that the driver does not know it.
MIN_SLOWDOWN_CELSIUS = 60.0
# Growth of the host's memory is judged by half an hour.
GROWTH_SAMPLES = 61
GROWTH_EVERY_SECONDS = 30.0
GROWTH_PARTS = 4

_OF_THE_PROGRAM = frozenset({XidClass.APPLICATION, XidClass.NOTICE})
# An XID that only follows from another error counts as neither.
_OF_THE_HARDWARE = frozenset({XidClass.CONTAINED, XidClass.MEMORY, XidClass.LINK, XidClass.LOST})


class Mean(Struct):
    """An exponentially weighted mean: at the age ``span_seconds`` the weight of a value has fallen
    to 1/e. ``weight`` is the sum of the weights, towards 1 as the span fills."""

    span_seconds: float
    weighted_sum: float = 0.0
    weight: float = 0.0

    def add(self, value: float | None, elapsed_seconds: float) -> None:
        """Add a value, ``elapsed_seconds`` after the previous one; unknown and non-finite values
        are ignored."""
        if value is None or not math.isfinite(value):
            return
        share = 1.0 - math.exp(-elapsed_seconds / self.span_seconds)
        self.weighted_sum += (value - self.weighted_sum) * share
        self.weight += (1.0 - self.weight) * share

    @property
    def value(self) -> float | None:
        """The mean; None before `MIN_SHARE` of the span is filled."""
        if self.weight >= MIN_SHARE:
            return self.weighted_sum / self.weight
        return None


def _mean(span_seconds: float) -> Mean:
    return msgspec.field(default_factory=lambda: Mean(span_seconds))


class GpuMoment(Struct, frozen=True):
    """One GPU at one moment.

    Attributes:
        sample: the newest values that are read every second; None while the driver does not answer.
        slow: the newest values that are read less often; None while the driver does not answer.
        training: the run and attempt that train on the GPU.
        holder: who holds its memory, in words.
        xids: the codes of new XID errors.
    """

    facts: GpuFacts
    sample: GpuSample | None = None
    slow: GpuSlowSample | None = None
    training: tuple[str, int] | None = None
    holder: str | None = None
    xids: Sequence[int] = ()

    @property
    def is_known(self) -> bool:
        return self.sample is not None and self.sample.state != "error"

    @property
    def values(self) -> GpuSample:
        """The sample; one without values if it is not known."""
        if self.sample is not None and self.is_known:
            return self.sample
        return GpuSample(self.facts.uuid)

    @property
    def used_bytes(self) -> int | None:
        """The memory in use; None if it is the host's."""
        if self.facts.memory_is_unified:
            return None
        return self.values.memory_used_bytes


class GpuWatch(Struct):
    """One GPU over time.

    Attributes:
        attempt: the run and attempt of ``busy`` and power; another one resets them.
        busy: utilisation in percent.
        throttled: 100 while throttled for a harmful reason, else 0, whatever runs on the GPU.
        power: watts over the last minutes.
        power_before: watts over the last hour.
        errors: the newest count of uncorrected memory errors.
    """

    attempt: tuple[str, int] | None = None
    busy: Mean = _mean(MINUTE_SECONDS)
    throttled: Mean = _mean(MINUTE_SECONDS)
    power: Mean = _mean(POWER_SECONDS)
    power_before: Mean = _mean(POWER_BEFORE_SECONDS)
    errors: int | None = None

    def observe(self, now: GpuMoment, elapsed: float, rules: RuleSet) -> Iterator[Observation]:
        """Take in one moment, and yield an observation for each rule about GPUs.

        Args:
            elapsed: seconds since the moment before.
            rules: those of the run that trains on it, else of the machine.
        """
        if now.training != self.attempt:
            # Utilisation and power of another run are not comparable.
            self.attempt = now.training
            self.busy = Mean(MINUTE_SECONDS)
            self.power = Mean(POWER_SECONDS)
            self.power_before = Mean(POWER_BEFORE_SECONDS)
        is_lost = None
        total = None
        if now.is_known:
            is_lost = float(now.values.state == "lost")
            total = now.values.memory_total_bytes or now.facts.memory_total_bytes
        yield Observation("gpu_lost", is_lost)
        yield from _xids(now)
        yield self._memory_errors(now.slow)
        yield _row_remap(now.slow)
        yield _share("gpu_memory", now.used_bytes, total, rules)
        yield _heat(now, rules)
        yield self._throttled(now.values.throttle_reasons, elapsed, rules)
        yield self._underused(now, elapsed, rules)
        yield _parked(now, rules)
        yield self._power_trend(now.values.power_watts, elapsed, rules)

    def _memory_errors(self, slow: GpuSlowSample | None) -> Observation:
        """New uncorrected errors: none with the first count and with a smaller one (the driver was
        reloaded)."""
        if slow is None or slow.ecc_uncorrected is None:
            return Observation("ecc")
        before = self.errors
        self.errors = slow.ecc_uncorrected
        if before is None:
            before = self.errors
        return Observation("ecc", float(max(0, self.errors - before)))

    def _underused(self, now: GpuMoment, elapsed: float, rules: RuleSet) -> Observation:
        busy = now.values.utilization_percent
        self.busy.add(busy, elapsed)
        limit = rules["gpu_underused"].limits["below_percent"]
        mean = None if busy is None else self.busy.value
        if now.training is None:
            return Observation("gpu_underused", mean, limit, applies=False)
        return Observation("gpu_underused", mean, limit, now.training[0])

    def _throttled(self, reasons: tuple[str, ...] | None, elapsed: float, rules: RuleSet) -> Observation:
        """The share of the last minute in which a `HARMFUL` reason held the clocks back."""
        if reasons is None:
            return Observation("gpu_throttled")
        harmful = [reason for reason in reasons if reason in HARMFUL]
        self.throttled.add(100.0 * bool(harmful), elapsed)
        # Unlike `Mean.value` with zeros before the first value.
        share = self.throttled.weighted_sum
        limit = rules["gpu_throttled"].limits["above_percent"]
        text = ""
        if harmful:
            text = f": {', '.join(harmful)}"
        return Observation("gpu_throttled", share, limit, text)

    def _power_trend(self, watts: float | None, elapsed: float, rules: RuleSet) -> Observation:
        """The change in percent between the hour before and the last minutes of an attempt."""
        if self.attempt is None:
            return Observation("power_trend", applies=False)
        self.power.add(watts, elapsed)
        self.power_before.add(watts, elapsed)
        recent = self.power.value
        before = self.power_before.value
        if watts is None or recent is None or not before:
            return Observation("power_trend")
        change = 100.0 * (recent / before - 1.0)
        word = "fell" if change < 0 else "rose"
        text = f"{word} from {before:.0f} W to {recent:.0f} W under {self.attempt[0]}"
        limit = rules["power_trend"].limits["change_percent"]
        return Observation("power_trend", abs(change), limit, text)


def _xids(now: GpuMoment) -> Iterator[Observation]:
    for rule_id, classes in (("xid_hardware", _OF_THE_HARDWARE), ("xid", _OF_THE_PROGRAM)):
        codes = [code for code in now.xids if xid_class(code) in classes]
        if codes:
            yield Observation(rule_id, float(len(codes)), text=xid_text(codes[-1]))
        elif now.is_known:
            yield Observation(rule_id, 0.0)
        else:
            yield Observation(rule_id)


def _row_remap(slow: GpuSlowSample | None) -> Observation:
    """1 while a memory row waits to be remapped by a reset, 2 if remapping failed."""
    if slow is None or (slow.row_remap_pending is None and slow.row_remap_failed is None):
        return Observation("row_remap")
    if slow.row_remap_failed:
        return Observation("row_remap", 2.0, text="remapping a bad memory row failed")
    return Observation("row_remap", float(bool(slow.row_remap_pending)), text="a bad memory row waits to be remapped")


def _heat(now: GpuMoment, rules: RuleSet) -> Observation:
    """The temperature. Its limit is the fixed one or the one below the driver's slowdown, whichever
    is lower."""
    limits = rules["gpu_hot"].limits
    slowdown = now.facts.temperature_slowdown_celsius
    limit = limits["above_celsius"]
    text = ""
    if slowdown is not None and slowdown >= MIN_SLOWDOWN_CELSIUS and slowdown - limits["margin_celsius"] < limit:
        limit = slowdown - limits["margin_celsius"]
        text = f"; throttles at {slowdown:.0f} °C"
    return Observation("gpu_hot", now.values.temperature_celsius, limit, text)


def _parked(now: GpuMoment, rules: RuleSet) -> Observation:
    """The memory in GiB that is held while nothing computes."""
    busy = now.values.utilization_percent
    used = now.used_bytes
    limit = rules["gpu_parked"].limits["above_gib"]
    text = ""
    if now.holder:
        text = f" by {now.holder}"
    if busy is None or used is None:
        return Observation("gpu_parked", value=None, limit=limit, text=text)
    return Observation("gpu_parked", used / 2**30, limit, text, applies=busy == 0)


class HostWatch(Struct):
    """The host. ``memory`` is its use over the last half hour; times are UTC unix seconds."""

    memory: list[MemorySample] = msgspec.field(default_factory=list)

    def observe(self, sample: HostSample | None, rules: RuleSet) -> Iterator[Observation]:
        """Take in the newest sample (None if it is outdated); yield an observation for each rule
        about the host."""
        now = sample or HostSample(0.0)
        yield _share("host_memory", now.memory_used_bytes, now.memory_total_bytes, rules)
        yield self._growth(now, rules)
        yield _share("disk", now.disk_used_bytes, now.disk_total_bytes, rules)
        yield _share("shm", now.shm_used_bytes, now.shm_total_bytes, rules)

    def _growth(self, now: HostSample, rules: RuleSet) -> Observation:
        """The growth of used memory in GB per hour; unknown before half an hour."""
        used = now.memory_used_bytes
        total = now.memory_total_bytes
        if used is None or total is None:
            return Observation("host_memory_growth")
        if self.memory and now.at < self.memory[-1].at:
            self.memory.clear()  # the clock was set back
        if not self.memory or now.at - self.memory[-1].at >= GROWTH_EVERY_SECONDS:
            self.memory.append(MemorySample(now.at, used, total - used))
            del self.memory[:-GROWTH_SAMPLES]
        if len(self.memory) < GROWTH_SAMPLES:
            return Observation("host_memory_growth")
        growth = steady_growth(self.memory, GROWTH_PARTS)
        limit = rules["host_memory_growth"].limits["above_gb_per_hour"]
        if growth is None:
            return Observation("host_memory_growth", 0.0, limit)
        bytes_per_second, _ = growth
        per_hour = bytes_per_second * 3600
        text = f"; full in {(total - used) / per_hour:.1f} h"
        return Observation("host_memory_growth", per_hour / 1e9, limit, text)


def _share(rule_id: str, used: int | None, total: int | None, rules: RuleSet) -> Observation:
    share = None
    if used is not None and total:
        share = 100.0 * used / total
    return Observation(rule_id, share, rules[rule_id].limits["above_percent"])
