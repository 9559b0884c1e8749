"""A home without processes: a folder, a store, and rows in it as the agent would write them.

Tests have two worlds. `Home`, here, starts nothing: a test writes the rows that it needs, at a clock that only it
moves, and calls what it tests in its own process, a part of the agent with `Home.context` too. `tests.machines.Machine`
has the real command line, agent and training processes: for what only those show, as kills, locks, signals, recovery.

What a room's tests need besides is a subclass beside them: a home and the part that is tested, as a home whose files
are read by an ingest (`tests/metrics/conftest.py`). Longer stories that several rooms show are in `tests.stories`.
"""

from __future__ import annotations

import functools
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.metrics.batch import Batch, LineSource, store_batch
from gputui.metrics.contract import ParsedLine, parse_line
from gputui.metrics.source_state import SourceState
from gputui.metrics.step_sources import store_steps
from gputui.recovery.watch.rules import RULES
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store import queue
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.database import open_writer, schema
from gputui.store.hardware import quarantine_failed
from gputui.store.rows import insert, update
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

NOW = 1_795_230_764.0  # 2026-11-21 03:12:44 UTC
GIB = 2**30
SPEC = RunSpec(name="a", launcher="python", program=("x.py",), python="/p", workdir="/", loss="loss")
_BEGAN = time.monotonic()


def an_hour_later() -> float:
    """A wall clock that goes on from an hour after NOW: what was recorded then is old on every day that tests run."""
    return NOW + 3600.0 + time.monotonic() - _BEGAN


def uuid(index: int) -> str:
    return f"GPU-0000{index:04x}-aaaa-bbbb-cccc-{index:012x}"


# --- a store ----------------------------------------------------------------------------------------------------------


def open_store(path: Path) -> sqlite3.Connection:
    """The agent's connection to a store; where none is yet, to a new one."""
    if not path.exists():
        path.write_bytes(_empty_store())
        path.chmod(PRIVATE_FILE_MODE)
    return open_writer(path)


def memory_store() -> sqlite3.Connection:
    """A new store in memory, for thousands of examples."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(_empty_memory_store())
    return connection


@functools.cache
def _empty_memory_store() -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(schema())
        return connection.serialize()


@functools.cache
def _empty_store() -> bytes:
    """A new store, made once: making one costs as much as most tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gputui.db"
        open_writer(path).close()
        return path.read_bytes()


# --- rows, through a connection ---------------------------------------------------------------------------------------


def add_run(
    connection: sqlite3.Connection,
    run_id: str = "a-1",
    *states: RunState,
    spec: RunSpec = SPEC,
    workspace: Workspace | None = None,
    now: float = NOW,
) -> Run:
    """Queue a run and move it through these states; make its folder where a workspace is given."""
    (sequence,) = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()
    with transaction(connection):
        repository.insert_run(
            connection,
            repository.NewRun(run_id=run_id, sequence=sequence, name=spec.name, spec=spec, params=spec.params),
            now=now,
            actor="me",
        )
        for state in states:
            repository.move(connection, run_of(connection, run_id), state, cause="test", now=now)
    if workspace is not None:
        workspace.run_dir(run_id).mkdir(parents=True, exist_ok=True)
        write_spec(workspace.run_dir(run_id) / SPEC_FILE, spec)
    return run_of(connection, run_id)


def run_of(connection: sqlite3.Connection, run_id: str = "a-1") -> Run:
    run = get_run(connection, run_id)
    assert run is not None
    return run


def attempt_of(connection: sqlite3.Connection, number: int = 1, run_id: str = "a-1") -> Attempt:
    attempt = get_attempt(connection, run_id, number)
    assert attempt is not None
    return attempt


def add_attempt(
    connection: sqlite3.Connection,
    run_id: str = "a-1",
    number: int = 1,
    began: float = NOW,
    ended: float | None = None,
    **more: Any,
) -> None:
    """Add an attempt with no parameters and no GPUs; ``more`` are other columns."""
    values = {
        "state": "running",
        "params": "{}",
        "gpus": "[]",
        "launch": "{}",
        "created_at": began,
        "started_at": began,
    }
    insert(connection, "attempts", run_id=run_id, number=number, ended_at=ended, **values | more)


def add_gpu(connection: sqlite3.Connection, uuid: str) -> int:
    """Add a GPU of which nothing is known; returns its id."""
    (position,) = connection.execute("SELECT count(*) FROM gpus").fetchone()
    return insert(connection, "gpus", uuid=uuid, position=position, name="x", first_seen_at=0, last_seen_at=0)


def add_source(connection: sqlite3.Connection, run_id: str = "a-1", path: str = "/m", kind: str = "jsonl") -> int:
    """Add a file of metrics; returns its id."""
    return insert(connection, "metric_sources", run_id=run_id, path=path, format=kind)


def add_boundary(
    connection: sqlite3.Connection, attempt: int, source: int = 1, offset: int | None = None, generation: int = 0
) -> None:
    """Let an attempt begin in a file of metrics: after the lines so far, or at an offset."""
    if offset is None:
        (offset,) = connection.execute("SELECT count(*) FROM metrics WHERE source_id = ?", (source,)).fetchone()
    insert(
        connection, "metric_boundaries", source_id=source, generation=generation, byte_offset=offset, attempt=attempt
    )  # fmt: skip


def add_line(
    connection: sqlite3.Connection,
    step: int | None,
    at: float | None,
    data: Mapping[str, Any],
    *,
    source: int = 1,
    attempt: int = 1,
    rank: int | None = None,
    offset: int | None = None,
    generation: int = 0,
) -> None:
    """Add a line to a file of metrics: after the lines so far, as though each were a byte, or at an offset."""
    if offset is None:
        (offset,) = connection.execute("SELECT count(*) FROM metrics WHERE source_id = ?", (source,)).fetchone()
    insert(
        connection, "metrics", source_id=source, generation=generation, byte_offset=offset, attempt=attempt, rank=rank,
        step=step, at=at, data=json.dumps(data),
    )  # fmt: skip


def add_many_lines(connection: sqlite3.Connection, source: int, count: int, *, filling: int = 0) -> None:
    """Add lines of 200 bytes, of steps from 0 on, whose text has twice the ``filling`` in bytes."""
    connection.execute(
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) "
        "INSERT INTO metrics (source_id, generation, byte_offset, attempt, step, at, data) "
        "SELECT ?, 0, i * 200, 1, i, i, "
        'printf(\'{"step": %d, "loss": 0.5, "text": "%s"}\', i, hex(zeroblob(?))) FROM n',
        (count, source, filling),
    )


# --- a home -----------------------------------------------------------------------------------------------------------


class Home:
    """A folder with a store in it.

    Attributes:
        now: the time, in UTC unix seconds.
        uptime: the seconds of a monotonic clock.
    """

    def __init__(self, workspace: Workspace, now: float = NOW, *, in_memory: bool = False) -> None:
        workspace.create()
        self.workspace = workspace
        self.connection: sqlite3.Connection = memory_store() if in_memory else open_store(workspace.database)
        self.now = now
        self.uptime = 1000.0
        self.random = random.Random(8)
        self.sequence = 0

    def close(self) -> None:
        self.connection.close()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.uptime += seconds

    def context(self) -> AgentContext:
        """What a part of the agent is made of, at this home's clock; another one is that of the next agent."""
        return AgentContext.of(
            self.connection, self.workspace, wake=lambda: None, now=lambda: self.now, monotonic=lambda: self.uptime
        )

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def value(self, sql: str, *values: Any) -> Any:
        """The one value that a query has."""
        ((value,),) = self.rows(sql, *values)
        return value

    def run_of(self, run_id: str = "a-1") -> Run:
        return run_of(self.connection, run_id)

    # --- hardware

    def agent(self, *, problem: str | None = None, state: str = "ok", silent: float | None = None) -> None:
        driver_version = None if problem else "580.95.05"
        cuda_version = None if problem else "13.0"
        insert(
            self.connection, "agent", "REPLACE", id=1, pid=4242, start_ticks=1, boot_id="boot", version="0.1.0",
            started_at=self.now - 7200, heartbeat_at=self.now, source="nvml",
            driver_version=driver_version, cuda_version=cuda_version,
            gpu_problem=problem, sampler_state=state, sampler_silent_seconds=silent,
        )  # fmt: skip

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
            insert(
                self.connection, "gpus", uuid=uuid(index), position=index, name=facts["name"], facts=json.dumps(facts),
                slow=json.dumps(slow), slow_at=self.now, processes="[]", processes_at=self.now,
                first_seen_at=self.now, last_seen_at=self.now,
            )  # fmt: skip

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
        memory_utilization_percent = None if utilization is None else utilization / 2
        memory_used_bytes = None if memory_gib is None else round(memory_gib * GIB)
        sm_clock_mhz = 1980 if utilization else 345
        performance_state = 0 if utilization else 8
        throttle_reasons = None if throttle is None else json.dumps(throttle)
        insert(
            self.connection, "gpu_samples", "REPLACE", at=self.now if at is None else at, gpu_id=self.gpu_id(index),
            state=state, utilization_percent=utilization,
            memory_utilization_percent=memory_utilization_percent,
            memory_used_bytes=memory_used_bytes, memory_reserved_bytes=GIB // 2,
            memory_total_bytes=80 * GIB, temperature_celsius=temperature, power_watts=power, power_limit_watts=700.0,
            sm_clock_mhz=sm_clock_mhz, memory_clock_mhz=2619,
            performance_state=performance_state,
            throttle_reasons=throttle_reasons,
        )  # fmt: skip

    def gpu_id(self, index: int) -> int:
        return int(self.value("SELECT gpu_id FROM gpus WHERE uuid = ?", uuid(index)))

    def processes(self, index: int, *entries: dict[str, Any]) -> None:
        update(self.connection, "gpus", {"uuid": uuid(index)}, processes=json.dumps(entries))

    def lose(self, index: int, *, seconds_ago: float = 633.0) -> None:
        update(self.connection, "gpus", {"uuid": uuid(index)}, present=0, last_seen_at=self.now - seconds_ago)
        self.xid(index, 79, "GPU has fallen off the bus", seconds_ago=seconds_ago)

    def quarantine(self, index: int, reason: str, *, run_id: str = "vit-b16-1", seconds_ago: float = 700.0) -> None:
        quarantine_failed(self.connection, [uuid(index)], run_id, 2, reason=reason, now=self.now - seconds_ago)

    def xid(self, index: int, code: int, text: str, *, seconds_ago: float = 100.0) -> None:
        at = self.now - seconds_ago
        insert(self.connection, "gpu_events", at=at, uuid=uuid(index), event="xid", code=code, text=text)

    def slow(self, index: int, **values: Any) -> None:
        before = json.loads(self.value("SELECT slow FROM gpus WHERE uuid = ?", uuid(index)))
        update(self.connection, "gpus", {"uuid": uuid(index)}, slow=json.dumps(before | values))

    def pause_queue(self, actor: str = "ada", *, seconds_ago: float = 700.0) -> None:
        queue.set_pause(self.connection, actor=actor, now=self.now - seconds_ago)

    def host(self, at: float | None = None) -> None:
        insert(
            self.connection, "host_samples", "REPLACE", at=self.now if at is None else at, cpu_percent=34, cpu_count=64,
            load_1m=21.5, memory_used_bytes=88 * GIB, memory_total_bytes=256 * GIB, swap_used_bytes=0,
            disk_read_bytes_per_second=1.2e9, disk_write_bytes_per_second=3e7, disk_used_bytes=710 * GIB,
            disk_total_bytes=1000 * GIB, shm_used_bytes=4 * GIB, shm_total_bytes=100 * GIB,
            network_received_bytes_per_second=2e6, network_sent_bytes_per_second=1e6,
        )  # fmt: skip

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
        queued_at = now - (started_ago or 30.0) - 2
        ended_at = None if ended_ago is None else now - ended_ago
        insert(
            self.connection, "runs", run_id=run_id, sequence=self.sequence, name=name or run_id, profile=name or run_id,
            state=state, attempt=attempt, spec=json.dumps(spec.to_json()), params=json.dumps(params or launched),
            created_at=queued_at, queued_at=queued_at, started_at=started,
            ended_at=ended_at, reason=reason, waiting_for=waiting_for,
        )  # fmt: skip
        if state in ("starting", "running", "stopping", "recovering"):
            for index in gpus:
                insert(self.connection, "leases", gpu_uuid=uuid(index), run_id=run_id, since=now)

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
        ended = None if ended_ago is None else self.now - ended_ago
        add_attempt(
            self.connection, run_id, number, started, ended, state=state,
            params=json.dumps(params) if params else self.value(
                "SELECT spec ->> '$.params' FROM runs WHERE run_id = ?", run_id
            ),
            gpus=json.dumps([uuid(index) for index in gpus]), launch=json.dumps(launch), first_step_at=started + 4,
            exit_code=code, exit_signal=signal,
            exit=json.dumps({"code": code, "signal": signal}) if ended_ago is not None else None,
            resumed_from=resumed, resumed_step=resumed_step, first_step=resumed_step or 0, last_step=last_step,
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
        incident_id = insert(
            self.connection, "incidents", run_id=run_id, attempt=attempt, at=at, kind=kind, rank=rank, step=step,
            summary=summary, fingerprint=f"{kind}-{attempt}", evidence=json.dumps(evidence),
            witnesses=json.dumps(witnesses),
        )  # fmt: skip
        insert(
            self.connection, "decisions", incident_id=incident_id, run_id=run_id, attempt=attempt, at=at + 1, rung=0,
            verdict=verdict, actions=json.dumps(actions), params=json.dumps(params or {}), reason=reason,
        )  # fmt: skip

    def event(
        self, message: str, *, subject: str | None = None, seconds_ago: float = 0.0, severity: str = "info"
    ) -> None:
        insert(
            self.connection, "events", at=self.now - seconds_ago, severity=severity, subject=subject, run_id=subject,
            message=message,
        )  # fmt: skip

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
        facts = RULES[rule]
        raised_at = self.now - seconds_ago
        cleared_at = None if cleared_ago is None else self.now - cleared_ago
        cleared_because = None if cleared_ago is None else "back to normal"
        acknowledged_at = raised_at + 60 if acknowledged_by else None
        silenced_until = None if silenced_for is None else self.now + silenced_for
        silenced_by = "me" if silenced_for else None
        return insert(
            self.connection, "alerts", rule=rule, severity=severity or facts.severity, subject_kind=facts.subject,
            subject_id=subject_id, subject_name=subject, run_id=run_id, raised_at=raised_at,
            cleared_at=cleared_at,
            cleared_because=cleared_because,
            acknowledged_at=acknowledged_at, acknowledged_by=acknowledged_by,
            silenced_until=silenced_until,
            silenced_by=silenced_by, value=value, threshold=threshold, unit=facts.unit,
            sentence=sentence, remedy=facts.remedy,
        )  # fmt: skip

    def transition(self, run_id: str, origin: str | None, target: str, cause: str, seconds_ago: float) -> None:
        insert(
            self.connection, "transitions", run_id=run_id, at=self.now - seconds_ago, from_state=origin,
            to_state=target, cause=cause, actor="agent",
        )  # fmt: skip

    def end_run(self, run_id: str, state: str, seconds_ago: float = 0.0) -> None:
        update(self.connection, "runs", {"run_id": run_id}, state=state, ended_at=self.now - seconds_ago)
        self.transition(run_id, "running", state, state, seconds_ago)

    # --- metrics

    def metrics(self, run_id: str, attempt: int, lines: list[dict[str, Any]]) -> None:
        """Append lines as the tailer stores them."""
        connection = self.connection
        path = str(self.workspace.run_dir(run_id) / "metrics.jsonl")
        insert(connection, "metric_sources", "IGNORE", run_id=run_id, path=path, format="jsonl")
        source, offset = connection.execute(
            "SELECT source_id, byte_offset FROM metric_sources WHERE run_id = ?", (run_id,)
        ).fetchone()
        before = SourceState(byte_offset=offset)
        batch = Batch(LineSource(source), before, attempt)
        for line in lines:
            text = json.dumps(line).encode()
            parsed = parse_line(text)
            assert isinstance(parsed, ParsedLine)
            batch.add(offset, text, parsed)
            offset += len(text) + 1
        batch.state = SourceState(byte_offset=offset)
        with transaction(connection):
            assert store_batch(connection, before, batch, self.now)
            store_steps(connection, batch, self.now)
