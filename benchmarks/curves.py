"""Time to open the charts of a long run, and to zoom into them: ``python -m benchmarks.curves
[LINES]``.

A real WAL database, filled through the same ingest as a live run: one line a step, eight metrics a line, one attempt.
Cold means a connection and a reader that have seen nothing yet; the file lies in the page cache.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks import ingest
from gputui.metrics.curves.live_curves import RunCurves
from gputui.metrics.curves.model import AXES, ChartData, ChartRequest
from gputui.store.attempts import read_attempts
from gputui.store.database import open_reader, open_writer

LINES = 1_000_000
NAMES = ("loss", "grad_norm", "samples_per_s", "lr")
REQUEST = ChartRequest(NAMES, bins=480)
ROUNDS = 5
ZOOMS = (0.5, 0.1, 0.03, 0.01, 0.003, 0.0003)
"""Windows as shares of the run."""


def measure(lines: int = LINES) -> dict[str, Any]:
    """Seconds to open four charts over each axis, to zoom into windows of several widths at random places (the worst
    median of them), to take in one new line, and what the envelopes add to the lines, in percent."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        database = Path(folder) / "gputui.db"
        seconds = fill(database, Path(folder) / "metrics.jsonl", lines)
        opened = {axis: _opened(database, replace(REQUEST, axis=axis)) for axis in AXES}
        zoomed = {share: _zoomed(database, share, lines) for share in ZOOMS}
        return {
            "lines": lines,
            "fill_lines_per_second": lines / seconds,
            "open_seconds": opened["step"],
            "open_by_axis_seconds": opened,
            "zoom_seconds": max(zoomed.values()),
            "zoom_by_share_seconds": {str(share): seconds for share, seconds in zoomed.items()},
            "follow_seconds": _followed(database),
            "envelope_percent": 100 * _share(database),
        }


def fill(database: Path, file: Path, lines: int) -> float:
    """Store a run of so many lines; seconds of wall time for storing them."""
    with file.open("w") as target:
        target.writelines(ingest._line(step) for step in range(lines))
    with closing(open_writer(database)) as connection:
        source = ingest._ingest(connection, file)
        connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at, first_step) "
            "VALUES ('bench', 1, 'running', '{}', '[]', '{}', 1763654321.0, 1763654321.0, 0)"
        )
        return _seconds(lambda: source.finish("bench"))


def _opened(database: Path, request: ChartRequest) -> float:
    return statistics.median(_seconds(lambda: _read(database, request)) for _ in range(ROUNDS))


def _read(database: Path, request: ChartRequest) -> ChartData:
    with closing(open_reader(database)) as connection:
        data = _ask(connection, RunCurves("bench"), request)
    assert all(curve.bins for curve in data.curves.values())
    return data


def _ask(connection: sqlite3.Connection, curves: RunCurves, request: ChartRequest) -> ChartData:
    connection.execute("BEGIN")
    try:
        return curves.read(connection, read_attempts(connection, "bench"), request)
    finally:
        connection.execute("ROLLBACK")


def _zoomed(database: Path, share: float, lines: int) -> float:
    """The median over places, of one that looked at the whole run before."""
    places = random.Random(7)
    durations = []
    with closing(open_reader(database)) as connection:
        curves = RunCurves("bench")
        _ask(connection, curves, REQUEST)
        for _ in range(ROUNDS):
            start = places.uniform(0, lines * (1 - share))
            request = replace(REQUEST, window=(start, start + lines * share))
            durations.append(_seconds(lambda request=request: _ask(connection, curves, request)))  # type: ignore[misc]
    return statistics.median(durations)


def _followed(database: Path) -> float:
    """The cost of a read without new lines."""
    with closing(open_reader(database)) as connection:
        curves = RunCurves("bench")
        _ask(connection, curves, REQUEST)
        return statistics.median(_seconds(lambda: _ask(connection, curves, REQUEST)) for _ in range(20))


def _share(database: Path) -> float:
    """The bytes of the envelopes over those of the lines."""
    with closing(sqlite3.connect(database)) as connection:
        sizes = dict(connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
    reduced = sum(size for name, size in sizes.items() if "envelopes" in name or "stretches" in name)
    return float(reduced / sizes["metrics"])


def _seconds(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else LINES
    figures = measure(lines)
    print(f"{figures['lines']:,} lines stored at {figures['fill_lines_per_second']:,.0f} lines/s")
    print(f"envelopes take {figures['envelope_percent']:.1f} % of what the lines take")
    for axis, seconds in figures["open_by_axis_seconds"].items():
        print(f"{len(NAMES)} charts over {axis} opened in {seconds * 1e3:.0f} ms")
    for share, seconds in figures["zoom_by_share_seconds"].items():
        print(f"zoomed into {float(share):.2%} of the run in {seconds * 1e3:.0f} ms")
    print(f"nothing new: {figures['follow_seconds'] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
