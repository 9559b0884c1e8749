"""From the store to a snapshot of a past moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gputui.curves.model import ChartData, ChartRequest
from gputui.curves.past import Standing, cut
from gputui.store import past_hardware, past_metrics, past_runs, queries, timeline
from gputui.store.views import AgentView, GpuView, RunView
from gputui.tui.data.curves import CurveReader
from gputui.tui.data.machine import past_machine_state
from gputui.tui.data.past_log import past_tail
from gputui.tui.data.past_progress import past_progress
from gputui.tui.data.run_details import IncidentCostReader, launched_params, sink_names
from gputui.tui.data.snapshot import (
    HISTORY_BUCKETS,
    HISTORY_SECONDS,
    CheckpointList,
    LogTail,
    Moment,
    Past,
    Progress,
    RunPage,
    RunRow,
    Snapshot,
)  # fmt: skip

SPANS_SECONDS = (1200.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0, 31 * 86_400.0, 366 * 86_400.0)
"""How much of the record the time line shows: the shortest stretch up to the present that holds the moment well."""

HELD_WELL = 0.85
"""The moment lies in this much of the time line, so that there is something before it."""

EVENTS_KEPT = 50
RUNS_KEPT = 200

# A sample taken at the very moment belongs to it, and buckets end before their end.
_INCLUDING = 1e-3


def read_past(
    connection: sqlite3.Connection, moment: Moment, now: float, over: Mapping[tuple[str, float | None], Progress]
) -> Snapshot:
    """Everything but pages. ``now`` is UTC unix seconds; ``over`` is how far runs had come when they ended, by id and
    end, as far as that was read before. The caller has begun a transaction. Raises sqlite3.Error."""
    at = timeline.resolve(connection, moment.at, moment.ticks, moment.direction, now)
    runs = past_runs.runs(connection, at, RUNS_KEPT)
    gpus = tuple(past_hardware.gpus(connection, at, past_runs.holders(runs)))
    until = at + _INCLUDING
    return Snapshot(
        at=at,
        agent=_agent(queries.agent(connection), gpus, at),
        gpus=gpus,
        gpu_history=queries.gpu_history(connection, until - HISTORY_SECONDS, until, HISTORY_BUCKETS),
        host=queries.host(connection, at),
        host_history=queries.host_history(connection, until - HISTORY_SECONDS, until, HISTORY_BUCKETS),
        runs=tuple(RunRow(run.view, _progress(connection, run.view, at, over)) for run in runs),
        events=tuple(past_runs.events(connection, at, EVENTS_KEPT)),
        machine=past_machine_state(connection, at),
        past=Past(
            asked=moment,
            now=now,
            timeline=timeline.timeline(connection, shown_from(at, timeline.began_at(connection), now), now),
            gap=timeline.gap_at(connection, at),
        ),
    )


def _progress(
    connection: sqlite3.Connection, run: RunView, at: float, over: Mapping[tuple[str, float | None], Progress]
) -> Progress:
    """How far a run had come; of one that was over and not read before only the step, for there may be hundreds."""
    if run.ended_at is None:
        return past_progress(connection, run, at)[0]
    return over.get((run.run_id, run.ended_at)) or Progress(step=run.attempt_last_step)


def shown_from(at: float, began: float | None, now: float) -> float:
    """Where the time line begins."""
    span = next((span for span in SPANS_SECONDS if now - at <= span * HELD_WELL), SPANS_SECONDS[-1])
    start = min(now - span, at)
    return start if began is None or at < began else max(start, min(began, now - SPANS_SECONDS[0] / 4))


def standing(connection: sqlite3.Connection, run_id: str, at: float) -> Standing:
    """Where a run was, for its charts. Raises sqlite3.Error."""
    attempts = tuple(past_runs.attempts(connection, run_id, at))
    lines = past_metrics.newest(connection, past_metrics.places(connection, run_id, at))
    newest = max((attempt.number for attempt in attempts), default=0)
    steps = [line.step for line in lines if line.attempt == newest and line.step is not None]
    return Standing(at, attempts, max(steps, default=None), past_metrics.latest(lines).get("epoch"))


class PastPageReader:
    """Reads the page of a run as it was. Its curves are those of the whole run, cut; they are read once, and serve for
    every moment before they were read."""

    def __init__(self, curves: CurveReader) -> None:
        self._curves = curves
        self._costs = IncidentCostReader()
        self._whole: tuple[str, ChartRequest, float, ChartData] | None = None

    def read(
        self,
        connection: sqlite3.Connection,
        run_id: str,
        at: float,
        now: float,
        request: ChartRequest | None,
        log: Callable[[RunView], LogTail],
        checkpoints: Callable[[RunView], CheckpointList | None],
    ) -> RunPage | None:
        """The page at ``at`` (UTC unix seconds), None before the run was launched. ``log`` reads the log of the attempt
        of then, ``checkpoints`` lists those that there are. Raises sqlite3.Error."""
        found = past_runs.run(connection, run_id, at)
        if found is None:
            return None
        run = found.view
        where = standing(connection, run_id, at)
        progress, names = past_progress(connection, run, at)
        incidents = tuple(past_runs.incidents(connection, run_id, at))
        decisions = tuple(past_runs.decisions(connection, run_id, at))
        listed = checkpoints(run)
        return RunPage(
            run=run,
            launched=launched_params(run),
            progress=progress,
            metric_names=names,
            attempts=where.attempts,
            incidents=incidents,
            decisions=decisions,
            log=past_tail(log(run), at, where.attempts[-1].ended_at if where.attempts else None),
            charts=None if request is None else cut(self._charts(connection, run_id, at, now, request), where),
            costs=self._costs.read(connection, run_id, where.attempts, incidents, decisions),
            checkpoints=None if listed is None else listed.written_by(at),
            sinks=sink_names(run),
            sink_events=tuple(past_runs.sink_events(connection, run_id, at)),
        )

    def _charts(
        self, connection: sqlite3.Connection, run_id: str, at: float, now: float, request: ChartRequest
    ) -> ChartData:
        known = self._whole
        if known is not None and known[:2] == (run_id, request) and at <= known[2]:
            return known[3]
        data = self._curves.read(connection, run_id, queries.attempts(connection, run_id), request)
        self._whole = (run_id, request, now, data)
        return data


def _agent(agent: AgentView | None, gpus: Sequence[GpuView], at: float) -> AgentView | None:
    """The agent as far as it can be told: only the newest one is kept. Whether any ran at the moment, `Past.gap` says;
    it had no problem with GPUs when there were some."""
    if agent is None:
        return None
    return replace(agent, heartbeat_at=at, ended_at=None, gpu_problem=None if gpus else agent.gpu_problem)
