"""Curves of GPUs and host over the axis of a run, while its attempts used them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from msgspec import Struct

from gputui.metrics.curves.axis import AxisMap, interpolate
from gputui.metrics.curves.model import ChartRequest, HardwareCurve, HardwareField, Window
from gputui.metrics.draw.envelope import Bin
from gputui.store.attempts import Attempt
from gputui.store.rollups import SampleSpan, newest_sample, sample_at, sample_spans

SAMPLES_AT_ONCE = 200_000
"""Most samples read when a chart is opened, about 100 ms; of a longer time, only a part of each
span is read."""

APART_SECONDS = 10.0
"""Least distance of samples that are not joined by a line."""

APART_INTERVALS = 2.0
"""The same, in distances of the samples before."""

_BEFORE = 4
"""Distances from which the usual one is taken."""

LEAST_SECONDS = 60.0

_GPU: Mapping[HardwareField, str] = {
    "utilization": "utilization_percent",
    "memory": "memory_used_bytes",
    "power": "power_watts",
    "temperature": "temperature_celsius",
    "sm_clock": "sm_clock_mhz",
}
_HOST: Mapping[HardwareField, str] = {"host_cpu": "cpu_percent", "host_memory": "memory_used_bytes"}


class GpuHold(Struct, frozen=True):
    """The time that an attempt used a GPU, or the host (``uuid`` is None), in UTC unix seconds;
    ``end`` is infinite for a running attempt."""

    uuid: str | None
    attempt: int
    begin: float
    end: float


@dataclass(slots=True)
class _Device:
    """One GPU or the host: the final bins of each field; its spans in order; how many of these are
    final, and the last of them that has a place."""

    placed: list[list[Bin]]
    spans: list[SampleSpan] = field(default_factory=list)
    settled: int = 0
    last_placed: SampleSpan | None = None


class HardwareCurves:
    """Reads the hardware curves of one run, and follows them; one per run and reader."""

    def __init__(self) -> None:
        self._asked: tuple[object, ...] | None = None
        self._seconds = 1.0
        self._looked_at = 1.0
        self._devices: dict[str | None, _Device] = {}

    def reset(self) -> None:
        """Read everything again next time: places on the axis have changed."""
        self._asked = None

    def read(
        self,
        connection: sqlite3.Connection,
        attempts: Sequence[Attempt],
        axis_map: AxisMap,
        cuts: Mapping[int, float],
        request: ChartRequest,
    ) -> tuple[HardwareCurve, ...]:
        """A curve for each field and GPU of the run, and one for each field of the host; first and
        last value of a bin are its mean. Over steps and epochs, samples outside of an attempt's
        lines and of redone steps have no place. Raises sqlite3.Error."""
        stays = _stays(attempts, axis_map)
        gpu_fields = [name for name in request.hardware if name in _GPU]
        host_fields = [name for name in request.hardware if name in _HOST]
        uuids: list[str | None] = []
        if gpu_fields:
            uuids += sorted({stay.uuid for stay in stays if stay.uuid is not None})
        if host_fields:
            uuids.append(None)
        if not uuids:
            return ()
        moments = self._moments(connection, stays, uuids, axis_map, request.window)
        if moments is None:
            return ()
        timeline = (axis_map.timeline.begins, axis_map.timeline.ends)
        self._settle(moments, len(uuids), request, timeline)
        curves = []
        for uuid in uuids:
            fields = gpu_fields
            column_of = _GPU
            if uuid is None:
                fields = host_fields
                column_of = _HOST
            device = self._devices.setdefault(uuid, _Device([[] for _ in fields]))
            # New spans, and the newest known one, which may have grown.
            first = math.floor(moments[0] / self._seconds)
            if device.spans:
                first = device.spans[-1].number
            grid = (self._seconds, first, math.floor(moments[1] / self._seconds), self._looked_at)
            columns = [column_of[name] for name in fields]
            new_spans = [*sample_spans(connection, uuid, columns, *grid)]
            if new_spans and device.spans and new_spans[0].number == first:
                device.spans.pop()
            device.spans += new_spans
            own_stays = [stay for stay in stays if stay.uuid == uuid]
            drawn = _bins(device, own_stays, axis_map, cuts, request.window, self._seconds)
            then = None
            if request.cursor is not None:
                moment = _moment_of(axis_map, cuts, own_stays, request.cursor)
                if moment is not None:
                    then = sample_at(connection, uuid, columns, moment)
            for name, column, bins in zip(fields, columns, drawn, strict=True):
                last = bins[-1].last if bins else None
                at_cursor = None if then is None else then[column]
                curves.append(HardwareCurve(name, uuid, bins, last, at_cursor))
        order = {name: place for place, name in enumerate(request.hardware)}
        return tuple(sorted(curves, key=lambda curve: order[curve.field]))

    def _moments(
        self,
        connection: sqlite3.Connection,
        stays: Sequence[GpuHold],
        uuids: Sequence[str | None],
        axis_map: AxisMap,
        window: Window | None,
    ) -> Window | None:
        """The stretch of time that is shown; None if nothing was sampled in it."""
        begins = []
        ends = []
        for stay in stays:
            reach: Window | None = (stay.begin, stay.end)
            if window is not None:
                reach = _moments_of(axis_map, stay, window)
            if reach is not None and stay.uuid in uuids:
                begins.append(max(stay.begin, reach[0]))
                ends.append(min(stay.end, reach[1]))
        sampled = [newest_sample(connection, uuid) for uuid in uuids]
        newest = max((at for at in sampled if at is not None), default=None)
        if newest is None or not begins:
            return None
        begin = min(begins)
        end = min(max(ends), newest)
        if end >= begin:
            return (begin, end)
        return None

    def _settle(self, moments: Window, sources: int, request: ChartRequest, timeline: object) -> None:
        """Choose the length of a span; it is kept until there are too many spans."""
        bins = max(2, request.bins)
        length = max(1.0, moments[1] - moments[0])
        settings = (request.axis, request.window, request.bins, request.hardware, timeline)
        if settings == self._asked and length / self._seconds <= 2 * bins:
            return
        self._asked = settings
        self._devices.clear()
        self._seconds = 2.0 ** math.ceil(math.log2(length / bins))
        # For one sample a second; a slower recorder still has samples in each part.
        share = min(1.0, SAMPLES_AT_ONCE / (length * sources))
        self._looked_at = min(self._seconds, max(self._seconds * share, LEAST_SECONDS))


def _bins(
    device: _Device,
    stays: Sequence[GpuHold],
    axis_map: AxisMap,
    cuts: Mapping[int, float],
    window: Window | None,
    seconds: float,
) -> list[tuple[Bin, ...]]:
    """The bins of each field, from spans of ``seconds``. Final spans with a known place are placed
    once."""
    spans = device.spans
    later: list[list[Bin]] = [[] for _ in device.placed]
    before = device.last_placed
    into = device.placed
    for at in range(device.settled, len(spans)):
        span = spans[at]
        if at == len(spans) - 1 or not _is_settled(axis_map, span):
            into = later
        stay = next((hold for hold in stays if hold.begin <= span.last_at and span.first_at <= hold.end), None)
        if stay is not None:
            start = _place(axis_map, cuts, max(span.first_at, stay.begin), stay.attempt)
            end = _place(axis_map, cuts, min(span.last_at, stay.end), stay.attempt)
            if start is not None and end is not None and not (window and (end < window[0] or start > window[1])):
                is_apart = (
                    before is not None
                    and (span.number - before.number) * seconds > max(seconds, APART_SECONDS)
                    and _is_unusual(spans, at, span.first_at - before.last_at)
                )
                for bins, (count, low, high, mean) in zip(into, span.values, strict=True):
                    if count:
                        bins.append(Bin(start, end, low, high, mean, mean, count, gap_before=is_apart))
                before = span
        if into is device.placed:
            device.settled = at + 1
            device.last_placed = before
    return [(*done, *rest) for done, rest in zip(device.placed, later, strict=True)]


def _is_unusual(spans: Sequence[SampleSpan], at: int, apart: float) -> bool:
    """Return whether ``apart`` seconds before the span at place ``at`` are more than the distance
    of the samples before, which is the usual one or larger: old samples are kept as means of
    minutes and hours."""
    before = [later.first_at - earlier.last_at for earlier, later in pairwise(spans[max(0, at - 1 - _BEFORE) : at])]
    return apart > APART_INTERVALS * median(before or [0.0])


def _is_settled(axis_map: AxisMap, span: SampleSpan) -> bool:
    """Return whether the place of a span is final: over steps, not before a later step is known."""
    if axis_map.axis in ("time", "trained"):
        return True
    return any(pairs and pairs[-1][0] > span.last_at for pairs in axis_map.paces.values())


def _stays(attempts: Sequence[Attempt], axis_map: AxisMap) -> list[GpuHold]:
    timeline = axis_map.timeline
    holds = []
    for attempt in attempts:
        begin = timeline.begins.get(attempt.number)
        if begin is None:
            continue
        end = timeline.ends.get(attempt.number, math.inf)
        holds += [GpuHold(uuid, attempt.number, begin, end) for uuid in (*attempt.gpus, None)]
    return holds


def _moments_of(axis_map: AxisMap, stay: GpuHold, window: Window) -> Window | None:
    """The moments of an attempt that a window shows."""
    if axis_map.axis in ("time", "trained"):
        offset = axis_map.place_moment(0.0, stay.attempt)
        if offset is None:
            return None
        return (window[0] - offset, window[1] - offset)
    ends: Sequence[float | None] = window
    if axis_map.axis == "epoch":
        step_by_epoch = [(epoch, step) for step, epoch in axis_map.epochs.get(stay.attempt, ())]
        ends = [interpolate(step_by_epoch, epoch) for epoch in window]
    pairs = axis_map.paces.get(stay.attempt, ())
    first, last = ends
    if first is None or last is None or not pairs or last < pairs[0][1] or first > pairs[-1][1]:
        return None
    at_by_step = [(step, at) for at, step in pairs]
    begin = interpolate(at_by_step, first)
    end = interpolate(at_by_step, last)
    if begin is None or end is None:
        return None
    return (begin, end)


def _moment_of(axis_map: AxisMap, cuts: Mapping[int, float], stays: Sequence[GpuHold], x: float) -> float | None:
    """The moment of ``x`` in the newest attempt that was there; None if none was."""
    for stay in reversed(stays):
        reach = _moments_of(axis_map, stay, (x, x))
        was_running = reach is not None and stay.begin <= reach[0] <= stay.end
        if reach is not None and was_running and _place(axis_map, cuts, reach[0], stay.attempt) is not None:
            return reach[0]
    return None


def _place(axis_map: AxisMap, cuts: Mapping[int, float], at: float, attempt: int) -> float | None:
    if axis_map.axis in ("step", "epoch"):
        pairs = axis_map.paces.get(attempt, ())
        if not pairs or not pairs[0][0] <= at <= pairs[-1][0]:
            return None
        step = interpolate(pairs, at)
        if step is None or step >= cuts.get(attempt, math.inf):
            return None
    return axis_map.place_moment(at, attempt)
