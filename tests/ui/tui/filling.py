"""Databases filled by hand, as the agent would fill them: for the tests of the queries and of the screen."""

from __future__ import annotations

import json
import math
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
from gputui.store.studies import read_trials
from gputui.studies.importances import importances
from gputui.studies.rows import set_importances
from gputui.studies.spec import Budget, Dimension, Objective, PrunerSpec, StudySpec
from tests.stores import open_store

NOW = 1_795_230_764.0  # 2026-11-21 03:12:44 UTC
GIB = 2**30
_BEGAN = time.monotonic()


def an_hour_later() -> float:
    """A wall clock that goes on from an hour after NOW: what was recorded then is old on every day that tests run."""
    return NOW + 3600.0 + time.monotonic() - _BEGAN


def uuid(index: int) -> str:
    return f"GPU-0000{index:04x}-aaaa-bbbb-cccc-{index:012x}"


class Filler:
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

    def many_gpus(self, count: int) -> None:
        """So many busy GPUs, the first half of them one run's."""
        self.agent()
        self.gpus(count)
        self.history()
        self.host()
        half = tuple(range(max(1, count // 2)))
        self.run("llama-1", name="llama", gpus=half)
        self.attempt("llama-1", 1, gpus=half)
        self.curve("llama-1", 1, 0, 3000, ranks=len(half), total_steps=9000)
        for index in range(count):
            self.sample(
                index, utilization=90 + index % 7, memory_gib=60 + index % 9, temperature=60 + index % 5,
                power=600 + index,
            )  # fmt: skip
            if index in half:
                self._rank_process(index, "llama-1", index)
        self.event("started", subject="llama-1", seconds_ago=9000)

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

    def bad_night(self) -> None:
        """Alerts of the overnight story: five that last, of which one is seen and one silenced, and three that are
        over."""
        self.alert("disk", "State disk 96 % full (limit 95 %)", seconds_ago=1500, value=96.0, threshold=95.0)
        self.alert(
            "xid_hardware",
            "GPU 7 reported XID 79: the GPU has fallen off the bus (power, cooling or PCIe); a reboot is needed",
            seconds_ago=633, subject="GPU 7", subject_id=uuid(7), run_id="vit-b16-1", acknowledged_by="me",
        )  # fmt: skip
        self.alert(
            "data_wait", "gpt2-124m-1: data wait 120 ms a step (limit 50 ms), 40 % of a step", seconds_ago=412,
            subject="gpt2-124m-1", subject_id="gpt2-124m-1", run_id="gpt2-124m-1",
        )  # fmt: skip
        self.alert(
            "gpu_hot", "GPU 3 at 88 °C (limit 82 °C); throttles at 87 °C", seconds_ago=95, subject="GPU 3",
            subject_id=uuid(3), run_id="gpt2-124m-1", value=88.0, threshold=82.0,
        )  # fmt: skip
        self.alert(
            "gpu_parked", "GPU 5 has 22.1 GiB held by alice · python sweep.py and computes nothing", seconds_ago=5400,
            subject="GPU 5", subject_id=uuid(5), silenced_for=3500, value=22.1, threshold=1.0,
        )  # fmt: skip
        self.alert(
            "shm", "/dev/shm 93 % full (limit 90 %)", seconds_ago=9000, cleared_ago=8000, value=93.0, threshold=90.0
        )
        self.alert(
            "slow_steps", "vit-b16-1: step time 750 ms (limit 600 ms); it was about 300 ms before",
            seconds_ago=7000, cleared_ago=6500, subject="vit-b16-1", subject_id="vit-b16-1", run_id="vit-b16-1",
        )  # fmt: skip
        self.alert(
            "gradient_norm", "vit-b16-1: gradient norm 14 (limit 10)", seconds_ago=90_000,
            cleared_ago=89_000, subject="vit-b16-1", subject_id="vit-b16-1", run_id="vit-b16-1",
        )  # fmt: skip

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

    def curve(
        self,
        run_id: str,
        attempt: int,
        first: int,
        last: int,
        *,
        every: int = 10,
        ranks: int = 1,
        slow_rank: int | None = None,
        seconds_per_step: float = 0.3,
        total_steps: int | None = None,
        end: float | None = None,
    ) -> None:
        """A training that goes well: loss falls, each rank tells its step time."""
        finish = self.now if end is None else end
        lines: list[dict[str, Any]] = []
        begin = finish - (last - first) * seconds_per_step
        start: dict[str, Any] = {"step": first, "time": begin, "rank": 0, "event": "start"}
        if total_steps is not None:
            start["total_steps"] = total_steps
        lines.append(start)
        for step in range(first, last + 1, every):
            at = finish - (last - step) * seconds_per_step
            noise = self.random.uniform(-0.05, 0.05)
            for rank in range(ranks):
                slow = rank == slow_rank
                line: dict[str, Any] = {
                    "step": step, "time": at, "rank": rank, "step_time": seconds_per_step * (1.5 if slow else 1.0),
                    "data_time": seconds_per_step * (0.4 if slow else 0.02),
                    "samples_per_s": 3021.0 + 20 * noise - (900 if slow else 0),
                }  # fmt: skip
                if rank == 0:
                    loss = 1.9 + 6.0 * math.exp(-step / 900) + noise
                    line |= {"loss": loss, "lr": 0.001 * min(1.0, step / 500 + 0.01), "grad_norm": 1.2 + noise * 4}
                lines.append(line)
        self.metrics(run_id, attempt, lines)

    # --- studies

    def study(
        self,
        study_id: str = "lr-search-1",
        *,
        trials: int = 14,
        state: str = "running",
        reason: str | None = None,
        objectives: tuple[Objective, ...] = (Objective("val_loss"),),
        began_ago: float = 7200.0,
    ) -> None:
        """A search over three parameters with a pruner: the last two of its trials run, the others are over."""
        space = (
            Dimension("lr", "float", 1e-4, 0.1, log=True),
            Dimension("batch_size", "choice", choices=(64, 128, 256)),
            Dimension("optimizer", "choice", choices=("adamw", "muon")),
        )
        spec = StudySpec(
            name=study_id.rpartition("-")[0], profile="vit", space=space, objectives=objectives,
            pruner=PrunerSpec("hyperband", length=9000.0), budget=Budget(trials=40), gpus_per_trial=1,
        )  # fmt: skip
        self.sequence += 1
        began = self.now - began_ago
        self.connection.execute(
            "INSERT INTO studies (study_id, sequence, name, profile, state, reason, spec, source, created_at, "
            "ended_at) VALUES (?, ?, ?, 'vit', ?, ?, ?, '', ?, ?)",
            (
                study_id, self.sequence, spec.name, state, reason, json.dumps(spec.to_json()), began,
                self.now if state in ("finished", "failed", "stopped") else None,
            ),
        )  # fmt: skip
        ended = [] if state == "running" else [(study_id, self.now, "running", state, reason or "")]
        self.connection.executemany(
            "INSERT INTO study_moves (study_id, at, from_state, to_state, cause, actor) VALUES (?, ?, ?, ?, ?, 'me')",
            [(study_id, began, None, "running", "begun"), *ended],
        )
        draw = random.Random(5)
        for number in range(trials):
            params = {
                "lr": float(f"{10 ** draw.uniform(-4, -1):.3g}"),
                "batch_size": draw.choice((64, 128, 256)),
                "optimizer": draw.choice(("adamw", "muon")),
            }
            loss = 0.4 + (math.log10(params["lr"]) + 2.5) ** 2 / 2 + 0.1 * (params["optimizer"] == "adamw")
            verdict = "running" if number >= trials - 2 else "pruned" if loss > 0.9 else "complete"
            run_id = f"{study_id}-t{number}"
            began_at, took = began + number * 400.0, 900.0
            is_over = verdict != "running"
            self.run(
                run_id, {"running": "running", "pruned": "stopped", "complete": "succeeded"}[verdict], name="vit",
                launched=params, started_ago=self.now - began_at,
                ended_ago=self.now - began_at - took if is_over else None,
            )  # fmt: skip
            self.connection.execute(
                "UPDATE runs SET name = ?, study_id = ?, trial = ? WHERE run_id = ?",
                (run_id.rpartition("-")[0], study_id, number, run_id),
            )
            if is_over:
                ago = self.now - began_at
                self.attempt(run_id, 1, "succeeded", started_ago=ago, ended_ago=ago - took, code=0)
            else:
                self.attempt(run_id, 1, started_ago=self.now - began_at)
            rungs = {"running": 3, "pruned": 5, "complete": 27}[verdict]
            values = [loss, 3.0 + number / 10][: len(objectives)] if verdict == "complete" else [loss * 1.3]
            self.connection.execute(
                "INSERT INTO trials (study_id, number, run_id, state, origin, params, rung, value, objective_values, "
                "reason, starts, created_at, ended_at) VALUES (?, ?, ?, ?, 'sampled', ?, ?, ?, ?, ?, 1, ?, ?)",
                (
                    study_id, number, run_id, verdict, json.dumps(params), rungs, values[0] if is_over else None,
                    json.dumps(values) if is_over and len(objectives) > 1 else None,
                    "pruned at rung 5: 7th of 9" if verdict == "pruned" else None, began_at,
                    began_at + took if is_over else None,
                ),
            )  # fmt: skip
            self.connection.executemany(
                "INSERT INTO trial_rungs (study_id, number, rung, step, value, attempt, at) "
                "VALUES (?, ?, ?, ?, ?, 1, ?)",
                [
                    (study_id, number, rung, rung * 333, loss + 2 * math.exp(-rung / 3), began_at + rung * 30)
                    for rung in range(1, rungs + 1)
                ],
            )
        set_importances(self.connection, study_id, importances(read_trials(self.connection, study_id), spec))

    # --- whole stories

    def history(self, seconds: int = 600, every: int = 5) -> None:
        count = self.connection.execute("SELECT count(*) FROM gpus").fetchone()[0]
        self.connection.execute("BEGIN")
        for ago in range(seconds, 0, -every):
            for index in range(count):
                wave = 50 + 45 * math.sin(ago / 37 + index)
                self.sample(index, at=self.now - ago, utilization=round(wave), memory_gib=40.0, temperature=60.0)
            self.host(self.now - ago)
        self.connection.execute("COMMIT")

    def overnight(self) -> None:
        """Eight GPUs, two runs that train, one that waits, one that failed, a lost GPU, a stranger."""
        self.agent()
        self.gpus(8)
        self.history()
        self.host()
        self.run("gpt2-124m-1", name="gpt2-124m", gpus=(0, 1, 2, 3), params={"batch_size": 64, "lr": 0.0006})
        self.attempt("gpt2-124m-1", 1, gpus=(0, 1, 2, 3), last_step=4120)
        self.curve("gpt2-124m-1", 1, 0, 4120, ranks=4, slow_rank=2, total_steps=6000)
        self._recovered_run()
        waiting = "waits for 2 GPUs, first in line"
        self.run("lr-sweep-3", "queued", name="lr-sweep", started_ago=None, waiting_for=waiting)
        self.run(
            "resnet50-2", "failed", name="resnet50", ended_ago=4000.0, started_ago=9000.0,
            reason="a Python exception on rank 0, three times at step 12: KeyError 'labels'",
        )  # fmt: skip
        self.attempt("resnet50-2", 1, "failed", started_ago=9000.0, ended_ago=4000.0, code=1, last_step=12)
        readings = [
            (97, 71.2, 64, 612), (96, 71.2, 66, 608), (12, 71.2, 58, 310), (95, 70.8, 88, 655),
            (0, 0.4, 34, 71), (0, 22.1, 36, 72), (88, 40.0, 61, 540), (0, 0.0, 40, 80),
        ]  # fmt: skip
        for index, (utilization, memory, temperature, power) in enumerate(readings):
            throttle = ("hardware thermal slowdown",) if index == 3 else ()
            at = self.now - 633 if index == 7 else None
            self.sample(
                index, at=at, utilization=utilization, memory_gib=memory, temperature=temperature, power=power,
                throttle=throttle,
            )  # fmt: skip
        for index in range(4):
            self._rank_process(index, "gpt2-124m-1", index)
        self._rank_process(6, "vit-b16-1", 0)
        self.processes(
            5, {"pid": 777, "user": "alice", "command": "python sweep.py", "memory_bytes": 22 * GIB, "kind": "C"}
        )
        self.event("GPU 7 fell off the bus: left out, resumed at step 8000", subject="vit-b16-1", seconds_ago=633,
                   severity="error")  # fmt: skip
        self.event("training again after 47 s, 110 steps redone", subject="vit-b16-1", seconds_ago=586)
        self.event("queued behind 1 run", subject="lr-sweep-3", seconds_ago=30)
        self.lose(7)

    def _recovered_run(self) -> None:
        self.run(
            "vit-b16-1", name="vit-b16", gpus=(6,), attempt=3, started_ago=11_000.0,
            launched={"batch_size": 512, "grad_accum": 1, "lr": 0.001, "gradient_checkpointing": False},
            params={"batch_size": 384, "grad_accum": 2, "lr": 0.001, "gradient_checkpointing": False},
        )  # fmt: skip
        now = self.now
        self.attempt(
            "vit-b16-1", 1, "failed", gpus=(6, 7), started_ago=11_000.0, ended_ago=5500.0, code=1, last_step=4310
        )
        self.curve("vit-b16-1", 1, 0, 4310, every=30, ranks=2, total_steps=90_000, end=now - 5500)
        self.incident(
            "vit-b16-1", 1, "cuda_oom", "CUDA ran out of memory on rank 1 at step 4310", seconds_ago=5500, rank=1,
            step=4310, evidence=("error.json: torch.OutOfMemoryError: tried to allocate 2.00 GiB",),
            actions=("batch_size 512 → 384", "grad_accum 1 → 2"), params={"batch_size": 384, "grad_accum": 2},
            reason="batch_size 512 → 384 and grad_accum 1 → 2, the effective batch stays within 2 %",
        )  # fmt: skip
        self.attempt(
            "vit-b16-1", 2, "failed", gpus=(6, 7), started_ago=5450.0, ended_ago=633.0, signal=9, resumed_step=4000,
            last_step=8110,
        )  # fmt: skip
        self.curve("vit-b16-1", 2, 4000, 8110, every=30, ranks=2, total_steps=90_000, end=now - 633)
        self.incident(
            "vit-b16-1", 2, "gpu_lost", "GPU 7 was lost (XID 79) at step 8110", seconds_ago=633, step=8110,
            evidence=("XID 79: GPU has fallen off the bus",), actions=("leave GPU 7 out", "2 → 1 ranks"),
            reason="left GPU 7 out and went on with one rank, for the other GPU is healthy",
        )  # fmt: skip
        self.attempt("vit-b16-1", 3, gpus=(6,), started_ago=586.0, resumed_step=8000, last_step=9440)
        self.curve("vit-b16-1", 3, 8000, 9440, every=30, total_steps=90_000)

    def _rank_process(self, index: int, run_id: str, rank: int) -> None:
        self.processes(
            index,
            {
                "pid": 1000 + index, "user": "me", "command": "python train.py", "memory_bytes": 40 * GIB, "kind": "C",
                "run_id": run_id, "rank": rank, "start_ticks": 5,
            },
        )  # fmt: skip

    def tick(self, seconds: float = 1.0) -> None:
        """One second of a busy machine later."""
        self.now += seconds
        connection = self.connection
        connection.execute("BEGIN")
        connection.execute("UPDATE agent SET heartbeat_at = ?", (self.now,))
        connection.execute("UPDATE gpus SET last_seen_at = ? WHERE present = 1", (self.now,))
        for index in (0, 1, 2, 3, 6):
            self.sample(
                index, utilization=self.random.randint(90, 99), memory_gib=71.2,
                temperature=60 + index + self.random.randint(0, 1), power=600 + self.random.randint(0, 20),
            )  # fmt: skip
        for index in (4, 5):
            self.sample(index, memory_gib=0.4 if index == 4 else 22.1)
        self.host()
        connection.execute("COMMIT")
