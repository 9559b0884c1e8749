"""The inputs of alert rules: frozen moments of GPUs, host and runs, made from the state in memory."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.metrics.report import IngestReport
from gputui.recovery.alerts.moments import GpuMoment, HostMoment, RunMoment
from gputui.recovery.alerts.run_trends import PATIENCE_STEPS, RunTrend
from gputui.recovery.alerts.schedules import RateSchedule, expected_rate
from gputui.recovery.alerts.trends import GpuTrend, Growth
from gputui.store.attempts import Attempt

log = logging.getLogger(__name__)

# An older sample does not count as current: the larger of these seconds and sampling intervals.
SILENT_SECONDS = 5.0
SILENT_INTERVALS = 3.0
SKIPPED_EVENT = "sample_skipped"
NCCL_KINDS = ("nccl_error", "nccl_timeout")


class Training(Struct, frozen=True):
    """A live attempt that has made a step. ``peak`` is its learning rate parameter; an alert is due after
    ``patience_steps`` without improvement."""

    record: Attempt
    schedule: RateSchedule | None = None
    peak: float | None = None
    patience_steps: float = PATIENCE_STEPS


@dataclass(slots=True)
class _Freshness:
    """Whether samples still arrive, by the monotonic clock: a jump of the wall clock does not make them old."""

    mark: float | None = None
    at: float = float("-inf")

    def is_fresh(self, mark: float | None, clock: float, within: float) -> bool:
        if mark is not None and mark != self.mark:
            self.mark, self.at = mark, clock
        return clock - self.at <= within


@dataclass(slots=True)
class AlertMoments:
    """The trends kept between two evaluations, and the moments made from them."""

    context: AgentContext
    interval_seconds: float = 1.0
    gpus: dict[str, GpuTrend] = field(default_factory=dict)
    growth: Growth = field(default_factory=Growth)
    runs: dict[str, RunTrend] = field(default_factory=dict)
    lines_at: dict[str, float] = field(default_factory=dict)
    incident_id: int = 0
    _fast: _Freshness = field(default_factory=_Freshness)
    _host: _Freshness = field(default_factory=_Freshness)

    @property
    def silent_seconds(self) -> float:
        return max(SILENT_SECONDS, SILENT_INTERVALS * self.interval_seconds)

    # --- runs

    def take(self, report: IngestReport) -> None:
        """Take in newly read metrics."""
        now = self.context.monotonic()
        for progress in report.progress:
            if not progress.lines:
                continue
            trend = self.runs.get(progress.run_id)
            if trend is None or trend.attempt != progress.attempt:
                trend = self.runs[progress.run_id] = RunTrend(progress.attempt)
            waited = now - self.lines_at.get(progress.run_id, now)
            self.lines_at[progress.run_id] = now
            trend.take(progress.last_step, progress.values, progress.events.get(SKIPPED_EVENT, 0), waited)

    def run_moments(
        self,
        training: Iterable[Training],
        followed_runs: Iterable[str],
        elapsed: float,
        logged: Mapping[str, list[str]] | None = None,
    ) -> list[RunMoment]:
        """Moments of all training runs, of ``followed_runs`` (IDs), and of those with an NCCL error. ``logged`` are
        errors from logs, by run."""
        errors = self._nccl_errors()
        for run_id, lines in (logged or {}).items():
            errors.setdefault(run_id, []).extend(lines)
        by_id = {run_training.record.run_id: run_training for run_training in training}
        for gone in [run_id for run_id in self.runs if run_id not in by_id]:
            # Trends belong to one attempt.
            self.runs.pop(gone)
            self.lines_at.pop(gone, None)
        moments = []
        for run_id in dict.fromkeys([*by_id, *followed_runs, *errors]):
            run_training = by_id.get(run_id)
            trend = self.runs.get(run_id)
            texts = errors.get(run_id, [])
            text = texts[-1] if texts else ""
            if run_training is None or trend is None or trend.attempt != run_training.record.number:
                is_new = run_training is not None
                moments.append(RunMoment(run_id, is_training=is_new, nccl_errors=len(texts), nccl_text=text))
                continue
            trend.patience_steps = run_training.patience_steps
            moments.append(
                trend.advance(
                    run_id,
                    elapsed,
                    is_training=True,
                    lr_expected=expected_rate(run_training.schedule, trend.step, trend.values, run_training.peak),
                    nccl_errors=len(texts),
                    nccl_text=text,
                )
            )
        return moments

    def _nccl_errors(self) -> dict[str, list[str]]:
        rows = self.context.connection.execute(
            "SELECT incident_id, run_id, kind, summary FROM incidents WHERE incident_id > ? ORDER BY incident_id",
            (self.incident_id,),
        ).fetchall()
        errors: dict[str, list[str]] = {}
        for incident_id, run_id, kind, summary in rows:
            self.incident_id = incident_id
            if kind in NCCL_KINDS:
                errors.setdefault(run_id, []).append(summary)
        return errors

    # --- hardware

    def gpu_moments(self, training: Iterable[Training], elapsed: float) -> list[GpuMoment]:
        """Moments of all GPUs in the inventory."""
        recorder = self.context.recorder
        facts = recorder.facts
        is_fresh = self._fast.is_fresh(recorder.fast_at or None, self.context.monotonic(), self.silent_seconds)
        claims = {uuid: attempt.record for attempt in training for uuid in attempt.record.gpus}
        xids: dict[str, list[int]] = {}
        while recorder.reported:
            event = recorder.reported.popleft()
            if event.event == "xid" and event.code is not None:
                xids.setdefault(event.uuid, []).append(event.code)
        for gone in [uuid for uuid in self.gpus if uuid not in facts]:
            del self.gpus[gone]
        moments = []
        for uuid, fact in facts.items():
            trend = self.gpus.get(uuid)
            if trend is None:
                trend = self.gpus[uuid] = GpuTrend()
            record = claims.get(uuid)
            sample = recorder.fast.get(uuid) if is_fresh else None
            moments.append(
                trend.advance(
                    sample,
                    fact,
                    elapsed,
                    training=None if record is None else (record.run_id, record.number),
                    holder=self._holder(uuid) if sample is not None and sample.utilization_percent == 0 else None,
                    xids=tuple(xids.get(uuid, ())),
                    slow=recorder.slow.get(uuid) if is_fresh else None,
                )
            )
        return moments

    def host_moment(self, elapsed: float) -> HostMoment:
        host = self.context.recorder.host
        is_fresh = self._host.is_fresh(None if host is None else host.at, self.context.monotonic(), self.silent_seconds)
        if host is None or not is_fresh:
            self.growth.add(None, elapsed)
            return HostMoment()
        self.growth.add(None if host.memory_used_bytes is None else float(host.memory_used_bytes), elapsed)
        return HostMoment(
            memory_used_bytes=host.memory_used_bytes,
            memory_total_bytes=host.memory_total_bytes,
            memory_growth_bytes_per_hour=self.growth.per_hour,
            disk_used_bytes=host.disk_used_bytes,
            disk_total_bytes=host.disk_total_bytes,
            shm_used_bytes=host.shm_used_bytes,
            shm_total_bytes=host.shm_total_bytes,
        )

    def _holder(self, uuid: str) -> str | None:
        """Description of the process that holds most of a GPU's memory."""
        processes = self.context.recorder.processes.get(uuid)
        if not processes:
            return None
        most = max(processes, key=lambda process: process.memory_bytes or 0)
        owner = self.context.recorder.owner(most)
        if owner is not None:
            return owner[0] if owner[1] is None else f"{owner[0]} rank {owner[1]}"
        words = [word for word in (most.user, most.command) if word]
        return " · ".join(words) if words else f"pid {most.pid}"

    # --- across agents

    def to_json(self) -> dict[str, Any]:
        return {
            "gpus": {uuid: trend.to_json() for uuid, trend in self.gpus.items()},
            "growth": self.growth.to_json(),
            "runs": {run_id: trend.to_json() for run_id, trend in self.runs.items()},
            "incident_id": self.incident_id,
        }

    def restore(self, data: Mapping[str, Any], down_seconds: float) -> None:
        """Restore the state of an agent that ended ``down_seconds`` ago; an unreadable state is dropped."""
        try:
            self.gpus = {str(uuid): GpuTrend.from_json(trend) for uuid, trend in data["gpus"].items()}
            self.growth = Growth.from_json(data["growth"], down_seconds)
            self.runs = {str(run_id): RunTrend.from_json(trend) for run_id, trend in data["runs"].items()}
            self.incident_id = int(data["incident_id"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("the alerts' stored state is unreadable (%s); they start without it", error)


def known_incidents(connection: sqlite3.Connection) -> int:
    """The newest incident's id; incidents before the first evaluation raise no alert."""
    return int(connection.execute("SELECT coalesce(max(incident_id), 0) FROM incidents").fetchone()[0])


def parse_state(text: str) -> dict[str, Any]:
    """The stored state; empty if it is unreadable."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
