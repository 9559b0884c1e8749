"""Runs that are over, and a run that has told a million values: what months leave in a store."""

from __future__ import annotations

import json
import math
import time
from contextlib import closing

from benchmarks.liverun import LiveRun
from benchmarks.scene import wait_until
from gputui.core.config import Workspace
from gputui.runs.spec import GpuRequest, MetricsSpec, RunSpec
from gputui.store.database import open_reader, open_writer

DAY_SECONDS = 86_400.0
LINES_AT_ONCE = 20_000
LONGEST_INGEST_SECONDS = 300.0


def finished_runs(workspace: Workspace, count: int) -> None:
    """Put runs into the store that ended on the days before, every fifth of them failed."""
    now = time.time()
    with closing(open_writer(workspace.database)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        first = connection.execute("SELECT coalesce(max(sequence), 0) FROM runs").fetchone()[0] + 1
        for number in range(count):
            name = f"old-{number}"
            spec = RunSpec(
                name=name,
                launcher="python",
                program=("train.py",),
                workdir="/srv/train",
                python="/usr/bin/python3",
                nproc=1,
                gpus=GpuRequest(count=0),
                params={"lr": 0.001 * (number + 1), "batch_size": 64},
                metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
            )
            ended = now - (number + 1) * DAY_SECONDS / 4
            state = "failed" if number % 5 == 0 else "succeeded"
            params = json.dumps(spec.params)
            connection.execute(
                "INSERT INTO runs (run_id, sequence, name, profile, state, attempt, spec, params, created_at, "
                "queued_at, started_at, ended_at, reason) VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)",
                (f"{name}-1", first + number, name, "old", state, json.dumps(spec.to_json()), params, ended - 7200,
                 ended - 7200, ended - 7190, ended, "out of patience" if state == "failed" else None),
            )  # fmt: skip
            connection.execute(
                "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at, ended_at, "
                "exit_code, first_step, last_step) VALUES (?, 1, ?, ?, '[]', ?, ?, ?, ?, 0, 0, 9000)",
                (f"{name}-1", state, params, json.dumps({"argv": [], "env": {}, "cwd": "/", "grace_seconds": 1.0}),
                 ended - 7190, ended - 7190, ended),
            )  # fmt: skip
        connection.execute("COMMIT")


def long_curve(workspace: Workspace, run: LiveRun, points: int) -> None:
    """Let a living run tell so many values of its loss, as fast as they are taken in.

    Raises TimeoutError.
    """
    for begin in range(0, points, LINES_AT_ONCE):
        steps = range(begin, min(points, begin + LINES_AT_ONCE))
        run.write([{"loss": 2.0 + 6.0 * math.exp(-step / 90_000) + 0.2 * math.sin(step * 12.9898)} for step in steps])
    with closing(open_reader(workspace.database)) as connection:
        query = "SELECT max(step) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ?"
        wait_until(
            lambda: (connection.execute(query, (run.run_id,)).fetchone()[0] or 0) >= run.step,
            LONGEST_INGEST_SECONDS,
            what="the end of the long curve",
        )
