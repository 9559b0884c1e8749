"""Curves of GPUs and host over the axis of a run, while its attempts used them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from gputui.metrics.curves.axis import AxisMap, AxisTimeline, interpolate
from gputui.metrics.curves.model import ChartRequest, HardwareCurve, HardwareField, Window
from gputui.metrics.draw.bins import Bin
from gputui.store.attempts import Attempt
from gputui.store.rollups import SampleSpan, SpanGrid, newest_sample, sample_at, sample_spans

SAMPLES_AT_ONCE = 200_000
"""Most samples read when a chart is opened, about 100 ms; of a longer time, only a part of each
span is read."""

APART_SECONDS = 10.0
"""Least distance of samples that are not joined by a line."""

APART_INTERVALS = 2.0
"""The same, in distances of the samples before."""

_BEFORE = 4
"""Distances from which the usual one is taken."""

LEAST_SECONDS = 60.0  # some samples, also where one is taken every ten seconds

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


class _View(NamedTuple):
    """A window on an axis, None for all of it, and the seconds of a span in it."""

    axis_map: AxisMap
    window: Window | None
    span_seconds: float


@dataclass(slots=True)
class _Device:
    """The spans and bins of one GPU, or of the host.

    Attributes:
        uuid: None for the host.
        columns: those of the samples, by field.
        final_bins: for each field, those of the spans whose place on the axis is final.
        spans: all with samples, in order.
        final_count: the number of spans whose place is final.
        last_placed: the last of these that has a place.
    """

    uuid: str | None
    columns: Mapping[HardwareField, str]
    final_bins: list[list[Bin]]
    spans: list[SampleSpan] = field(default_factory=list)
    final_count: int = 0
    last_placed: SampleSpan | None = None

    def read_new_spans(self, connection: sqlite3.Connection, grid: SpanGrid) -> None:
        """Read the spans after the newest known one, and that one again, which may have grown."""
        if self.spans:
            grid = grid._replace(first=self.spans[-1].number)
        spans = sample_spans(connection, self.uuid, list(self.columns.values()), grid)
        if spans and self.spans and spans[0].number == self.spans[-1].number:
            self.spans.pop()
        self.spans += spans

    def bins(self, holds: Sequence[GpuHold], view: _View) -> list[tuple[Bin, ...]]:
        """The bins of each field. Those of spans with a final place are made once."""
        end = self._final_end(view.axis_map)
        self.last_placed = self._add_bins(self.final_bins, range(self.final_count, end), holds, view)
        self.final_count = end
        later: list[list[Bin]] = [[] for _ in self.final_bins]
        self._add_bins(later, range(end, len(self.spans)), holds, view)
        return [(*final, *not_final) for final, not_final in zip(self.final_bins, later, strict=True)]

    def _final_end(self, axis_map: AxisMap) -> int:
        """The number of the first span whose place is not final: the newest, or an earlier one."""
        numbers = range(self.final_count, len(self.spans) - 1)
        newest = max(self.final_count, len(self.spans) - 1)
        return next((number for number in numbers if not _is_final(axis_map, self.spans[number])), newest)

    def _add_bins(
        self, bins: Sequence[list[Bin]], numbers: Iterable[int], holds: Sequence[GpuHold], view: _View
    ) -> SampleSpan | None:
        """Add a bin per field for each numbered span that has a place. Returns the last one that had."""
        before = self.last_placed
        for number in numbers:
            span = self.spans[number]
            ends = _ends_on_axis(span, holds, view)
            if ends is None:
                continue
            has_gap = before is not None and self._is_apart(number, before, view.span_seconds)
            for field_bins, (count, low, high, mean) in zip(bins, span.columns, strict=True):
                if count:
                    field_bins.append(Bin(*ends, low, high, mean, mean, count, gap_before=has_gap))
            before = span
        return before

    def _is_apart(self, number: int, before: SampleSpan, span_seconds: float) -> bool:
        """Tell whether a span is further from the one before than is usual there: old samples are kept as means of
        minutes and hours."""
        span = self.spans[number]
        if (span.number - before.number) * span_seconds <= max(span_seconds, APART_SECONDS):
            return False
        earlier = self.spans[max(0, number - 1 - _BEFORE) : number]
        usual = median([later.first_at - first.last_at for first, later in pairwise(earlier)] or [0.0])
        return span.first_at - before.last_at > APART_INTERVALS * usual


class HardwareCurves:
    """Reads the hardware curves of one run, and follows them; one per run and reader."""

    def __init__(self) -> None:
        self._read_as: tuple[object, ...] | None = None
        self._span_seconds = 1.0
        self._read_seconds = 1.0
        self._devices: dict[str | None, _Device] = {}

    def reset(self) -> None:
        """Read everything again next time: places on the axis have changed."""
        self._read_as = None

    def read(
        self, connection: sqlite3.Connection, attempts: Sequence[Attempt], axis_map: AxisMap, request: ChartRequest
    ) -> tuple[HardwareCurve, ...]:
        """Read a curve for each field and GPU of the run, and one for each field of the host.

        First and last value of a bin are its mean. Over steps and epochs, samples outside of an attempt's
        lines and of redone steps have no place. Raises sqlite3.Error.
        """
        holds = _holds_of(attempts, axis_map.timeline)
        uuids: list[str | None] = []
        if any(name in _GPU for name in request.hardware):
            uuids += sorted({hold.uuid for hold in holds if hold.uuid is not None})
        if any(name in _HOST for name in request.hardware):
            uuids.append(None)
        holds = [hold for hold in holds if hold.uuid in uuids]
        moments = self._moments(connection, holds, axis_map, request.window)
        if moments is None:
            return ()
        self._choose_span(moments, len(uuids), axis_map.timeline, request)
        curves: list[HardwareCurve] = []
        for uuid in uuids:
            holds_of_device = [hold for hold in holds if hold.uuid == uuid]
            curves += self._device_curves(
                connection, uuid, holds_of_device, axis_map=axis_map, moments=moments, request=request
            )
        return tuple(sorted(curves, key=lambda curve: request.hardware.index(curve.field)))

    def _moments(
        self, connection: sqlite3.Connection, holds: Sequence[GpuHold], axis_map: AxisMap, window: Window | None
    ) -> Window | None:
        """The stretch of time that is shown; None if nothing was sampled in it."""
        begins = []
        ends = []
        for hold in holds:
            stretch: Window | None = (hold.begin, hold.end)
            if window is not None:
                stretch = _moments_of(axis_map, hold, window)
            if stretch is not None:
                begin, end = stretch
                begins.append(max(hold.begin, begin))
                ends.append(min(hold.end, end))
        sampled = [newest_sample(connection, uuid) for uuid in {hold.uuid for hold in holds}]
        newest = max((at for at in sampled if at is not None), default=None)
        if newest is None or not begins:
            return None
        oldest_shown = min(begins)
        newest_shown = min(max(ends), newest)
        if newest_shown < oldest_shown:
            return None
        return (oldest_shown, newest_shown)

    def _choose_span(self, moments: Window, devices: int, timeline: AxisTimeline, request: ChartRequest) -> None:
        """Choose the length of a span; it is kept until there are too many spans."""
        bins = max(2, request.bins)
        begin, end = moments
        length = max(1.0, end - begin)
        drawn_as = (request.axis, request.window, request.bins, request.hardware, timeline.begins, timeline.ends)
        if drawn_as == self._read_as and length / self._span_seconds <= 2 * bins:
            return
        self._read_as = drawn_as
        self._devices.clear()
        self._span_seconds = 2.0 ** math.ceil(math.log2(length / bins))
        # For one sample a second; a slower recorder still has samples in each part.
        share = min(1.0, SAMPLES_AT_ONCE / (length * devices))
        self._read_seconds = min(self._span_seconds, max(self._span_seconds * share, LEAST_SECONDS))

    def _device(self, uuid: str | None, fields: Sequence[HardwareField]) -> _Device:
        device = self._devices.get(uuid)
        if device is None:
            column_of = _HOST if uuid is None else _GPU
            columns = {name: column_of[name] for name in fields if name in column_of}
            device = _Device(uuid, columns, [[] for _ in columns])
            self._devices[uuid] = device
        return device

    def _device_curves(
        self,
        connection: sqlite3.Connection,
        uuid: str | None,
        holds: Sequence[GpuHold],
        axis_map: AxisMap,
        moments: Window,
        request: ChartRequest,
    ) -> Iterator[HardwareCurve]:
        """The curves of the requested fields of one GPU or of the host."""
        device = self._device(uuid, request.hardware)
        first, last = (math.floor(moment / self._span_seconds) for moment in moments)
        device.read_new_spans(connection, SpanGrid(self._span_seconds, first, last, read_seconds=self._read_seconds))
        sample: Mapping[str, float | None] = {}
        if request.cursor is not None:
            moment = _moment_of(axis_map, holds, request.cursor)
            if moment is not None:
                sample = sample_at(connection, uuid, list(device.columns.values()), moment) or {}
        drawn = device.bins(holds, _View(axis_map, request.window, self._span_seconds))
        for (name, column), bins in zip(device.columns.items(), drawn, strict=True):
            newest = bins[-1].last if bins else None
            yield HardwareCurve(name, uuid, bins, newest, sample.get(column))


def _ends_on_axis(span: SampleSpan, holds: Sequence[GpuHold], view: _View) -> Window | None:
    """The x of the first and last sample of a span; None where no attempt used the device, or outside of the window."""
    hold = next((hold for hold in holds if hold.begin <= span.last_at and span.first_at <= hold.end), None)
    if hold is None:
        return None
    start = _place(view.axis_map, max(span.first_at, hold.begin), hold.attempt)
    end = _place(view.axis_map, min(span.last_at, hold.end), hold.attempt)
    if start is None or end is None:
        return None
    if view.window is not None:
        first, last = view.window
        if end < first or start > last:
            return None
    return (start, end)


def _is_final(axis_map: AxisMap, span: SampleSpan) -> bool:
    """Return whether the place of a span is final: over steps, not before a later step is known."""
    if axis_map.axis in ("time", "trained"):
        return True
    for pairs in axis_map.paces.values():
        if not pairs:
            continue
        newest_at, _ = pairs[-1]
        if newest_at > span.last_at:
            return True
    return False


def _holds_of(attempts: Sequence[Attempt], timeline: AxisTimeline) -> list[GpuHold]:
    holds = []
    for attempt in attempts:
        begin = timeline.begins.get(attempt.number)
        if begin is None:
            continue
        end = timeline.ends.get(attempt.number, math.inf)
        holds += [GpuHold(uuid, attempt.number, begin, end) for uuid in (*attempt.gpus, None)]
    return holds


def _moments_of(axis_map: AxisMap, hold: GpuHold, window: Window) -> Window | None:
    """The moments of an attempt that a window shows."""
    if axis_map.axis in ("time", "trained"):
        offset = axis_map.place_moment(0.0, hold.attempt)
        if offset is None:
            return None
        first_x, last_x = window
        return (first_x - offset, last_x - offset)
    steps = _steps_of(axis_map, hold, window)
    pairs = axis_map.paces.get(hold.attempt, ())
    if steps is None or not pairs:
        return None
    first, last = steps
    at_by_step = [(step, at) for at, step in pairs]
    oldest_step, _ = at_by_step[0]
    newest_step, _ = at_by_step[-1]
    if last < oldest_step or first > newest_step:
        return None
    begin = interpolate(at_by_step, first)
    end = interpolate(at_by_step, last)
    if begin is None or end is None:
        return None
    return (begin, end)


def _steps_of(axis_map: AxisMap, hold: GpuHold, window: Window) -> Window | None:
    """The first and the last step that a window over steps or epochs shows of an attempt; None if it has no place
    there."""
    if axis_map.axis != "epoch":
        return window
    step_by_epoch = [(epoch, step) for step, epoch in axis_map.epochs.get(hold.attempt, ())]
    first_epoch, last_epoch = window
    first = interpolate(step_by_epoch, first_epoch)
    last = interpolate(step_by_epoch, last_epoch)
    if first is None or last is None:
        return None
    return (first, last)


def _moment_of(axis_map: AxisMap, holds: Sequence[GpuHold], x: float) -> float | None:
    """The moment of ``x`` in the newest attempt that was there; None if none was."""
    for hold in reversed(holds):
        moments = _moments_of(axis_map, hold, (x, x))
        if moments is None:
            continue
        moment, _ = moments
        if hold.begin <= moment <= hold.end and _place(axis_map, moment, hold.attempt) is not None:
            return moment
    return None


def _place(axis_map: AxisMap, at: float, attempt: int) -> float | None:
    """The x of a moment of an attempt; None where it has no line, or a step that was done again."""
    if axis_map.axis in ("step", "epoch"):
        pairs = axis_map.paces.get(attempt, ())
        if not pairs:
            return None
        oldest_at, _ = pairs[0]
        newest_at, _ = pairs[-1]
        if not oldest_at <= at <= newest_at:
            return None
        step = interpolate(pairs, at)
        if step is None or step >= axis_map.cuts.get(attempt, math.inf):
            return None
    return axis_map.place_moment(at, attempt)
