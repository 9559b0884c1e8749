"""Read the facts of runs from the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.curves.live_curves import read_charts
from gputui.metrics.curves.model import ChartRequest
from gputui.metrics.curves.plot import drawing, hardware_drawing
from gputui.metrics.draw.parts import Chart
from gputui.recovery.run_history import RunHistory, total_cost
from gputui.recovery.watch.learning_rate import expected_rate
from gputui.recovery.watch.overrides import of_profile
from gputui.reports.summary.facts import IDLE_PERCENT, GpuUse, RunFacts, spread
from gputui.reports.summary.story import recoveries
from gputui.reports.summary.tally import ExpectedRate, measure
from gputui.runs.spec import RunSpec
from gputui.runs.stored_spec import known_spec
from gputui.store.attempts import Attempt, run_cost
from gputui.store.gpu_use import Stay, gpu_counts
from gputui.store.metrics import queries
from gputui.store.runs import Run, read_runs

PICTURE_BINS = 600  # more than the columns of a picture can show
PICTURES = ("grad_norm", "lr", "samples_per_s", "step_time")
"""Metrics that are drawn behind the losses, if the run has them; validation and training loss share a chart."""
# Parameters that may differ between runs whose scaling is compared.
_SCALED_ROLES = ("batch_size", "grad_accum", "num_workers", "lr")

_SEARCHED_RUNS = 500  # each is compared by its stored specification


def active_since(connection: sqlite3.Connection, since: float) -> list[Run]:
    """Runs that had started and were not over before ``since`` (UTC unix seconds), oldest first."""
    active = [
        run
        for run in read_runs(connection)
        if run.started_at is not None and (run.ended_at is None or run.ended_at >= since)
    ]
    return active[::-1]


class _Scale(NamedTuple):
    """The part of a run in a comparison of scaling.

    Attributes:
        key: equal for runs that can be compared.
        ranks: the number of GPUs, or of processes without GPUs; 0 if it is unknown.
    """

    key: str
    has_gpus: bool
    ranks: int

    @classmethod
    def of(cls, run: Run) -> _Scale:
        spec = known_spec(run)
        return cls(scaling_key(run, spec), bool(run.gpu_total), run.gpu_total or _processes(run, spec))

    @property
    def kind(self) -> tuple[str, bool]:
        """What is equal for runs of one curve of scaling."""
        return self.key, self.has_gpus


def siblings(connection: sqlite3.Connection, runs: Sequence[Run], limit: int = 8) -> list[Run]:
    """The newest other runs of the same profiles with the same parameters and other numbers of GPUs
    (or of processes without GPUs): one per number, with a measured speed."""
    given_ids = {run.run_id for run in runs}
    comparable = {_Scale.of(run).kind for run in runs}
    covered = {_Scale.of(run) for run in runs if _has_speed(connection, run)}
    others: list[Run] = []
    for run in read_runs(connection, limit=_SEARCHED_RUNS):
        scale = _Scale.of(run)
        is_comparable = scale.ranks > 0 and scale.kind in comparable
        if run.run_id in given_ids or not is_comparable or scale in covered:
            continue
        if _has_speed(connection, run):
            covered.add(scale)
            others.append(run)
    return others[:limit]


def _has_speed(connection: sqlite3.Connection, run: Run) -> bool:
    newest = queries.latest(connection, run.run_id)
    speeds = (newest.get(name, 0.0) for name in ("samples_per_s", "tokens_per_s"))
    return any(0 < speed < float("inf") for speed in speeds)


def read_facts(connection: sqlite3.Connection, run: Run, now: float, *, with_pictures: bool = False) -> RunFacts:
    """Everything of one run up to ``now``. Raises sqlite3.Error."""
    history = RunHistory.read(connection, run)
    spec = known_spec(run)
    attempts = history.attempts
    failures = history.failures()
    lines = queries.lines(connection, run.run_id)
    launched = run.params
    thresholds: Mapping[str, float] = {}
    if spec is not None:
        launched = spec.params
        thresholds = spec.gates
    pictures: list[Chart] = []
    if with_pictures:
        pictures = [*_metric_pictures(connection, run), *_hardware_pictures(connection, run)]
    return RunFacts(
        run=run,
        attempts=len(attempts),
        last_step=max((attempt.last_step for attempt in attempts if attempt.last_step is not None), default=None),
        launched=launched,
        like=scaling_key(run, spec),
        cost=run_cost(connection, run.run_id, now),
        lost=total_cost(failures),
        recoveries=recoveries(failures, spec),
        thresholds=thresholds,
        measured=measure(lines, attempts, _expected(attempts, spec), run.roles),
        gpus=_gpu_use(connection, attempts, now),
        pictures=pictures,
        process_count=_processes(run, spec),
        took_seconds=run.trained_seconds(now),
    )


def _processes(run: Run, spec: RunSpec | None) -> int:
    """The number of processes of a run without GPUs."""
    if spec is None or run.gpus or spec.gpus.count:
        return 0
    return spec.nproc


def scaling_key(run: Run, spec: RunSpec | None) -> str:
    """A key that is equal for runs whose scaling can be compared."""
    params = dict(run.params)
    if spec is not None:
        params = dict(spec.params)
        for role in _SCALED_ROLES:
            params.pop(spec.role(role, params) or "", None)
    return json.dumps([run.profile, sorted((name, str(value)) for name, value in params.items())])


def _expected(attempts: Sequence[Attempt], spec: RunSpec | None) -> ExpectedRate:
    """The expected learning rate: reported by the script, else by the schedule of the profile."""
    schedule = None
    peaks: dict[int, float] = {}
    if spec is not None:
        schedule = of_profile(spec.alerts).schedule
        for attempt in attempts:
            value = attempt.params.get(spec.role("lr", attempt.params) or "")
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                peaks[attempt.number] = float(value)

    def expected(attempt: int, step: int, values: Mapping[str, float]) -> tuple[float, float] | None:
        return expected_rate(schedule, step, values, peaks.get(attempt))

    return expected


def _gpu_use(connection: sqlite3.Connection, attempts: Sequence[Attempt], now: float) -> GpuUse:
    stays = []
    for attempt in attempts:
        if attempt.started_at is not None:
            end = now if attempt.ended_at is None else attempt.ended_at
            stays += [Stay(uuid, attempt.started_at, end) for uuid in attempt.gpus]
    counts = gpu_counts(connection, stays)
    utilizations = counts.utilization_percent
    sample_count = sum(utilizations.values())
    idle_count = sum(number for percent, number in utilizations.items() if percent < IDLE_PERCENT)
    idle_share = idle_count / sample_count if sample_count else None
    return GpuUse(
        spread(utilizations.items()),
        spread(counts.power_watts.items()),
        counts.memory_used_bytes_most,
        idle_share,
    )


def _metric_pictures(connection: sqlite3.Connection, run: Run) -> list[Chart]:
    """A chart of the losses together, and one of each other metric worth a picture."""
    recorded = queries.metric_names(connection, run.run_id)
    losses = tuple(dict.fromkeys(name for name in (run.roles.loss, run.roles.validation) if name in recorded))
    others = [name for name in (run.roles.best, *PICTURES) if name in recorded and name not in losses]
    groups: list[tuple[str, ...]] = []
    if losses:
        groups.append(losses)
    groups += [(name,) for name in others]
    if not groups:
        return []
    data = read_charts(connection, run.run_id, ChartRequest((*losses, *others), bins=PICTURE_BINS))
    return [drawing(data, "", group) for group in groups]


def _hardware_pictures(connection: sqlite3.Connection, run: Run) -> list[Chart]:
    """A chart of the GPUs' utilisation and one of their power, with a curve per GPU."""
    request = ChartRequest(axis="time", bins=PICTURE_BINS, hardware=("utilization", "power"))
    data = read_charts(connection, run.run_id, request)
    measured = [curve for curve in data.hardware if curve.uuid is not None and curve.bins]
    positions = dict(connection.execute("SELECT uuid, position FROM gpus").fetchall())
    charts = []
    for field, title in (("utilization", "GPU utilisation, %"), ("power", "power, W")):
        curves = [curve for curve in measured if curve.field == field]
        if curves:
            labels = [clean(f"GPU {positions.get(curve.uuid, '?')}") for curve in curves]
            charts.append(hardware_drawing(data, title, curves, labels))
    return charts
