"""Time to show a past moment: ``python -m benchmarks.moments [LINES]``.

A real WAL database with a day of eight GPUs and the host at 1 Hz, and a run of one
line a step over that time; four curves and two GPU series on its page. The page has been open before: the curves of
the whole run are in memory.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import curves
from benchmarks.percentiles import percentile
from gputui.core.config import locate
from gputui.metrics.curves.model import ChartRequest
from gputui.store.database import open_reader, open_writer
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.views.snapshot import Interest, Moment

DAY_SECONDS = 86_400
GPUS = 8
ROUNDS = 60
REQUEST = ChartRequest(curves.NAMES, bins=480, hardware=("utilization", "power"))

_SECONDS = "WITH RECURSIVE second (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM second WHERE n < ?)"


def measure(lines: int = curves.LINES, seconds: int = DAY_SECONDS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds to read the overview and the page of a long run at random moments: medians and 95th percentiles."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        workspace = locate(folder)
        workspace.create()
        curves.fill(workspace.database, Path(folder) / "metrics.jsonl", lines)
        with closing(open_writer(workspace.database)) as connection:
            end = float(connection.execute("SELECT max(at) FROM metrics").fetchone()[0])
            _record(connection, end - seconds, seconds)
        with closing(open_reader(workspace.database)) as connection:
            reader = SnapshotReader(workspace)
            page = Interest("bench", charts=REQUEST)
            reader.read(connection, end, Interest())
            reader.read(connection, end, page)
            return {
                "lines": lines,
                **_named("overview", _read(reader, connection, Interest(), end=end, seconds=seconds, rounds=rounds)),
                **_named("page", _read(reader, connection, page, end=end, seconds=seconds, rounds=rounds)),
            }


def _record(connection: sqlite3.Connection, begin: float, seconds: int) -> None:
    """Record GPUs and host as the agent would have from ``begin`` on."""
    connection.execute("BEGIN IMMEDIATE")
    for number in range(GPUS):
        connection.execute(
            "INSERT INTO gpus (uuid, position, name, first_seen_at, last_seen_at) VALUES (?, ?, 'GPU', ?, ?)",
            (f"GPU-{number}", number, begin, begin + seconds),
        )
    for number in range(1, GPUS + 1):
        connection.execute(
            f"{_SECONDS} INSERT INTO gpu_samples (at, gpu_id, state, utilization_percent, memory_used_bytes, "
            "temperature_celsius, power_watts) SELECT ? + n, ?, 'ok', n % 100, 4e10, 60.0, 500.0 + n % 90 FROM second",
            (seconds, begin, number),
        )
        connection.execute(
            f"{_SECONDS} INSERT INTO gpu_slow_samples (at, gpu_id, ecc_uncorrected) SELECT ? + n * 5, ?, 0 FROM second",
            (seconds // 5, begin, number),
        )
        connection.execute(
            f"{_SECONDS} INSERT INTO gpu_process_sets (at, gpu_id, processes) SELECT ? + n * 60, ?, '[]' FROM second",
            (seconds // 60, begin, number),
        )
    connection.execute(
        f"{_SECONDS} INSERT INTO host_samples (at, cpu_percent) SELECT ? + n, n % 100 FROM second",
        (seconds, begin),
    )
    uuids = [f"GPU-{number}" for number in range(GPUS)]
    connection.execute("UPDATE attempts SET gpus = ?", (str(uuids).replace("'", '"'),))
    connection.execute("UPDATE runs SET attempt = 1, started_at = ?, created_at = ?", (begin, begin))
    connection.execute("UPDATE attempts SET created_at = ?, started_at = ?", (begin, begin))
    connection.execute("COMMIT")


def _read(
    reader: SnapshotReader, connection: sqlite3.Connection, interest: Interest, end: float, seconds: int, rounds: int
) -> list[float]:
    places = random.Random(5)
    durations = []
    for _ in range(rounds):
        at = end - places.uniform(1, seconds - 1)
        begin = time.perf_counter()
        snapshot = reader.read(connection, end, _at(interest, at))
        durations.append(time.perf_counter() - begin)
        assert snapshot.at == at
        assert len(snapshot.gpus) == GPUS
        assert snapshot.runs[0].run.run_id == "bench"
    return durations


def _at(interest: Interest, at: float) -> Interest:
    return Interest(interest.run_id, charts=interest.charts, moment=Moment(at))


def _named(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p50_seconds": percentile(seconds, 50), f"{name}_p95_seconds": percentile(seconds, 95)}


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else curves.LINES
    figures = measure(lines)
    for name in ("overview", "page"):
        p50 = figures[f"{name}_p50_seconds"]
        p95 = figures[f"{name}_p95_seconds"]
        print(f"a past moment of the {name}: {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
