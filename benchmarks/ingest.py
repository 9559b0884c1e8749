"""Speed of metrics lines from a file into the store: ``python -m benchmarks.ingest``.

A real JSONL file of lines as a training script writes them (eleven keys, about 230 bytes), a real WAL database as the
agent opens it, one process, one thread. Each round begins with an empty database; the median of the rounds counts.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gputui.metrics.ingest import MetricsIngest
from gputui.store.database import open_reader, open_writer
from gputui.store.metrics import queries

LINES = 200_000
READ_LINES = 100_000
ROUNDS = 3


def measure(lines: int = LINES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Ingest ``lines`` lines ``rounds`` times: lines and bytes per second of wall time, lines per second of processor
    time, the process's peak memory; and the seconds to read the newest value of every metric."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        file = Path(folder) / "metrics.jsonl"
        with file.open("w") as target:
            target.writelines(_line(step) for step in range(lines))
        results = [_round(Path(folder) / f"{number}.db", file, lines) for number in range(rounds)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        read = Path(folder) / "read.jsonl"
        with read.open("w") as target:
            target.writelines(_line(step) for step in range(min(lines, READ_LINES)))
        reading = _read(Path(folder) / "read.db", read)
        size = file.stat().st_size
    wall = statistics.median(seconds for seconds, _ in results)
    cpu = statistics.median(seconds for _, seconds in results)
    return {
        "lines": lines,
        "bytes_per_line": size / lines,
        "lines_per_second": lines / wall,
        "lines_per_cpu_second": lines / cpu,
        "bytes_per_second": size / wall,
        "peak_rss_bytes": peak,
        **reading,
    }


def _line(step: int) -> str:
    values = {
        "step": step,
        "time": round(1_763_654_321.0 + step * 0.173, 6),
        "rank": 0,
        "epoch": step // 1000,
        "loss": 2.3456789 / (1 + step / 1000) + (step * 7919 % 1000) / 1e5,
        "lr": 1e-3 * (1 - step / 1e7),
        "grad_norm": 1.0 + (step * 104_729 % 1000) / 997,
        "samples_per_s": round(1234.5 + step % 37, 3),
        "step_time": round(0.1731 + (step % 13) / 1e4, 6),
        "data_time": round(0.0012 + (step % 7) / 1e5, 6),
        "gpu_mem_peak": 12_345_678_901,
    }
    return json.dumps(values) + "\n"


def _round(database: Path, file: Path, lines: int) -> tuple[float, float]:
    """(wall, processor) seconds to store every line of the file."""
    connection = open_writer(database)
    ingest = _ingest(connection, file)
    wall = time.perf_counter()
    cpu = time.process_time()
    stored = 0
    while True:
        report = ingest.pump()
        stored += report.lines
        if not report.more:
            break
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    ingest.close()
    connection.close()
    assert stored == lines, (stored, lines)
    return wall, cpu


def _read(database: Path, file: Path) -> dict[str, float]:
    connection = open_writer(database)
    ingest = _ingest(connection, file)
    ingest.finish("bench")
    reader = open_reader(database)
    figures = {
        "latest_seconds": min(_seconds(lambda: queries.latest(reader, "bench")) for _ in range(5)),
    }
    reader.close()
    connection.close()
    return figures


def _seconds(ask: Any) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started


def _ingest(connection: Any, file: Path) -> MetricsIngest:
    connection.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('bench', 1, 'bench', 'bench', 'running', '{}', '{}', 0)"
    )
    ingest = MetricsIngest(connection)
    ingest.open_source("bench", str(file), "jsonl")
    ingest.readmit_attempt("bench", 1, {})
    return ingest


def main() -> None:
    rates = measure()
    print(f"{rates['lines']} lines of {rates['bytes_per_line']:.0f} bytes, median of {ROUNDS} rounds")
    print(
        f"{rates['lines_per_second']:,.0f} lines/s ({rates['lines_per_cpu_second']:,.0f} per second of processor time)"
    )
    print(f"{rates['bytes_per_second'] / 1e6:.1f} MB/s, peak memory {rates['peak_rss_bytes'] / 1e6:.1f} MB")
    print(f"the newest value of every metric read in {rates['latest_seconds'] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
