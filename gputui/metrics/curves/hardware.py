"""Curves of GPUs and host over the axis of a run, while its attempts used them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from gputui.metrics.curves.axis import AxisMap, interpolate
from gputui.metrics.curves.model import ChartRequest, HardwareCurve, HardwareField, Window
from gputui.metrics.draw.envelope import Bin
from gputui.store.attempts import Attempt
from gputui.store.rollups import SampleSpan, newest_sample, sample_spans

APART_SECONDS = 10.0
"""Least distance of samples that are not joined by a line."""

APART_INTERVALS = 2.0
"""The same, in distances of the samples before."""

_BEFORE = 4
"""Distances from which the usual one is taken."""

_GPU: Mapping[HardwareField, str] = {
    "utilization": "utilization_percent",
    "memory": "memory_used_bytes",
    "power": "power_watts",
    "temperature": "temperature_celsius",
    "sm_clock": "sm_clock_mhz",
}
_HOST: Mapping[HardwareField, str] = {"host_cpu": "cpu_percent", "host_memory": "memory_used_bytes"}


class GpuStay(NamedTuple):
    """The time that an attempt used a GPU, or the host (``uuid`` is None), in UTC unix seconds;
    ``end`` is infinite for a running attempt."""

    uuid: str | None
    attempt: int
    begin: float
    end: float


@dataclass(slots=True)
class _Device:
    """One GPU or the host: its fields and its samples in spans of ``seconds``, in order. The first
    ``settled`` of these have their final bins in ``placed``, by field; ``last_placed`` is the last
    of them that has a place."""

    uuid: str | None
    fields: Sequence[HardwareField]
    seconds: float
    spans: list[SampleSpan] = field(default_factory=list)
    placed: list[list[Bin]] = field(default_factory=list)
    settled: int = 0
    last_placed: SampleSpan | None = None

    def read(self, connection: sqlite3.Connection, moments: Window) -> None:
        """Read new spans, and the newest known one, which may have grown. Raises sqlite3.Error."""
        first, last = (math.floor(moment / self.seconds) for moment in moments)
        first = self.spans[-1].number if self.spans else first
        columns = [(_HOST if self.uuid is None else _GPU)[name] for name in self.fields]
        found = sample_spans(connection, self.uuid, columns, self.seconds, first, last)
        if found and self.spans and found[0].number == first:
            self.spans.pop()
        self.spans += found

    def curves(self, stays: Sequence[GpuStay], axis_map: AxisMap, window: Window | None) -> list[HardwareCurve]:
        """The curves of its fields. Final spans with a known place are placed once."""
        self.placed = self.placed or [[] for _ in self.fields]
        later: list[list[Bin]] = [[] for _ in self.fields]
        before, into = self.last_placed, self.placed
        for at in range(self.settled, len(self.spans)):
            span = self.spans[at]
            if at == len(self.spans) - 1 or not _is_settled(axis_map, span):
                into = later
            ends = _ends(span, stays, axis_map)
            if ends is not None and (window is None or (ends[1] >= window[0] and ends[0] <= window[1])):
                is_apart = before is not None and self._is_apart(before, at)
                for bins, (count, low, high, mean) in zip(into, span.values, strict=True):
                    if count:
                        bins.append(Bin(*ends, low, high, mean, mean, count, gap_before=is_apart))
                before = span
            if into is self.placed:
                self.settled, self.last_placed = at + 1, before
        joined = [(*done, *rest) for done, rest in zip(self.placed, later, strict=True)]
        return [
            HardwareCurve(name, self.uuid, bins, bins[-1].last if bins else None)
            for name, bins in zip(self.fields, joined, strict=True)
        ]

    def _is_apart(self, before: SampleSpan, at: int) -> bool:
        """Whether the span at place ``at`` is further from the one ``before`` than samples usually
        are: old samples are kept as means of minutes and hours."""
        if (self.spans[at].number - before.number) * self.seconds <= max(self.seconds, APART_SECONDS):
            return False
        known = self.spans[max(0, at - 1 - _BEFORE) : at]
        usual = median([later.first_at - earlier.last_at for earlier, later in pairwise(known)] or [0.0])
        return self.spans[at].first_at - before.last_at > APART_INTERVALS * usual


class HardwareCurves:
    """Reads the hardware curves of one run, and follows them, or up to a past moment ``at`` (UTC
    unix seconds); one per run and reader."""

    def __init__(self, at: float | None = None) -> None:
        self._at = math.inf if at is None else at
        self._asked: tuple[object, ...] | None = None
        self._seconds = 1.0
        self._devices: dict[str | None, _Device] = {}

    def reset(self) -> None:
        """Read everything again next time: places on the axis have changed."""
        self._asked = None

    def read(
        self, connection: sqlite3.Connection, attempts: Sequence[Attempt], axis_map: AxisMap, request: ChartRequest
    ) -> tuple[HardwareCurve, ...]:
        """A curve for each field and GPU of the run, and one for each field of the host; first and
        last value of a bin are its mean. Over steps and epochs, samples outside of an attempt's
        lines and of redone steps have no place. Raises sqlite3.Error."""
        gpu_fields = [name for name in request.hardware if name in _GPU]
        host_fields = [name for name in request.hardware if name in _HOST]
        stays = [stay for stay in _stays(attempts, axis_map) if (host_fields if stay.uuid is None else gpu_fields)]
        moments = self._moments(connection, stays, axis_map, request.window)
        if moments is None:
            return ()
        self._choose_spans(moments, request, axis_map)
        curves: list[HardwareCurve] = []
        for uuid in sorted({stay.uuid for stay in stays}, key=lambda uuid: (uuid is None, uuid or "")):
            device = self._devices.get(uuid)
            if device is None:
                fields = host_fields if uuid is None else gpu_fields
                device = self._devices[uuid] = _Device(uuid, fields, self._seconds)
            device.read(connection, moments)
            curves += device.curves([stay for stay in stays if stay.uuid == uuid], axis_map, request.window)
        return tuple(sorted(curves, key=lambda curve: request.hardware.index(curve.field)))

    def _moments(
        self, connection: sqlite3.Connection, stays: Sequence[GpuStay], axis_map: AxisMap, window: Window | None
    ) -> Window | None:
        """The stretch of time that is shown; None if nothing was sampled in it."""
        begins, ends = [], []
        for stay in stays:
            shown = (stay.begin, stay.end) if window is None else _moments_of(axis_map, stay, window)
            if shown is not None:
                begins.append(max(stay.begin, shown[0]))
                ends.append(min(stay.end, shown[1]))
        sampled = [newest_sample(connection, uuid) for uuid in {stay.uuid for stay in stays}]
        newest = max((at for at in sampled if at is not None), default=None)
        if newest is None or not begins:
            return None
        begin, end = min(begins), min(max(ends), newest, self._at)
        return (begin, end) if end >= begin else None

    def _choose_spans(self, moments: Window, request: ChartRequest, axis_map: AxisMap) -> None:
        """Choose the length of a span; it is kept until there are too many spans."""
        bins = max(2, request.bins)
        length = max(1.0, moments[1] - moments[0])
        timeline = (axis_map.timeline.begins, axis_map.timeline.ends)
        asked = (request.axis, request.window, request.bins, request.hardware, timeline)
        if asked != self._asked or length / self._seconds > 2 * bins:
            self._asked = asked
            self._devices.clear()
            self._seconds = 2.0 ** math.ceil(math.log2(length / bins))


def _stays(attempts: Sequence[Attempt], axis_map: AxisMap) -> list[GpuStay]:
    timeline = axis_map.timeline
    found = []
    for attempt in attempts:
        begin = timeline.begins.get(attempt.number)
        if begin is not None:
            end = timeline.ends.get(attempt.number, math.inf)
            found += [GpuStay(uuid, attempt.number, begin, end) for uuid in (*attempt.gpus, None)]
    return found


def _moments_of(axis_map: AxisMap, stay: GpuStay, window: Window) -> Window | None:
    """The moments of an attempt that a window shows."""
    if axis_map.axis in ("time", "trained"):
        offset = axis_map.place_moment(0.0, stay.attempt)
        return None if offset is None else (window[0] - offset, window[1] - offset)
    ends: Sequence[float | None] = window
    if axis_map.axis == "epoch":
        step_by_epoch = [(epoch, step) for step, epoch in axis_map.epochs.get(stay.attempt, ())]
        ends = [interpolate(step_by_epoch, epoch) for epoch in window]
    pairs = axis_map.paces.get(stay.attempt, ())
    first, last = ends
    if first is None or last is None or not pairs or last < pairs[0][1] or first > pairs[-1][1]:
        return None
    at_by_step = [(step, at) for at, step in pairs]
    begin, end = interpolate(at_by_step, first), interpolate(at_by_step, last)
    return None if begin is None or end is None else (begin, end)


def _ends(span: SampleSpan, stays: Sequence[GpuStay], axis_map: AxisMap) -> Window | None:
    """Both ends of a span on the axis, while an attempt used the GPU; None if it has no place."""
    stay = next((each for each in stays if each.begin <= span.last_at and span.first_at <= each.end), None)
    if stay is None:
        return None
    start = _place(axis_map, max(span.first_at, stay.begin), stay.attempt)
    end = _place(axis_map, min(span.last_at, stay.end), stay.attempt)
    return None if start is None or end is None else (start, end)


def _is_settled(axis_map: AxisMap, span: SampleSpan) -> bool:
    """Whether the place of a span is final: over steps, not before a later step is known."""
    if axis_map.axis in ("time", "trained"):
        return True
    return any(pairs and pairs[-1][0] > span.last_at for pairs in axis_map.paces.values())


def _place(axis_map: AxisMap, at: float, attempt: int) -> float | None:
    if axis_map.axis in ("step", "epoch"):
        pairs = axis_map.paces.get(attempt, ())
        if not pairs or not pairs[0][0] <= at <= pairs[-1][0]:
            return None
        step = interpolate(pairs, at)
        if step is None or step >= axis_map.cuts.get(attempt, math.inf):
            return None
    return axis_map.place_moment(at, attempt)
