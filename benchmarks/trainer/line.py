"""The cost of writing a step's metrics line."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

LINES = 4000
ROUNDS = 5


def measure(lines: int = LINES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds per line of a step with everything in it that a GPU run has; the median of the rounds."""
    from trainer.telemetry.telemetry import MetricsWriter

    durations = []
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        for number in range(rounds):
            path = Path(folder) / f"{number}.jsonl"
            writer = MetricsWriter(path)
            began = time.perf_counter()
            for step in range(1, lines + 1):
                writer.write(step, rank=0, phase="warm", **_values(step))
            durations.append((time.perf_counter() - began) / lines)
            writer.close()
            size = path.stat().st_size / lines
    return {
        "seconds": statistics.median(durations),
        "spread": [min(durations), max(durations)],
        "bytes_per_line": size,
    }


def _values(step: int) -> dict[str, float]:
    return {
        "epoch": step // 1000,
        "loss": 2.3456789012345 / (1 + step / 1000),
        "lr": 1e-3 * (1 - step / 1e7),
        "grad_norm": 1.0 + (step * 104_729 % 1000) / 997,
        "samples": 256 * step,
        "samples_per_s": 1234.56789012345 + step % 37,
        "tokens_per_s": 1264197.5197530 + step % 41,
        "mfu": 0.4123456789 + (step % 7) / 1e4,
        "step_time": 0.1731234567 + (step % 13) / 1e4,
        "data_time": 0.0012345678 + (step % 7) / 1e5,
        "comm_time": 0.0123456789 + (step % 11) / 1e5,
        "gpu_mem_peak": 12_345_678_901,
    }
