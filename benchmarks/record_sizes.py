"""Size of the record on disk: the recorder is fed with samples of busy GPUs as fast as it takes
them, without a driver."""

from __future__ import annotations

import math
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from gputui.agent.janitor import Tidying
from gputui.agent.recording.recorder import Message, Recorder
from gputui.core.config import Workspace, locate
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory, SlowTick
from gputui.machine.schedule import SLOW_SECONDS
from gputui.store.database import open_writer
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

START = 1_790_035_200.0
HOUR = 3600.0
DAY = 86_400.0
SAMPLES = ("gpu_samples", "gpu_slow_samples", "host_samples")
MINUTES = ("gpu_minutes", "host_minutes")
# The agent tidies so often.
TURN_SECONDS = 1.0
# An hour is rolled up a little after its end.
SETTLED_SECONDS = 30.0


def measure() -> dict[str, Any]:
    """The record of eight GPUs at 1 Hz."""
    return bytes_on_disk(8, 1.0)


def bytes_on_disk(gpus: int, hertz: float, seconds: float = HOUR) -> dict[str, Any]:
    """Bytes a day of samples and of minutes, per GPU and of the whole machine, from ``seconds`` of samples, which are
    whole hours."""
    with _store() as (connection, workspace):
        now = [START]
        recorder = Recorder(connection, workspace.runs, lambda: now[0])
        tidying = Tidying(workspace, recorder, 1 / hertz, lambda: now[0])
        facts = tuple(GpuFacts(f"GPU-{i}", i, "H200") for i in range(gpus))
        recorder.take([Inventory(START, "simulated", driver_version=None, gpus=facts)])
        noise = random.Random(7)
        tidy_at = slow_at = 0.0
        turns: list[float] = []
        for tick in range(int(seconds * hertz)):
            now[0] = START + tick / hertz + noise.random() * 0.003
            recorder.take(_tick(now[0], gpus, noise, slow=now[0] >= slow_at))
            slow_at = now[0] + SLOW_SECONDS if now[0] >= slow_at else slow_at
            recorder.flush()
            if now[0] >= tidy_at:
                tidy_at = now[0] + TURN_SECONDS
                turns += _turns(tidying)
        while True:
            now[0] += TURN_SECONDS
            turns += _turns(tidying)
            if now[0] > START + seconds + SETTLED_SECONDS:
                break
        samples, minutes = (sum(_bytes(connection, table) for table in tables) for tables in (SAMPLES, MINUTES))
    days = seconds / DAY
    return {
        "raw_bytes_per_day": samples / days,
        "raw_bytes_per_gpu_day": samples / days / gpus,
        "minute_bytes_per_gpu_day": minutes / days / gpus,
        "longest_turn_seconds": max(turns),
        "tidying_cpu_percent": 100 * sum(turns) / seconds,
    }


def _turns(tidying: Tidying) -> Iterator[float]:
    """The processor time in seconds of each step, until nothing is left to do."""
    is_more = True
    while is_more:
        began = time.thread_time()
        is_more = tidying.work()
        yield time.thread_time() - began


def _tick(at: float, gpus: int, noise: random.Random, *, slow: bool) -> list[Message]:
    """Samples of GPUs in training: the load and the power are never twice the same."""
    wave = math.sin(at / 7)
    fast = [
        GpuSample(
            f"GPU-{i}",
            utilization_percent=float(round(90 + 8 * wave)),
            memory_utilization_percent=float(round(50 + 8 * wave)),
            memory_used_bytes=(60 << 30) + noise.randrange(64) * (2 << 20),
            memory_reserved_bytes=600 << 20,
            memory_total_bytes=141 << 30,
            temperature_celsius=float(noise.randrange(60, 70)),
            power_watts=round(600 + 60 * wave + noise.random() * 20, 3),
            power_limit_watts=700.0,
            sm_clock_mhz=noise.randrange(1800, 1981, 15),
            memory_clock_mhz=3201,
            performance_state=0,
            throttle_reasons=(),
        )
        for i in range(gpus)
    ]
    host = HostSample(
        at,
        noise.uniform(20, 30),
        192,
        load_1m=noise.uniform(20, 30),
        memory_used_bytes=noise.randrange(10**11),
        memory_total_bytes=10**12,
        swap_used_bytes=0,
        disk_read_bytes_per_second=noise.uniform(0, 1e9),
        disk_write_bytes_per_second=noise.uniform(0, 1e8),
        disk_used_bytes=noise.randrange(10**12),
        disk_total_bytes=10**13,
        shm_used_bytes=4 << 30,
        shm_total_bytes=500 << 30,
        network_received_bytes_per_second=noise.uniform(0, 1e7),
        network_sent_bytes_per_second=noise.uniform(0, 1e7),
    )
    if not slow:
        return [FastTick(at, tuple(fast)), host]
    slows = tuple(
        GpuSlowSample(
            f"GPU-{i}",
            memory_temperature_celsius=70.0,
            pcie_generation=5,
            pcie_width=16,
            pcie_received_bytes_per_second=noise.uniform(0, 1e9),
            pcie_sent_bytes_per_second=noise.uniform(0, 1e9),
            nvlink_received_bytes_per_second=noise.uniform(0, 1e9),
            nvlink_sent_bytes_per_second=noise.uniform(0, 1e9),
            ecc_corrected=0,
            ecc_uncorrected=0,
            row_remap_pending=False,
            row_remap_failed=False,
            energy_joules=600.0 * (at - START),
        )
        for i in range(gpus)
    )
    return [FastTick(at, tuple(fast)), host, SlowTick(at, slows)]


def _bytes(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute("SELECT sum(pgsize) FROM dbstat WHERE name = ?", (table,)).fetchone()[0])


@contextmanager
def _store() -> Iterator[tuple[sqlite3.Connection, Workspace]]:
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as name:
        workspace = locate(name, {})
        workspace.create()
        with closing(open_writer(workspace.database)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            yield connection, workspace
