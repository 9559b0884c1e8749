"""The curves of one run, followed as it grows: a request is answered from what was read before and what came since."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gputui.charts.envelope import Bin, Buckets
from gputui.charts.safe_text import clean
from gputui.curves.axis import AxisMap, Timeline, epoch_pairs
from gputui.curves.model import AttemptCurve, Axis, ChartData, ChartRequest, Curve, Frame, Window
from gputui.curves.smooth import is_set, smooth_bins
from gputui.store import metric_queries
from gputui.store.metric_queries import Cursor
from gputui.store.views import AttemptView

# Bins kept for each one asked for, so that what is shown hardly moves as a run grows.
OVERSAMPLING = 2


class RunCurves:
    """What is known of one run's curves. One per reader; not for several threads at once."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._curves: dict[str, _Followed] = {}
        self._asked_as: tuple[Axis, Window | None, int] | None = None
        self._map = AxisMap("step", Timeline(None))
        self._cuts: Mapping[int, float] = {}

    def read(self, connection: sqlite3.Connection, attempts: Sequence[AttemptView], request: ChartRequest) -> ChartData:
        """The answer to ``request``. Raises sqlite3.Error."""
        names = metric_queries.metric_names(connection, self.run_id)
        by_words = {clean(name): name for name in reversed(names)}
        self._prepare(connection, attempts, request)
        curves = {}
        for asked in request.names:
            name = asked if asked in names else by_words.get(asked, asked)
            curves[asked] = self._curve(connection, name, request)
        for name in [name for name in self._curves if name not in curves and clean(name) not in curves]:
            del self._curves[name]
        ends = [each for curve in self._curves.values() for each in curve.ends()]
        frame = Frame(
            request.axis,
            min((start for start, _ in ends), default=None),
            max((end for _, end in ends), default=None),
            self._map.timeline.origin_at,
        )
        return ChartData(request, frame, tuple(clean(name) for name in names), curves)

    def _prepare(self, connection: sqlite3.Connection, attempts: Sequence[AttemptView], request: ChartRequest) -> None:
        """Begin anew where the axis, the window or what earlier attempts are worth has changed."""
        epochs = self._epochs(connection) if request.axis == "epoch" else {}
        axis_map = AxisMap(request.axis, Timeline.of(attempts), epochs)
        cuts = _cuts(attempts) if request.axis in ("step", "epoch") else {}
        asked_as = (request.axis, request.window, request.bins)
        if (asked_as, axis_map.epochs, axis_map.timeline.begins, cuts) != (
            self._asked_as, self._map.epochs, self._map.timeline.begins, self._cuts,
        ):  # fmt: skip
            self._curves.clear()
        self._asked_as, self._map, self._cuts = asked_as, axis_map, cuts

    def _epochs(self, connection: sqlite3.Connection) -> dict[int, list[tuple[float, float]]]:
        points: dict[int, list[tuple[float, float]]] = {}
        for point in metric_queries.series(connection, self.run_id, "epoch")[0]:
            if point.rank in (None, 0) and point.step is not None:
                points.setdefault(point.attempt, []).append((float(point.step), point.value))
        return {attempt: epoch_pairs(found) for attempt, found in points.items()}

    def _curve(self, connection: sqlite3.Connection, name: str, request: ChartRequest) -> Curve:
        followed = self._curves.get(name)
        if followed is None:
            followed = self._curves[name] = _Followed(name, request)
        followed.read(connection, self.run_id, self._map, self._cuts)
        return followed.curve(request)


@dataclass(slots=True)
class _Attempt:
    """What one attempt measured: what holds, and what later attempts did again."""

    kept: Buckets
    redone: Buckets


@dataclass(slots=True)
class _Followed:
    """One metric on one axis."""

    name: str
    request: ChartRequest
    cursor: Cursor | None = None
    last: float | None = None
    unplaced: int = 0
    _attempts: dict[int, _Attempt] = field(default_factory=dict)
    _start: float = math.inf
    _end: float = -math.inf

    def read(self, connection: sqlite3.Connection, run_id: str, axis_map: AxisMap, cuts: Mapping[int, float]) -> None:
        window = self.request.window
        points, self.cursor = metric_queries.series(connection, run_id, self.name, self.cursor)
        for point in points:
            if point.rank not in (None, 0):
                continue
            self.last = point.value
            x = axis_map.place(point.attempt, point.step, point.at)
            if x is None:
                self.unplaced += 1
                continue
            self._start, self._end = min(self._start, x), max(self._end, x)
            if window is not None and not window[0] <= x <= window[1]:
                continue
            attempt = self._attempts.get(point.attempt)
            if attempt is None:
                attempt = self._attempts[point.attempt] = _Attempt(self._buckets(), self._buckets())
            is_redone = point.step is not None and point.step >= cuts.get(point.attempt, math.inf)
            (attempt.redone if is_redone else attempt.kept).append(x, point.value)

    def ends(self) -> list[tuple[float, float]]:
        """First and last x, in a list that is empty where there is none."""
        return [(self._start, self._end)] if self._start <= self._end else []

    def curve(self, request: ChartRequest) -> Curve:
        """What is known now."""
        kept: list[Bin] = []
        redone: list[Bin] = []
        attempts = []
        for number, attempt in sorted(self._attempts.items()):
            own, again = attempt.kept.bins(request.bins), attempt.redone.bins(request.bins)
            kept += _broken_off(own) if kept else own
            redone += _broken_off(again)
            attempts.append(AttemptCurve(number, (*own, *again)))
        kept.sort(key=lambda each: each.first_x)
        wants_smooth = request.smoothing > 0 and not is_set(self.name)
        return Curve(
            name=clean(self.name),
            bins=tuple(kept),
            redone=tuple(redone),
            smooth=tuple(smooth_bins(kept, request.smoothing)) if wants_smooth else (),
            attempts=tuple(attempts),
            last=self.last,
            problem=None if self._attempts else self._problem(),
        )

    def _problem(self) -> str:
        if self.last is None:
            return "nothing measured yet"
        if self.ends():
            return "nothing measured in this window"
        return "no epoch is known yet" if self.request.axis == "epoch" else f"its lines tell no {self.request.axis}"

    def _buckets(self) -> Buckets:
        request = self.request
        capacity = max(2, OVERSAMPLING * request.bins)
        resolution = 1.0 if request.axis == "step" else 1e-3
        if request.window is not None:
            resolution = max((request.window[1] - request.window[0]) / capacity, 1e-9)
        return Buckets(resolution, capacity)


def _cuts(attempts: Sequence[AttemptView]) -> dict[int, float]:
    """For each attempt the first step that a later one did again."""
    cuts: dict[int, float] = {}
    lowest = math.inf
    for attempt in sorted(attempts, key=lambda each: -each.number):
        cuts[attempt.number] = lowest
        if attempt.first_step is not None:
            lowest = min(lowest, attempt.first_step)
    return cuts


def _broken_off(bins: Sequence[Bin]) -> list[Bin]:
    """The bins, with a gap before the first."""
    if not bins:
        return []
    first = bins[0].copy()
    first.gap_before = True
    return [first, *bins[1:]]
