"""The progress of a run from its metrics: step, loss, pace, ranks. Each read takes only new lines."""

from __future__ import annotations

import math
import sqlite3
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from gputui.core.text import clean
from gputui.metrics.curves.axis import Pairs, interpolate
from gputui.metrics.curves.model import ChartRequest
from gputui.runs.spec import asked_steps
from gputui.store.attempts import read_attempts
from gputui.store.metrics import queries
from gputui.store.metrics.queries import StepReport
from gputui.store.metrics.roles import LOSS, NO_ROLES, metric_roles
from gputui.store.metrics.step_lines import LineFilter, StepLines
from gputui.store.metrics.stored_lines import StoredLine, end_positions
from gputui.store.runs import Run

if TYPE_CHECKING:
    from gputui.metrics.curves.live_curves import RunCurves

_TIMES = ("step_time", "data_time", "comm_time")

RATE_WINDOW_SECONDS = 60.0
"""The pace is that of this time: long enough to be calm, short enough to show a change."""

LEFT_WINDOW_SECONDS = 600.0
"""What is left is told from the mean of this time, which has the pauses of validations and checkpoints in it."""

SPARK_POINTS = 24  # two for each column of the list of runs

THROUGHPUT = ("samples_per_s", "tokens_per_s", "images_per_s", "steps_per_s")
"""Common names of a throughput metric, best first."""

STRAGGLER_RATIO = 1.2
"""Least ``slowdown`` of a rank that holds the others up."""


class RankRow(NamedTuple):
    """One rank's newest metrics, None what it has not reported.

    Attributes:
        at: UTC unix seconds.
        step_seconds: The time of one step.
        data_seconds: The part of ``step_seconds`` in which it waited for data.
        comm_seconds: The part of ``step_seconds`` in which it waited for other ranks.
        slowdown: The rank's own time in a step over the median of all ranks' own times.
    """

    rank: int
    step: int | None = None
    at: float | None = None
    step_seconds: float | None = None
    data_seconds: float | None = None
    comm_seconds: float | None = None
    samples_per_second: float | None = None
    memory_bytes: float | None = None
    slowdown: float | None = None

    @property
    def own_seconds(self) -> float | None:
        """The time of a step without waiting for other ranks."""
        if self.step_seconds is None:
            return None
        return self.step_seconds - min(self.comm_seconds or 0.0, self.step_seconds)

    @property
    def waiting_fraction(self) -> float | None:
        """The share of a step spent waiting for data."""
        if self.data_seconds is None or not self.step_seconds:
            return None
        return self.data_seconds / self.step_seconds

    @property
    def is_slow(self) -> bool:
        """True if this rank holds the others up."""
        return self.slowdown is not None and self.slowdown >= STRAGGLER_RATIO


class Progress(Struct, frozen=True):
    """The progress of a run, from its metrics.

    Attributes:
        loss_name: The metric that is the run's loss.
        loss: The newest value of the loss.
        metric: The metric that the run's profile or study judges by.
        metric_value: The newest value of ``metric``.
        losses: A short curve of the loss, None where it is not finite.
        report_seconds: The time between lines with a new step.
        newest_at: When the newest line was written, UTC unix seconds.
    """

    step: int | None = None
    total_steps: int | None = None
    loss_name: str | None = None
    loss: float | None = None
    metric: str | None = None
    metric_value: float | None = None
    losses: tuple[float | None, ...] = ()
    steps_per_second: float | None = None
    report_seconds: float | None = None
    seconds_left: float | None = None
    newest_at: float | None = None
    ranks: Mapping[int, RankRow] = msgspec.field(default_factory=dict)

    @property
    def listed_metric(self) -> tuple[str, float | None]:
        """The name and value in lists of runs: the run's own metric once it was measured, until then its loss."""
        is_known = self.metric is not None and self.metric_value is not None
        if is_known:
            return (self.metric or "", self.metric_value)
        return (self.loss_name or LOSS, self.loss)

    @property
    def has_own_metric(self) -> bool:
        """True if it is judged by something else than its loss."""
        return self.metric not in (None, LOSS, self.loss_name)


class RunTracker:
    """One run's metrics so far: a short curve of the loss, and the newest report of each rank."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.names: tuple[str, ...] = ()
        self._losses: tuple[float | None, ...] = ()
        self._ranks: Mapping[int, RankRow] = {}
        self._newest: Mapping[str, float] = {}
        self._roles = NO_ROLES
        self._attempt: int | None = None
        """The attempt whose curve was read."""
        self._report_seconds: float | None = None

    @cached_property
    def _curves(self) -> RunCurves:
        from gputui.metrics.curves.live_curves import RunCurves  # not needed by a list of runs that are over

        return RunCurves(self.run_id)

    def read(self, connection: sqlite3.Connection, attempt: int, *, with_curve: bool = True) -> None:
        """Read what was stored since the last time; without the curve, that is quick even for a long run. Raises
        sqlite3.Error."""
        self._roles = metric_roles(connection, self.run_id)
        if with_curve:
            if attempt == self._attempt and not self._curves.has_news(connection):
                return
            attempts = read_attempts(connection, self.run_id)
            name = self._roles.loss or LOSS
            loss = self._curves.curves(connection, attempts, ChartRequest((name,), bins=SPARK_POINTS))[name]
            self._losses = at_equal_steps([(one_bin.last_x, one_bin.last) for one_bin in loss.bins])
        self._newest = queries.latest(connection, self.run_id)
        self.names = tuple(clean(name) for name in self._newest)
        lines = queries.ranks(connection, self.run_id, attempt)
        shared: Mapping[int, Mapping[str, float]] = {}
        if len(lines) > 1:
            shared = queries.rank_means(connection, self.run_id, attempt, len(lines))
        self._ranks = rank_rows(lines, shared)
        if with_curve:
            self._report_seconds = queries.report_seconds(connection, attempt, end_positions(connection, self.run_id))
            self._attempt = attempt

    def progress(self, run: Run) -> Progress:
        """The run's progress."""
        metrics = _NewestMetrics(self._roles.loss, self._newest, self._losses)
        reports = self._reports()
        return _progress(
            run,
            self._ranks,
            metrics,
            pace=pace_of(reports),
            mean_pace=mean_pace_of(reports),
            report_seconds=self._report_seconds,
        )

    def _reports(self) -> list[StepReport]:
        """The first report of each step of the last `LEFT_WINDOW_SECONDS`."""
        reports: list[StepReport] = []
        if self._attempt is not None:
            reports += _last(self._curves.pace(self._attempt), LEFT_WINDOW_SECONDS)
        of_ranks = [
            StepReport(rank.at, rank.step)
            for rank in self._ranks.values()
            if rank.at is not None and rank.step is not None
        ]
        newest = next(iter(of_ranks), None)
        if newest is not None and (not reports or newest.at > reports[-1].at):
            reports.append(newest)
        first_reports: list[StepReport] = []
        for report in reports:
            if not first_reports or report.step > first_reports[-1].step:
                first_reports.append(report)
        return first_reports


def pace_of(reports: Pairs) -> float | None:
    """The steps per second of the last `RATE_WINDOW_SECONDS`, or of a little more where older reports are thinned out:
    the median of the paces between reports, because a pause, such as a validation, is no pace."""
    recent = _last(reports, RATE_WINDOW_SECONDS)
    paces = [(later.step - earlier.step) / (later.at - earlier.at) for earlier, later in pairwise(recent)]
    if paces:
        return statistics.median(paces)
    return None


def mean_pace_of(reports: Pairs) -> float | None:
    """The steps per second of all reports, with the pauses."""
    if len(reports) < 2:
        return None
    first_at, first_step = reports[0]
    last_at, last_step = reports[-1]
    return (last_step - first_step) / (last_at - first_at)


def _last(reports: Pairs, seconds: float) -> list[StepReport]:
    """The reports of the last ``seconds``, and the one before them."""
    if not reports:
        return []
    newest_at, _ = reports[-1]
    later = bisect_right(reports, newest_at - seconds, key=lambda report: report[0])
    return [StepReport(at, step) for at, step in reports[max(0, later - 1) :]]


def progress_now(connection: sqlite3.Connection, run: Run) -> Progress:
    """The progress of a run now; its pace and what is left only while it goes on, so that ended ones are read at once.
    Raises sqlite3.Error."""
    tracker = RunTracker(run.run_id)
    if run.attempt:
        tracker.read(connection, run.attempt, with_curve=run.state in ("running", "stopping"))
    return tracker.progress(run)


def progress_at(connection: sqlite3.Connection, run: Run, at: float) -> tuple[Progress, tuple[str, ...]]:
    """The progress of ``run`` at the past moment ``at`` (UTC unix seconds), and the names of its metrics as harmless
    text. Raises sqlite3.Error."""
    from gputui.store.metrics import past  # most screens never show the past

    reached = past.positions_at(connection, run.run_id, at)
    if not reached:
        return Progress(step=run.last_step), ()
    newest = queries.latest(connection, run.run_id, at)
    ranks = rank_rows(queries.ranks(connection, run.run_id, run.attempt, at))
    line = StepLines(connection, run.run_id).newest(run.attempt, LineFilter(times=(0.0, at)))
    if line is not None and 0 in ranks:
        # Its newest line may be of a test, at a step of its own.
        ranks[0] = ranks[0]._replace(step=line.step)
    loss = run.roles.loss
    losses = at_equal_steps(past.sampled(connection, reached, loss or LOSS, SPARK_POINTS))
    pace = past.pace(connection, run.run_id, run.attempt, at, RATE_WINDOW_SECONDS)
    gap = queries.report_seconds(connection, run.attempt, reached)
    metrics = _NewestMetrics(loss, newest, losses)
    progress = _progress(run, ranks, metrics, pace=pace, mean_pace=pace, report_seconds=gap)
    return progress, tuple(clean(name) for name in newest)


def at_equal_steps(points: Sequence[tuple[float, float | None]]) -> tuple[float | None, ...]:
    """The values at up to `SPARK_POINTS` equally distant steps, which points are not: an attempt of a minute may have
    as many as one of a day. Beyond the last finite value they are unknown."""
    finite = sorted({step: value for step, value in points if value is not None and math.isfinite(value)}.items())
    if not finite:
        return ()
    start, _ = finite[0]
    last_known, _ = finite[-1]
    end = max(step for step, _ in points)
    count = min(SPARK_POINTS, len(finite))
    steps = [start + (end - start) * number / max(1, count - 1) for number in range(count)]
    values = [interpolate(finite, step) for step in steps if step <= last_known]
    return (*values, *[None] * (count - len(values)))


class _NewestMetrics(NamedTuple):
    """The name of the loss, the newest value of each metric, and a short curve of the loss."""

    loss_name: str | None
    newest: Mapping[str, float]
    losses: tuple[float | None, ...]


def _progress(
    run: Run,
    ranks: Mapping[int, RankRow],
    metrics: _NewestMetrics,
    pace: float | None,
    mean_pace: float | None,
    report_seconds: float | None,
) -> Progress:
    newest = metrics.newest
    step = max((rank.step for rank in ranks.values() if rank.step is not None), default=run.last_step)
    measured = newest
    if run.state.has_attempt and run.attempt > 1 and step is None:
        measured = {}  # what there is was measured before this attempt
    total_steps = _total_steps(newest)
    if total_steps is None:
        total_steps = asked_steps(run.params, step)
    # Trainer of transformers accepts the name without the prefix that it logs it with.
    metric = next((name for name in (run.metric, f"eval_{run.metric}") if name in newest), run.metric)
    seconds_left = None
    steps_left = 0 if step is None or total_steps is None else total_steps - step
    if run.state == "running" and mean_pace and steps_left > 0:
        seconds_left = steps_left / mean_pace
    return Progress(
        step=step,
        total_steps=total_steps,
        loss_name=metrics.loss_name,
        loss=measured.get(metrics.loss_name or LOSS),
        metric=metric,
        metric_value=measured.get(metric or ""),
        losses=metrics.losses,
        steps_per_second=pace,
        report_seconds=report_seconds,
        seconds_left=seconds_left,
        newest_at=max((rank.at for rank in ranks.values() if rank.at is not None), default=None),
        ranks=ranks,
    )


def _total_steps(newest: Mapping[str, float]) -> int | None:
    """The steps of the run, by its newest line that names them."""
    total = newest.get("total_steps")
    if total is None or not 0 < total < math.inf:
        return None
    return int(total)


def rank_rows(
    lines: Sequence[StoredLine], shared: Mapping[int, Mapping[str, float]] = MappingProxyType({})
) -> dict[int, RankRow]:
    """Make a row of each rank's newest values; a line without a rank is that of rank 0.

    ``slowdown`` compares the time that ranks spend on their own: all-reduce makes whole steps equally long, and the
    rank that waits least is the one that the others wait for. Different steps are not compared.

    Args:
        shared: Means over the same steps of all ranks, by rank.
    """
    rows = {line.rank or 0: _rank_row(line, shared.get(line.rank or 0, {})) for line in lines}
    if not shared and len({line.step for line in lines}) > 1:
        return rows
    own_seconds = {row.rank: row.own_seconds for row in rows.values() if row.own_seconds is not None}
    if len(own_seconds) < 2 or (median := statistics.median(own_seconds.values())) <= 0:
        return rows
    return rows | {rank: rows[rank]._replace(slowdown=seconds / median) for rank, seconds in own_seconds.items()}


def _rank_row(line: StoredLine, means: Mapping[str, float]) -> RankRow:
    values = {**line.data, **{name: means[name] for name in _TIMES if name in means}}
    throughput = next((values[name] for name in THROUGHPUT if name in values), None)
    return RankRow(
        rank=line.rank or 0,
        step=line.step,
        at=line.at,
        step_seconds=values.get("step_time"),
        data_seconds=values.get("data_time"),
        comm_seconds=values.get("comm_time"),
        samples_per_second=throughput,
        memory_bytes=values.get("gpu_mem_peak"),
    )
