"""Databases filled by hand, as the agent would fill them: for the tests of the queries and of the screen."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from typing import Any

from gputui.core.config import Workspace
from gputui.metrics.batch import Batch, SourceState, store_batch
from gputui.metrics.contract import ParsedLine, parse_line
from gputui.metrics.step_sources import store_steps
from gputui.recovery.watch.rules import RULES
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec
from gputui.store import queue
from gputui.store.hardware import quarantine
from tests.stores import open_store

NOW = 1_795_230_764.0  # 2026-11-21 03:12:44 UTC
GIB = 2**30
_BEGAN = time.monotonic()


def an_hour_later() -> float:
    """A wall clock that goes on from an hour after NOW: what was recorded then is old on every day that tests run."""
    return NOW + 3600.0 + time.monotonic() - _BEGAN


def uuid(index: int) -> str:
    return f"GPU-0000{index:04x}-aaaa-bbbb-cccc-{index:012x}"


class Home:
    """Writes what the agent would write. ``now`` moves on with ``tick``."""

    def __init__(self, workspace: Workspace, now: float = NOW) -> None:
        workspace.create()
        self.workspace = workspace
        self.connection: sqlite3.Connection = open_store(workspace.database)
        self.now = now
        self.random = random.Random(8)
        self.sequence = 0

    def close(self) -> None:
        self.connection.close()

    # --- hardware

    def agent(self, *, problem: str | None = None, state: str = "ok", silent: float | None = None) -> None:
        self.connection.execute(
            "INSERT OR REPLACE INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at, source, "
            "driver_version, cuda_version, gpu_problem, sampler_state, sampler_silent_seconds) "
            "VALUES (1, 4242, 1, 'boot', '0.1.0', ?, ?, 'nvml', ?, ?, ?, ?, ?)",
            (
                self.now - 7200,
                self.now,
                None if problem else "580.95.05",
                None if problem else "13.0",
                problem,
                state,
                silent,
            ),
        )

    def gpus(self, count: int) -> None:
        for index in range(count):
            facts = {
                "uuid": uuid(index), "index": index, "name": "NVIDIA H100 80GB HBM3",
                "pci_bus_id": f"00000000:{index:02X}:00.0", "memory_total_bytes": 80 * GIB,
                "temperature_slowdown_celsius": 87.0, "temperature_shutdown_celsius": 92.0,
            }  # fmt: skip
            slow = {
                "uuid": uuid(index), "fan_percent": None, "memory_temperature_celsius": 70.0, "pcie_generation": 5,
                "pcie_width": 16, "pcie_received_bytes_per_second": 1.2e9, "pcie_sent_bytes_per_second": 0.4e9,
                "ecc_uncorrected": 0, "row_remap_pending": False,
            }  # fmt: skip
            self.connection.execute(
                "INSERT INTO gpus (uuid, position, name, facts, slow, slow_at, processes, processes_at, first_seen_at, "
                "last_seen_at) VALUES (?, ?, ?, ?, ?, ?, '[]', ?, ?, ?)",
                (uuid(index), index, facts["name"], json.dumps(facts), json.dumps(slow), *[self.now] * 4),
            )

    def sample(
        self,
        index: int,
        *,
        at: float | None = None,
        utilization: float | None = 0.0,
        memory_gib: float | None = 0.4,
        temperature: float | None = 34.0,
        power: float | None = 71.0,
        throttle: tuple[str, ...] | None = (),
        state: str = "ok",
    ) -> None:
        self.connection.execute(
            "INSERT OR REPLACE INTO gpu_samples VALUES "
            "(?, (SELECT gpu_id FROM gpus WHERE uuid = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.now if at is None else at, uuid(index), state, utilization,
                None if utilization is None else utilization / 2,
                None if memory_gib is None else round(memory_gib * GIB), GIB // 2, 80 * GIB, temperature, power,
                700.0, 1980 if utilization else 345, 2619, 0 if utilization else 8,
                None if throttle is None else json.dumps(throttle),
            ),
        )  # fmt: skip

    def processes(self, index: int, *entries: dict[str, Any]) -> None:
        self.connection.execute("UPDATE gpus SET processes = ? WHERE uuid = ?", (json.dumps(entries), uuid(index)))

    def lose(self, index: int, *, seconds_ago: float = 633.0) -> None:
        at = self.now - seconds_ago
        self.connection.execute("UPDATE gpus SET present = 0, last_seen_at = ? WHERE uuid = ?", (at, uuid(index)))
        self.connection.execute(
            "INSERT INTO gpu_events (at, uuid, event, code, text) VALUES (?, ?, 'xid', 79, ?)",
            (at, uuid(index), "GPU has fallen off the bus"),
        )

    def quarantine(self, index: int, reason: str, *, run_id: str = "vit-b16-1", seconds_ago: float = 700.0) -> None:
        quarantine(self.connection, [uuid(index)], run_id=run_id, attempt=2, reason=reason, now=self.now - seconds_ago)

    def xid(self, index: int, code: int, text: str, *, seconds_ago: float = 100.0) -> None:
        self.connection.execute(
            "INSERT INTO gpu_events (at, uuid, event, code, text) VALUES (?, ?, 'xid', ?, ?)",
            (self.now - seconds_ago, uuid(index), code, text),
        )

    def slow(self, index: int, **values: Any) -> None:
        held = self.connection.execute("SELECT slow FROM gpus WHERE uuid = ?", (uuid(index),)).fetchone()[0]
        text = json.dumps(json.loads(held) | values)
        self.connection.execute("UPDATE gpus SET slow = ? WHERE uuid = ?", (text, uuid(index)))

    def pause_queue(self, actor: str = "ada", *, seconds_ago: float = 700.0) -> None:
        queue.set_pause(self.connection, actor=actor, now=self.now - seconds_ago)

    def host(self, at: float | None = None) -> None:
        self.connection.execute(
            "INSERT OR REPLACE INTO host_samples VALUES (?, 34, 64, 21.5, ?, ?, 0, 1.2e9, 3e7, ?, ?, ?, ?, 2e6, 1e6)",
            (self.now if at is None else at, 88 * GIB, 256 * GIB, 710 * GIB, 1000 * GIB, 4 * GIB, 100 * GIB),
        )

    # --- runs

    def run(
        self,
        run_id: str,
        state: str = "running",
        *,
        name: str | None = None,
        gpus: tuple[int, ...] = (),
        attempt: int = 1,
        params: dict[str, Any] | None = None,
        launched: dict[str, Any] | None = None,
        started_ago: float | None = 5400.0,
        ended_ago: float | None = None,
        reason: str | None = None,
        waiting_for: str | None = None,
    ) -> None:
        now = self.now
        launched = launched or params or {"batch_size": 512, "lr": 0.001}
        spec = RunSpec(
            name=name or run_id,
            launcher="torchrun",
            program=("train.py",),
            workdir="/srv/train",
            python="/srv/train/.venv/bin/python",
            nproc=max(1, len(gpus)),
            gpus=GpuRequest(count=len(gpus)),
            params=launched,
            metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
            checkpoints=CheckpointSpec("{run_dir}/checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
        )
        started = None if started_ago is None else now - started_ago
        self.sequence += 1
        self.connection.execute(
            "INSERT INTO runs (run_id, sequence, name, profile, state, attempt, spec, params, created_at, queued_at, "
            "started_at, ended_at, reason, waiting_for) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run_id, self.sequence, name or run_id, name or run_id, state, attempt, json.dumps(spec.to_json()),
                json.dumps(params or launched), now - (started_ago or 30.0) - 2, now - (started_ago or 30.0) - 2,
                started, None if ended_ago is None else now - ended_ago, reason, waiting_for,
            ),
        )  # fmt: skip
        if state in ("starting", "running", "stopping", "recovering"):
            for index in gpus:
                self.connection.execute(
                    "INSERT INTO leases (gpu_uuid, run_id, since) VALUES (?, ?, ?)", (uuid(index), run_id, now)
                )

    def attempt(
        self,
        run_id: str,
        number: int,
        state: str = "running",
        *,
        gpus: tuple[int, ...] = (),
        started_ago: float = 5400.0,
        ended_ago: float | None = None,
        code: int | None = None,
        signal: int | None = None,
        resumed_step: int | None = None,
        last_step: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        started = self.now - started_ago
        resumed = (
            None if resumed_step is None else f"{self.workspace.run_dir(run_id)}/checkpoints/step_{resumed_step}.pt"
        )
        launch = {"argv": ["python", "train.py"], "env": {}, "cwd": "/srv/train", "grace_seconds": 35.0}
        query = "SELECT spec ->> '$.params' FROM runs WHERE run_id = ?"
        (launched,) = self.connection.execute(query, (run_id,)).fetchone()
        self.connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at, first_step_at, "
            "ended_at, exit_code, exit_signal, exit, resumed_from, resumed_step, first_step, last_step) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run_id, number, state, json.dumps(params) if params else launched,
                json.dumps([uuid(index) for index in gpus]), json.dumps(launch), started, started, started + 4,
                None if ended_ago is None else self.now - ended_ago, code, signal,
                json.dumps({"code": code, "signal": signal}) if ended_ago is not None else None,
                resumed, resumed_step, resumed_step or 0, last_step,
            ),
        )  # fmt: skip

    def incident(
        self,
        run_id: str,
        attempt: int,
        kind: str,
        summary: str,
        *,
        seconds_ago: float = 600.0,
        rank: int | None = None,
        step: int | None = None,
        evidence: tuple[str, ...] = (),
        witnesses: tuple[str, ...] = (),
        actions: tuple[str, ...] = (),
        params: dict[str, Any] | None = None,
        reason: str = "",
        verdict: str = "retry",
    ) -> None:
        at = self.now - seconds_ago
        cursor = self.connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, rank, step, summary, fingerprint, evidence, "
            "witnesses) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run_id, attempt, at, kind, rank, step, summary, f"{kind}-{attempt}", json.dumps(evidence),
                json.dumps(witnesses),
            ),
        )  # fmt: skip
        self.connection.execute(
            "INSERT INTO decisions (incident_id, run_id, attempt, at, rung, verdict, actions, params, reason) "
            "VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?)",
            (
                cursor.lastrowid, run_id, attempt, at + 1, verdict, json.dumps(actions), json.dumps(params or {}),
                reason,
            ),
        )  # fmt: skip

    def event(
        self, message: str, *, subject: str | None = None, seconds_ago: float = 0.0, severity: str = "info"
    ) -> None:
        self.connection.execute(
            "INSERT INTO events (at, severity, subject, run_id, message) VALUES (?, ?, ?, ?, ?)",
            (self.now - seconds_ago, severity, subject, subject, message),
        )

    def alert(
        self,
        rule: str,
        sentence: str,
        *,
        seconds_ago: float = 720.0,
        severity: str | None = None,
        subject: str = "the host",
        subject_id: str = "",
        run_id: str | None = None,
        cleared_ago: float | None = None,
        acknowledged_by: str | None = None,
        silenced_for: float | None = None,
        value: float | None = None,
        threshold: float | None = None,
    ) -> int:
        known = RULES[rule]
        cursor = self.connection.execute(
            "INSERT INTO alerts (rule, severity, subject_kind, subject_id, subject_name, run_id, raised_at, "
            "cleared_at, cleared_because, acknowledged_at, acknowledged_by, silenced_until, silenced_by, value, "
            "threshold, unit, sentence, remedy) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                rule, severity or known.severity, known.subject, subject_id, subject, run_id, self.now - seconds_ago,
                None if cleared_ago is None else self.now - cleared_ago,
                None if cleared_ago is None else "back to normal",
                self.now - seconds_ago + 60 if acknowledged_by else None, acknowledged_by,
                None if silenced_for is None else self.now + silenced_for, "me" if silenced_for else None, value,
                threshold, known.unit, sentence, known.remedy,
            ),
        )  # fmt: skip
        return int(cursor.lastrowid or 0)

    def transition(self, run_id: str, origin: str | None, target: str, cause: str, seconds_ago: float) -> None:
        self.connection.execute(
            "INSERT INTO transitions (run_id, at, from_state, to_state, cause, actor) VALUES (?, ?, ?, ?, ?, 'agent')",
            (run_id, self.now - seconds_ago, origin, target, cause),
        )

    def end(self, run_id: str, state: str, seconds_ago: float = 0.0) -> None:
        at = self.now - seconds_ago
        self.connection.execute("UPDATE runs SET state = ?, ended_at = ? WHERE run_id = ?", (state, at, run_id))
        self.transition(run_id, "running", state, state, seconds_ago)

    # --- metrics

    def metrics(self, run_id: str, attempt: int, lines: list[dict[str, Any]]) -> None:
        """Append lines as the tailer stores them."""
        connection = self.connection
        path = str(self.workspace.run_dir(run_id) / "metrics.jsonl")
        connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format) VALUES (?, ?, 'jsonl')", (run_id, path)
        )
        source, offset = connection.execute(
            "SELECT source_id, byte_offset FROM metric_sources WHERE run_id = ?", (run_id,)
        ).fetchone()
        before = SourceState(byte_offset=offset)
        batch = Batch(before, attempt)
        for line in lines:
            text = json.dumps(line).encode()
            parsed = parse_line(text)
            assert isinstance(parsed, ParsedLine)
            batch.add(source, offset, text, parsed)
            offset += len(text) + 1
        batch.state = SourceState(byte_offset=offset)
        with transaction(connection):
            assert store_batch(connection, source, before, batch, self.now)
            store_steps(connection, source, batch, self.now)
