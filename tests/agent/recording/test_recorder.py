"""From the sampler's messages to rows."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys

import pytest
from msgspec.structs import replace

from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuEvent, GpuFacts, GpuProcess, Inventory, ProcessTick, SlowTick
from gputui.machine.procfs import read_stat
from gputui.store.events import read_events
from gputui.store.hardware import read_gpus
from gputui.store.series import GpuSample, GpuSlowSample, HostSample
from tests.homes import NOW

FACTS = tuple(GpuFacts(f"GPU-{i}", i, "H200", memory_total_bytes=80 << 30) for i in range(2))


@pytest.fixture
def recorder(connection: sqlite3.Connection, workspace: Workspace) -> Recorder:
    connection.execute(
        "INSERT INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at) "
        "VALUES (1, 1, 1, 'b', '0', ?, ?)",
        (NOW, NOW),
    )
    recorder = Recorder(connection, workspace.runs, lambda: NOW)
    recorder.take([Inventory(NOW, "nvml", "580.95", FACTS)])
    return recorder


def test_a_tick_becomes_rows_and_unknown_stays_unknown(recorder: Recorder, connection: sqlite3.Connection) -> None:
    busy = GpuSample("GPU-0", utilization_percent=97.0, memory_used_bytes=1 << 30, throttle_reasons=("power cap",))
    recorder.take([FastTick(NOW, (busy, GpuSample("GPU-1"))), HostSample(NOW, cpu_percent=12.5)])
    assert recorder.flush()
    first, second = read_gpus(connection, NOW)
    assert (first.utilization_percent, first.memory_used_bytes, first.throttle_reasons) == (
        97.0,
        1 << 30,
        ("power cap",),
    )
    assert second.utilization_percent is None
    assert second.throttle_reasons is None
    assert (0.0,) not in connection.execute("SELECT utilization_percent FROM gpu_samples").fetchall()
    others = "SELECT cpu_percent, memory_used_bytes, driver_version, gpu_problem FROM host_samples, agent"
    assert connection.execute(others).fetchall() == [(12.5, None, "580.95", None)]


def test_the_slow_tier_and_events(recorder: Recorder, connection: sqlite3.Connection) -> None:
    recorder.take(
        [
            SlowTick(NOW, (GpuSlowSample("GPU-1", ecc_uncorrected=2, row_remap_pending=True),)),
            GpuEvent(NOW + 1, "GPU-1", "xid", 79, "GPU has fallen off the bus"),
        ]
    )
    assert recorder.flush()
    assert read_gpus(connection, NOW)[1].slow.ecc_uncorrected == 2
    (event,) = read_events(connection)
    assert (event.subject, event.severity) == ("GPU 1", "error")
    assert "79" in event.message
    assert "fallen off the bus" in event.message


def test_a_process_of_ours_is_told_by_its_mark(
    recorder: Recorder, connection: sqlite3.Connection, workspace: Workspace
) -> None:
    run_dir = workspace.run_dir("demo-1")
    environment = {**os.environ, "GPUTUI_RUN_ID": "demo-1", "GPUTUI_RUN_DIR": str(run_dir), "RANK": "3"}
    code = "print(1, flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = read_stat(child.pid)
        assert stat is not None
        ours = GpuProcess(child.pid, 5 << 30, start_ticks=stat.start_ticks)
        other_start = replace(ours, start_ticks=stat.start_ticks + 1)
        elsewhere = replace(ours, start_ticks=None)
        assert [recorder.owner(process) for process in (ours, other_start, elsewhere)] == [
            ("demo-1", 3, None, None),
            None,
            None,
        ]
        recorder.take([ProcessTick(NOW, {"GPU-0": (ours,), "GPU-1": None})])
        assert recorder.flush()
        child.kill()
    (processes,), unknown = connection.execute("SELECT processes FROM gpus ORDER BY position")
    stored = json.loads(processes)[0]
    assert (stored["run_id"], stored["rank"]) == ("demo-1", 3)
    assert unknown == (None,)


def test_nothing_is_lost_while_the_database_is_locked(
    recorder: Recorder, connection: sqlite3.Connection, workspace: Workspace
) -> None:
    assert recorder.flush()
    connection.execute("PRAGMA busy_timeout = 1")
    writer = sqlite3.connect(workspace.database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    for second in range(5):
        recorder.take([FastTick(NOW + second, (GpuSample("GPU-0", utilization_percent=float(second)),))])
        assert not recorder.flush()
    writer.execute("ROLLBACK")
    writer.close()
    assert recorder.flush()
    stored = connection.execute("SELECT utilization_percent FROM gpu_samples ORDER BY at").fetchall()
    assert [row[0] for row in stored] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_gpu_that_left_is_marked_and_comes_back_as_itself(recorder: Recorder, connection: sqlite3.Connection) -> None:
    recorder.take([Inventory(NOW + 1, "nvml", "580.95", FACTS[:1])])
    assert recorder.flush()
    assert [gpu.state for gpu in read_gpus(connection, NOW + 1)][1] == "lost"
    recorder.take([Inventory(NOW + 2, "nvml", "580.95", FACTS)])
    assert recorder.flush()
    assert connection.execute("SELECT present FROM gpus").fetchall() == [(1,), (1,)]
