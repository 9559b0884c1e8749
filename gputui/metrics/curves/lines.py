"""The lines of a run for its curves: reduced ones where they are fine enough, else line by line,
and what they become: pairs of step, moment and epoch, and bins of a metric."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import orjson
from msgspec import Struct

from gputui.core.text import clean
from gputui.metrics.curves.axis import AxisMap, AxisTimeline, Reach, epoch_pairs
from gputui.metrics.curves.model import AttemptCurve, ChartRequest, MetricCurve, Window, is_set
from gputui.metrics.draw.envelope import Bin, Buckets
from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import FAN, Entry, Stretch
from gputui.store.metrics.queries import FilePosition, as_float, named_by_event, rows_between

LINES_IN_FULL = 4096
"""A window with at most this many lines is read line by line: about 10 ms."""

PACE_SECONDS = 1.0
"""Least time between two kept pairs of a moment and a step."""

MOST_PAIRS = 20_000

EPOCH = "epoch"
RESOLUTION = {"step": 1.0, "time": 0.1, "trained": 0.1, "epoch": 1e-4}

_ALL = AxisMap("step", AxisTimeline(None))

Share = Literal["kept", "redone", "mixed"]


class CurveLine(NamedTuple):
    """A line of rank 0 or without a rank, with a step. ``at`` is UTC unix seconds."""

    attempt: int
    step: int
    at: float | None
    values: Mapping[str, Any]


class Layout(Struct, frozen=True):
    """The stored lines of a run at one moment. ``until`` is the end of the last line of each
    source, ``line_count`` counts the lines of all ranks."""

    until: Mapping[int, FilePosition]
    line_count: int
    stretches: Sequence[Stretch]

    def unreduced(self) -> Iterator[tuple[int, FilePosition, FilePosition]]:
        """(source, begin, end) of the lines after the last stretch of each source."""
        ends = {stretch.source_id: stretch.end for stretch in self.stretches}
        for source_id, until in self.until.items():
            yield source_id, ends.get(source_id, (0, 0)), until


def sources(connection: sqlite3.Connection, run_id: str) -> tuple[dict[int, FilePosition], int]:
    """The end of each source, and the number of lines."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset, line_count FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}, sum(row[3] for row in rows)


def layout(connection: sqlite3.Connection, run_id: str) -> Layout:
    """The current layout of a run's lines."""
    return Layout(*sources(connection, run_id), envelopes.stretches(connection, run_id))


def lines(
    connection: sqlite3.Connection, places: Iterable[tuple[int, FilePosition, FilePosition]]
) -> Iterator[CurveLine]:
    """The lines of some (source, begin, end), in the order in which they were written."""
    new = tuple.__new__
    where = "AND (rank IS NULL OR rank = 0) AND step IS NOT NULL"
    for source_id, begin, end in places:
        rows = rows_between(connection, source_id, begin, end, columns="attempt, step, at, data", where=where)
        for attempt, step, at, data in rows:
            yield new(CurveLine, (attempt, step, at, named_by_event(orjson.loads(data))))


class Part(Struct, frozen=True):
    """Consecutive stretches of one attempt in one source that are read in the same way. ``count``
    is how many stretches the attempt has in this source."""

    share: Share
    stretches: Sequence[Stretch]
    count: int

    @property
    def place(self) -> tuple[int, FilePosition, FilePosition]:
        """(source, begin, end) of its lines."""
        return self.stretches[0].source_id, self.stretches[0].begin, self.stretches[-1].end

    @property
    def line_count(self) -> int:
        return sum(stretch.line_count for stretch in self.stretches)

    def entries(self, connection: sqlite3.Connection, name: str, level: int) -> Iterator[Entry]:
        """The entries of one metric, reduced to at most ``level``."""
        first, last = self.stretches[0], self.stretches[-1]
        for at, begin, end in envelopes.pieces(first.number, last.number + 1, self.count, level):
            yield from envelopes.entries(connection, first.source_id, first.attempt, name, at, begin, end)


def parts(found: Sequence[Stretch], axis_map: AxisMap, window: Window | None, cuts: Mapping[int, float]) -> list[Part]:
    """The stretches in a window, or all, as parts. Steps of an attempt from its cut on were done
    again by a later one; a stretch with steps on both sides of the cut is a separate, mixed part.
    """

    def share(stretch: Stretch) -> Share:
        cut = cuts.get(stretch.attempt, math.inf)
        return "kept" if stretch.max_step < cut else "redone" if stretch.min_step >= cut else "mixed"

    counts = {(stretch.source_id, stretch.attempt): stretch.number + 1 for stretch in found}
    if window is not None:
        reaches: dict[int, Reach] = {number: axis_map.reach(number, window) for _, number in counts}
        found = [
            stretch
            for stretch in found
            if reaches[stretch.attempt].touches(stretch.min_step, stretch.max_step, stretch.min_at, stretch.max_at)
        ]
    made = []
    for key, group in groupby(
        enumerate(found), lambda item: (item[1].source_id, item[1].attempt, item[1].number - item[0], share(item[1]))
    ):
        made.append(Part(key[3], [stretch for _, stretch in group], counts[key[0], key[1]]))
    return made


def by_level(found: Iterable[Part], level_of: Callable[[Stretch], int | None]) -> Iterator[tuple[Part, int | None]]:
    """The parts, split where the level changes; level None is line by line."""
    for part in found:
        for level, group in groupby(part.stretches, level_of):
            yield Part(part.share, list(group), part.count), level


def epoch_points(
    connection: sqlite3.Connection, found: Sequence[Stretch], wanted: int
) -> Iterator[tuple[int, float, float]]:
    """(attempt, step, epoch) of stretches, finer where the epoch changes."""
    for part in parts(found, _ALL, None, {}):
        key = (part.stretches[0].source_id, part.stretches[0].attempt, EPOCH)
        highest = envelopes.level_for(part.line_count, wanted)
        first, last = part.stretches[0].number, part.stretches[-1].number
        for level, begin, end in envelopes.pieces(first, last + 1, part.count, highest):
            for entry in envelopes.entries(connection, *key, level, begin, end):
                finer: Iterable[Entry] = (entry,)
                if level and entry.low < entry.high:
                    blocks = int(FAN**level)
                    finer = envelopes.entries(connection, *key, 0, entry.place * blocks, (entry.place + 1) * blocks)
                for each in finer:
                    if each.has_finite:
                        yield key[1], float(each.first_step), each.first
                        yield key[1], float(each.last_step), each.last


# --- steps, moments and epochs --------------------------------------------------------------------


class Paces:
    """(moment, step) pairs by attempt, both increasing."""

    def __init__(self) -> None:
        self.pairs: dict[int, list[tuple[float, float]]] = {}

    def add(self, attempt: int, step: int, at: float | None) -> None:
        """Add the pair of a line."""
        if at is None:
            return
        known = self.pairs.setdefault(attempt, [])
        if not known or (at - known[-1][0] >= PACE_SECONDS and step >= known[-1][1]):
            known.append((at, float(step)))
            _thin(known)


class Epochs:
    """(step, epoch) pairs by attempt."""

    def __init__(self) -> None:
        self._written: dict[int, list[tuple[float, float]]] = {}
        self._settled: dict[int, list[tuple[float, float]]] | None = None
        self._newest: dict[int, float] = {}

    def add(self, line: CurveLine) -> bool:
        """Add the pair of a line. False if, after `settle`, it moves earlier lines: an epoch has
        ended, and its length is known now."""
        epoch = as_float(line.values.get(EPOCH))
        if epoch is None or not math.isfinite(epoch):
            return True
        if self._settled is None:
            self.add_pair(line.attempt, float(line.step), epoch)
            return True
        if line.attempt in self._newest:
            return epoch <= self._newest[line.attempt]
        pairs = self._settled.get(line.attempt)
        if pairs is None:
            return False
        if not pairs or (line.step > pairs[-1][0] and epoch >= pairs[-1][1]):
            pairs.append((float(line.step), epoch))
            _thin(pairs)
        return True

    def add_pair(self, attempt: int, step: float, epoch: float) -> None:
        """Add a pair as it was written, before `settle`."""
        self._written.setdefault(attempt, []).append((step, epoch))

    def settle(self) -> dict[int, list[tuple[float, float]]]:
        """The pairs of the axis, with fractions of epochs. Those of attempts that write fractions
        keep growing."""
        self._settled = {attempt: epoch_pairs(written) for attempt, written in self._written.items()}
        for attempt, written in self._written.items():
            if all(epoch == math.floor(epoch) for _, epoch in written):
                self._newest[attempt] = max(epoch for _, epoch in written)
        self._written.clear()
        return self._settled


def _thin(pairs: list[tuple[float, float]]) -> None:
    """Drop every other pair but the ends if there are too many."""
    if len(pairs) > MOST_PAIRS:
        del pairs[1:-1:2]


# --- bins -----------------------------------------------------------------------------------------


class Followed:
    """A metric, fed with lines in the order in which they were written. ``cuts`` gives for each
    attempt the first step that a later one did again; bins are at least ``resolution`` wide."""

    def __init__(self, name: str, request: ChartRequest, cuts: Mapping[int, float], resolution: float = 0.0) -> None:
        self.name = name
        self.last: float | None = None
        self._resolution = resolution
        self._request = request
        self._cuts = cuts
        # By attempt, and whether a later one did these steps again.
        self._buckets: dict[tuple[int, bool], Buckets] = {}
        self._was_seen = False
        self._was_placed = False
        self._curve: MetricCurve | None = None

    def take(self, line: CurveLine, x: float | None) -> None:
        """Add a line that lies at ``x``."""
        value = as_float(line.values.get(self.name))
        if value is None:
            return
        self._was_seen = True
        if x is None:
            return
        self._was_placed = True
        window = self._request.window
        if window is None or window[0] <= x <= window[1]:
            self.last = value
            is_redone = line.step >= self._cuts.get(line.attempt, math.inf)
            self._changed_buckets(line.attempt, is_redone=is_redone).append(x, value)

    def take_entries(self, attempt: int, entries: Iterable[Entry], axis_map: AxisMap, *, is_redone: bool) -> None:
        """Add reduced lines."""
        place = axis_map.place
        low, high = self._request.window or (-math.inf, math.inf)
        buckets: Buckets | None = None
        for entry in entries:
            self._was_seen = True
            first_at, last_at = entry[11], entry[12]
            start = place(attempt, entry[9], first_at if first_at == first_at else None)
            end = place(attempt, entry[10], last_at if last_at == last_at else None)
            if start is None or end is None:
                continue
            self._was_placed = True
            if end < low or start > high:
                continue
            if entry.low == entry.low:
                found = Bin(start, end, *entry[5:9], *entry[1:5])
            else:
                found = Bin(start, start, None, None, None, None, *entry[1:5])
            buckets = buckets or self._changed_buckets(attempt, is_redone=is_redone)
            buckets.take(found)

    def curve(self, request: ChartRequest, last: float | None) -> MetricCurve:
        """The curve now; the same object as before if nothing changed. ``last`` is the newest value
        of the metric."""
        if self._curve is None or request != self._request:
            self._request = request
            attempts = [
                AttemptBins(number, self._bins((number, False)), self._bins((number, True)))
                for number in sorted({number for number, _ in self._buckets})
            ]
            problem = None if attempts else self._problem(last)
            self._curve = joined_curve(self.name, request, attempts, last=last, problem=problem)
        return self._curve

    def _problem(self, last: float | None) -> str:
        if last is None and not self._was_seen:
            return "nothing measured yet"
        if self._was_placed or not self._was_seen:
            return "nothing measured in this window"
        return "no epoch is known yet" if self._request.axis == EPOCH else "its lines tell no time"

    def _bins(self, key: tuple[int, bool]) -> Sequence[Bin]:
        if key not in self._buckets:
            return []
        start, end = self._request.window or (-math.inf, math.inf)
        return self._buckets[key].bins(max(2, self._request.bins), start, end)

    def _changed_buckets(self, attempt: int, *, is_redone: bool) -> Buckets:
        self._curve = None
        key = attempt, is_redone
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = new_buckets(self._request, self._resolution)
        return found


def new_buckets(request: ChartRequest, least: float = 0.0) -> Buckets:
    """Buckets for a request, on a linear axis at least ``least`` wide."""
    bins, window = max(2, request.bins), request.window
    if request.is_log:
        decades = 1e-4
        if window is not None and window[1] > window[0] > 0:
            decades = max(decades, math.log10(window[1] / window[0]) / max(1, bins - 2))
        return Buckets(decades, 2 * bins if window is None else 4 * bins, is_log=True)
    if window is None or not window[1] > window[0]:
        return Buckets(max(RESOLUTION[request.axis], least), 2 * bins)
    # The requested number lies in the window; bins across its ends have room beside them.
    return Buckets(max((window[1] - window[0]) / max(1, bins - 2), least), 4 * bins)


class AttemptBins(NamedTuple):
    """The bins of one attempt: those that count, and those of steps that a later attempt did again."""

    attempt: int
    kept: Sequence[Bin]
    redone: Sequence[Bin]


def joined_curve(
    name: str, request: ChartRequest, attempts: Sequence[AttemptBins], *, last: float | None, problem: str | None
) -> MetricCurve:
    """The curve of a metric from the bins of its attempts, oldest attempt first. ``last`` is the
    newest value."""
    kept: list[Bin] = []
    redone: list[Bin] = []
    for attempt in attempts:
        kept += _broken_off(attempt.kept) if kept else attempt.kept
        redone += _broken_off(attempt.redone)
    if len(attempts) > 1:
        kept.sort(key=lambda kept_bin: kept_bin.first_x)
    return MetricCurve(
        name=clean(name),
        bins=tuple(kept),
        redone=tuple(redone),
        smooth=tuple(smooth_bins(kept, request.smoothing)) if request.smoothing > 0 and not is_set(name) else (),
        attempts=tuple(AttemptCurve(attempt.attempt, (*attempt.kept, *attempt.redone)) for attempt in attempts),
        last=last,
        problem=problem,
    )


def _broken_off(bins: Sequence[Bin]) -> list[Bin]:
    """The bins, with a gap before the first."""
    if not bins:
        return []
    first = bins[0].copy()
    first.gap_before = True
    return [first, *bins[1:]]


def smooth_bins(bins: Iterable[Bin], weight: float) -> list[Bin]:
    """The exponential average of each bin's mean of first and last value, at its middle; bins
    without a finite value are skipped. ``weight`` is that of the past, from 0 to below 1. The sum
    is divided by the total weight 1 − wⁿ of n values (the bias correction of Adam, Kingma and Ba
    2015, section 3)."""
    total, missing = 0.0, 1.0
    smoothed = []
    for each in bins:
        if each.first is None or each.last is None:
            continue
        total = weight * total + (1 - weight) * (each.first / 2 + each.last / 2)
        missing *= weight
        value, middle = total / (1 - missing), each.first_x / 2 + each.last_x / 2
        smoothed.append(Bin(middle, middle, value, value, value, value, each.points, gap_before=each.gap_before))
    return smoothed
