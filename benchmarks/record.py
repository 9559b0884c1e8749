"""Costs of `gputui --record`: CPU, memory and calls to the driver, all its processes summed; and
what it leaves.

python -m benchmarks.record [SECONDS] takes everything with 8 and 16 GPUs, once and ten times a second.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

from benchmarks.alone import alone
from benchmarks.processes import CpuMeter, family, memory
from benchmarks.record_sizes import bytes_on_disk
from benchmarks.scene import GPUS, PROCESSES_EACH, Scene, wait_until
from gputui.runs.agent_process import read_identity

WARM_SECONDS = 8.0
"""Imports and the first tick of every tier are over by then."""

DISK_SECONDS = 3600.0
"""An hour of samples, which are rolled up right after it."""


def measure(
    seconds: float = 30.0, *, warm_seconds: float = WARM_SECONDS, gpus: int = GPUS, hertz: float = 1.0
) -> dict[str, Any]:
    """CPU in percent of one core, memory in bytes, calls a second. 30 s hold a whole number of rounds of every tier."""
    with Scene(gpus=gpus, processes=gpus * PROCESSES_EACH) as scene:
        log = scene.folder / "record.log"
        with log.open("wb") as output:
            recorder = subprocess.Popen(
                scene.gputui("--record", "--interval", f"{1 / hertz:g}"),
                env=scene.environment,
                cwd=scene.folder,
                stdout=output,
                stderr=output,
            )
        try:
            wait_until(lambda: log.stat().st_size > 0, what="the first line of --record")
            time.sleep(warm_seconds)
            identity = read_identity(scene.workspace)
            assert identity is not None
            pids = family([recorder.pid])
            rest = [pid for pid in pids if pid != identity.process.pid]
            meter = CpuMeter({"agent": [identity.process.pid], "sampler": rest})
            calls_before = scene.nvml_calls(pids)
            began_at = time.monotonic()
            time.sleep(seconds)
            shares = meter.percent()
            elapsed = time.monotonic() - began_at
            calls = scene.nvml_calls(pids)
            used = memory(pids)
            by_process = {"agent": memory([identity.process.pid]), "sampler": memory(rest)}
        finally:
            recorder.terminate()
            recorder.wait(15)
    new_calls = {name: count - calls_before.get(name, 0) for name, count in calls.items()}
    return {
        "seconds": seconds,
        "cpu_percent": shares["sum"],
        "cpu_percent_agent": shares["agent"],
        "cpu_percent_sampler": shares["sampler"],
        "rss_bytes": used.rss_bytes,
        "pss_bytes": used.pss_bytes,
        "rss_bytes_agent": by_process["agent"].rss_bytes,
        "rss_bytes_sampler": by_process["sampler"].rss_bytes,
        "nvml_calls_per_second": sum(new_calls.values()) / elapsed,
        "nvml_calls_by_function": {
            name: round(count / elapsed, 2)
            for name, count in sorted(new_calls.items(), key=lambda item: -item[1])
            if count
        },
    }


def measure_all(seconds: float = 30.0) -> dict[str, Any]:
    """`measure` and what is left on disk, for machines of two sizes at two paces."""
    figures: dict[str, Any] = {
        f"{gpus} GPUs, {hertz} Hz": {
            **measure(seconds, gpus=gpus, hertz=hertz),
            **bytes_on_disk(gpus, hertz, DISK_SECONDS),
        }
        for gpus in (GPUS, 2 * GPUS)
        for hertz in (1, 10)
    }
    return figures


if __name__ == "__main__":
    alone(measure_all)
