"""Read the facts of runs from the store."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gputui.core.text import clean
from gputui.metrics.curves.drawing import drawing, hardware_drawing
from gputui.metrics.curves.live_curves import read_charts
from gputui.metrics.curves.model import ChartRequest
from gputui.metrics.draw.picture import Drawing
from gputui.reports.summary.facts import IDLE_PERCENT, GpuUse, Lost, RunFacts, spread
from gputui.reports.summary.tally import ExpectedRate, measured
from gputui.runs.spec import known_spec
from gputui.store.attempts import Attempt, read_attempts, run_cost
from gputui.store.gpu_use import Stay, gpu_counts
from gputui.store.metrics import queries
from gputui.store.runs import Run, read_runs

PICTURE_BINS = 600
PICTURES = ("loss", "val/loss", "grad_norm", "lr", "samples_per_s", "step_time")
"""Metrics that are drawn, if the run has them; validation and training loss share a chart."""

SPEEDS = ("samples_per_s", "tokens_per_s")
"""Metrics that measure scaling."""

# Parameters that may differ between runs whose scaling is compared.
_SCALED = ("batch_size", "grad_accum", "num_workers", "lr")


def active_since(connection: sqlite3.Connection, since: float) -> list[Run]:
    """Runs that had started and were not over before ``since`` (UTC unix seconds), oldest first."""
    found = [
        run
        for run in read_runs(connection)
        if run.started_at is not None and (run.ended_at is None or run.ended_at >= since)
    ]
    return found[::-1]


class _Scale(NamedTuple):
    """The scale of a run: ``ranks`` are GPUs, or processes without GPUs."""

    like: str
    has_gpus: bool
    ranks: int


def siblings(connection: sqlite3.Connection, runs: Sequence[Run], limit: int = 8) -> list[Run]:
    """The newest other runs of the same profiles with the same parameters and other numbers of GPUs (or of processes
    without GPUs): one per number, with a measured speed."""
    named = {run.run_id for run in runs}
    scales = [(run, _scale(run)) for run in runs]
    wanted = {(scale.like, scale.has_gpus) for _, scale in scales if scale.ranks}
    taken = {scale for run, scale in scales if _has_speed(connection, run)}
    found: list[Run] = []
    for run in read_runs(connection, limit=500):
        if len(found) == limit:
            break
        if run.run_id in named:
            continue
        scale = _scale(run)
        if not scale.ranks or (scale.like, scale.has_gpus) not in wanted or scale in taken:
            continue
        if _has_speed(connection, run):
            taken.add(scale)
            found.append(run)
    return found


def _scale(run: Run) -> _Scale:
    return _Scale(scaling_key(run), bool(run.gpus), len(run.gpus) or _processes(run))


def _has_speed(connection: sqlite3.Connection, run: Run) -> bool:
    newest = queries.latest(connection, run.run_id)
    return any(math.isfinite(speed) and speed > 0 for name in SPEEDS if (speed := newest.get(name)) is not None)


def read_facts(
    connection: sqlite3.Connection,
    run: Run,
    *,
    now: float,
    lost: Lost | None,
    expected: ExpectedRate,
    with_pictures: bool = True,
) -> RunFacts:
    """Everything of one run up to ``now``; ``lost`` and ``expected`` are known to those above. Raises sqlite3.Error."""
    attempts = read_attempts(connection, run.run_id)
    steps = [attempt.last_step for attempt in attempts if attempt.last_step is not None]
    return RunFacts(
        run_id=run.run_id,
        name=run.name,
        profile=run.profile,
        state=run.state,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        gpu_count=len(run.gpus),
        attempts=len(attempts),
        last_step=max(steps, default=None),
        launched=launched_params(run),
        like=scaling_key(run),
        cost=run_cost(connection, run.run_id, now),
        lost=lost,
        thresholds=_thresholds(run),
        measured=measured(queries.lines(connection, run.run_id), attempts, expected),
        gpus=_gpu_use(connection, attempts, now),
        pictures=_pictures(connection, run) if with_pictures else (),
        process_count=_processes(run),
        took_seconds=run.trained_seconds(now),
        tags=run.tags,
        note=run.note,
    )


def launched_params(run: Run) -> Mapping[str, Any]:
    """The parameters of the launch, without secrets."""
    spec = known_spec(run)
    return run.params if spec is None else spec.params


def _thresholds(run: Run) -> Mapping[str, float]:
    spec = known_spec(run)
    return {} if spec is None else spec.gates


def _processes(run: Run) -> int:
    """The number of processes of a run without GPUs."""
    spec = known_spec(run)
    return 0 if spec is None or run.gpus or spec.gpus.count else spec.nproc


def scaling_key(run: Run) -> str:
    """A key that is equal for runs whose scaling can be compared."""
    spec, params = known_spec(run), dict(launched_params(run))
    if spec is not None:
        for role in _SCALED:
            params.pop(spec.role(role, params) or "", None)
    return json.dumps([run.profile, sorted((name, str(value)) for name, value in params.items())])


def _gpu_use(connection: sqlite3.Connection, attempts: Sequence[Attempt], now: float) -> GpuUse:
    stays = [
        Stay(uuid, attempt.started_at, now if attempt.ended_at is None else attempt.ended_at)
        for attempt in attempts
        if attempt.started_at is not None
        for uuid in attempt.gpus
    ]
    counts = gpu_counts(connection, stays)
    used = counts.utilization_percent
    total = sum(used.values())
    idle = sum(number for value, number in used.items() if value < IDLE_PERCENT)
    return GpuUse(
        spread(used.items()),
        spread(counts.power_watts.items()),
        counts.memory_used_bytes_most,
        idle / total if total else None,
    )


def _pictures(connection: sqlite3.Connection, run: Run) -> list[Drawing]:
    known = queries.metric_names(connection, run.run_id)
    wanted = tuple(name for name in PICTURES if name in known)
    drawn: list[Drawing] = []
    if wanted:
        data = read_charts(connection, run.run_id, ChartRequest(wanted, bins=PICTURE_BINS))
        losses = tuple(name for name in wanted if name in ("loss", "val/loss"))
        groups = [losses] if losses else []
        groups += [(name,) for name in wanted if name not in losses]
        drawn = [drawing(data, "", names) for names in groups]
    request = ChartRequest(axis="time", bins=PICTURE_BINS, hardware=("utilization", "power"))
    hardware = read_charts(connection, run.run_id, request)
    positions = dict(connection.execute("SELECT uuid, position FROM gpus").fetchall())
    for field, title in (("utilization", "GPU utilisation, %"), ("power", "power, W")):
        curves = [one for one in hardware.hardware if one.field == field and one.uuid is not None and one.bins]
        if curves:
            labels = [clean(f"GPU {positions.get(curve.uuid, '?')}") for curve in curves]
            drawn.append(hardware_drawing(hardware, title, curves, labels))
    return drawn
