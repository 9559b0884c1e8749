"""What the record takes on disk, and what a question over a year of it costs: the recorder is fed with samples of busy
GPUs as fast as it takes them, without a driver."""

from __future__ import annotations

import math
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from gputui.agent.janitor import Janitor
from gputui.agent.recording.recorder import Message, Recorder
from gputui.agent.recording.sample_rollups import renew_days
from gputui.core.config import Workspace, locate
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory, SlowTick
from gputui.machine.schedule import SLOW_SECONDS
from gputui.store.database import open_writer
from gputui.store.hardware import gpu_history
from gputui.store.rollups import GPU_KEPT, names
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

START = 1_790_035_200.0
HOUR, DAY, YEAR = 3600.0, 86_400.0, 365 * 86_400.0
SAMPLES = ("gpu_samples", "gpu_slow_samples", "host_samples")
MINUTES = ("gpu_minutes", "host_minutes")
# The agent tidies so often.
TURN_SECONDS = 1.0
# An hour is rolled up a little after its end.
SETTLED_SECONDS = 30.0


def measure() -> dict[str, Any]:
    """What eight GPUs leave at 1 Hz, and a question over a year of them."""
    return {**bytes_on_disk(8, 1.0), **year_query()}


def bytes_on_disk(gpus: int, hertz: float, seconds: float = HOUR) -> dict[str, Any]:
    """Bytes a day of samples and of minutes, per GPU and of the whole machine, from ``seconds`` of samples, which are
    whole hours."""
    with _store() as (connection, workspace):
        now = [START]
        recorder = Recorder(connection, workspace.runs, lambda: now[0])
        janitor = Janitor(workspace, recorder, 1 / hertz, lambda: now[0])
        facts = tuple(GpuFacts(f"GPU-{i}", i, "H200") for i in range(gpus))
        recorder.take([Inventory(START, "simulated", None, facts)])
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
                turns += _turns(janitor)
        while True:
            now[0] += TURN_SECONDS
            turns += _turns(janitor)
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


def _turns(janitor: Janitor) -> Iterator[float]:
    """The processor time in seconds of each step, until nothing is left to do."""
    is_more = True
    while is_more:
        began = time.thread_time()
        is_more = janitor.work()
        yield time.thread_time() - began


def year_query(gpus: int = 8) -> dict[str, Any]:
    """Seconds to draw a year of hours of every GPU, and of one, in as many points as it has days: the best of five."""
    with _store() as (connection, _):
        columns = names(GPU_KEPT)
        marks = ", ".join("?" * (3 + len(columns)))
        noise = random.Random(3)
        for number in range(gpus):
            connection.execute(
                "INSERT INTO gpus (gpu_id, uuid, position, name, first_seen_at, last_seen_at) "
                "VALUES (?, ?, ?, '', 0, 0)",
                (number + 1, f"GPU-{number}", number),
            )
            connection.executemany(
                f"INSERT INTO gpu_hours (gpu_id, at, sample_count, {', '.join(columns)}) VALUES ({marks})",
                (
                    (number + 1, START + hour * HOUR, 3600, *(round(noise.uniform(1, 9e2)) for _ in columns))
                    for hour in range(int(YEAR / HOUR))
                ),
            )
            renew_days(connection, number + 1, range(int(START), int(START + YEAR), int(DAY)))
        connection.execute("UPDATE record_bounds SET raw_since = ?", (START + YEAR,))
        asked: dict[str, str | None] = {"year_query_seconds": None, "year_query_one_gpu_seconds": "GPU-0"}
        return {name: min(_timed(connection, uuid) for _ in range(5)) for name, uuid in asked.items()}


def _timed(connection: sqlite3.Connection, uuid: str | None) -> float:
    began = time.perf_counter()
    found = gpu_history(connection, START, START + YEAR, 365, uuid)
    assert found and None not in found["GPU-0"].power_watts
    return time.perf_counter() - began


def _tick(at: float, gpus: int, noise: random.Random, *, slow: bool) -> list[Message]:
    """What GPUs in training tell: the load and the power are never twice the same."""
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
        at, noise.uniform(20, 30), 192, noise.uniform(20, 30), noise.randrange(10**11), 10**12, 0,
        noise.uniform(0, 1e9), noise.uniform(0, 1e8), noise.randrange(10**12), 10**13, 4 << 30, 500 << 30,
        noise.uniform(0, 1e7), noise.uniform(0, 1e7),
    )  # fmt: skip
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
