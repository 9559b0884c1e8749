"""What `gputui --record` costs at 1 Hz: CPU, memory and calls to the driver, all its processes summed.

python -m benchmarks.record [SECONDS]
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

from benchmarks.alone import alone
from benchmarks.processes import CpuMeter, family, memory
from benchmarks.scene import Scene, wait_until
from gputui.runs.agent_process import read_identity

WARM_SECONDS = 8.0
"""Imports and the first tick of every tier are over by then."""


def measure(seconds: float = 30.0, *, warm_seconds: float = WARM_SECONDS) -> dict[str, Any]:
    """CPU in percent of one core, memory in bytes, calls a second. 30 s hold a whole number of rounds of every tier."""
    with Scene() as scene:
        log = scene.folder / "record.log"
        with log.open("wb") as output:
            recorder = subprocess.Popen(
                scene.gputui("--record"), env=scene.environment, cwd=scene.folder, stdout=output, stderr=output
            )
        try:
            wait_until(lambda: log.stat().st_size > 0, what="the first line of --record")
            time.sleep(warm_seconds)
            identity = read_identity(scene.workspace)
            assert identity is not None
            pids = family([recorder.pid])
            rest = [pid for pid in pids if pid != identity.process.pid]
            meter = CpuMeter({"agent": [identity.process.pid], "sampler": rest})
            calls_before, began_at = scene.nvml_calls(pids), time.monotonic()
            time.sleep(seconds)
            shares, elapsed = meter.percent(), time.monotonic() - began_at
            calls = scene.nvml_calls(pids)
            used = memory(pids)
            by_process = {"agent": memory([identity.process.pid]), "sampler": memory(rest)}
        finally:
            recorder.terminate()
            recorder.wait(15)
    made = {name: count - calls_before.get(name, 0) for name, count in calls.items()}
    return {
        "seconds": seconds,
        "cpu_percent": shares["sum"],
        "cpu_percent_agent": shares["agent"],
        "cpu_percent_sampler": shares["sampler"],
        "rss_bytes": used.rss_bytes,
        "pss_bytes": used.pss_bytes,
        "rss_bytes_agent": by_process["agent"].rss_bytes,
        "rss_bytes_sampler": by_process["sampler"].rss_bytes,
        "nvml_calls_per_second": sum(made.values()) / elapsed,
        "nvml_calls_by_function": {
            name: round(count / elapsed, 2) for name, count in sorted(made.items(), key=lambda item: -item[1]) if count
        },
    }


if __name__ == "__main__":
    alone(measure)
