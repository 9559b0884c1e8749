"""The status line of `gputui --record`, as text or as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gputui.agent.recording.recorder import Recorder
from gputui.core import units
from gputui.machine.aggregate import totals

Shape = dict[str, Any]


def record_shape(recorder: Recorder, active_runs: int, now: float) -> Shape:
    """The machine's current state. Keys contain the unit; an unknown value is None."""
    indices = {uuid: gpu.index for uuid, gpu in recorder.facts.items()}
    gpus = totals(recorder.fast.values(), indices)
    host = recorder.host
    return {
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "gpus": gpus.gpu_count,
        "gpus_answering": gpus.answering_count,
        "utilization_percent": gpus.utilization_percent,
        "memory_used_bytes": gpus.memory_used_bytes,
        "memory_total_bytes": gpus.memory_total_bytes,
        "power_watts": gpus.power_watts,
        "hottest_gpu": gpus.hottest_index,
        "hottest_celsius": gpus.hottest_celsius,
        "gpu_problem": recorder.inventory.problem if recorder.inventory else None,
        "cpu_percent": host.cpu_percent if host else None,
        "host_memory_used_bytes": host.memory_used_bytes if host else None,
        "host_memory_total_bytes": host.memory_total_bytes if host else None,
        "active_runs": active_runs,
    }


def record_line(shape: Shape) -> str:
    """The same as text."""
    host = (
        f"cpu {units.percent(shape['cpu_percent'])}  ram {units.gibibytes(shape['host_memory_used_bytes'])}"
        f"/{units.gibibytes(shape['host_memory_total_bytes'])} GiB"
    )
    runs = f"{shape['active_runs']} run{'' if shape['active_runs'] == 1 else 's'} active"
    if not shape["gpus"]:
        return f"{shape['time']}  no GPUs  {host}  {runs}"
    hottest = (
        "–" if shape["hottest_gpu"] is None else f"GPU {shape['hottest_gpu']} {units.celsius(shape['hottest_celsius'])}"
    )
    return (
        f"{shape['time']}  {shape['gpus_answering']}/{shape['gpus']} GPUs"
        f"  util {units.percent(shape['utilization_percent'])}"
        f"  mem {units.gibibytes(shape['memory_used_bytes'])}/{units.gibibytes(shape['memory_total_bytes'])} GiB"
        f"  power {units.watts(shape['power_watts'])}  hottest {hottest}  {host}  {runs}"
    )
