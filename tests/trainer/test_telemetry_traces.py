"""Chrome traces of one step: loadable, few, and summed up rightly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.telemetry.traces import KEPT_TRACES, Recording, Tracer, summarise

CPU = torch.device("cpu")


def record(folder: Path, step: int) -> Recording:
    with Tracer(folder, CPU).record(step) as recording:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64)).relu()
    return recording


def test_a_trace_holds_the_step_s_operations(tmp_path: Path) -> None:
    summary = record(tmp_path / "traces", 100).summary
    assert summary is not None and summary.path == tmp_path / "traces" / "step_00000100.json.gz"
    names = {event.get("name") for event in json.loads(gzip.decompress(summary.path.read_bytes()))["traceEvents"]}
    assert {"aten::mm", "aten::relu", "trainer step"} <= names
    assert summary.device_busy is None
    by_name = {cost.name: cost for cost in summary.top}
    assert by_name["aten::mm"].calls == 1
    assert 0 < by_name["aten::mm"].seconds < summary.seconds


def test_the_newest_traces_are_kept_also_when_their_step_is_lower(folder: Path) -> None:
    for step in range(100, 100 + KEPT_TRACES):
        (folder / f"step_{step:08d}.json.gz").write_bytes(b"")
    summary = record(folder, 7).summary
    assert summary is not None and summary.path.exists()
    assert len(list(folder.iterdir())) == KEPT_TRACES
    assert not (folder / "step_00000100.json.gz").exists()


def event(name: str, category: str, begin: float, duration: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": begin, "dur": duration, "pid": 1, "tid": thread}


def test_the_busy_share_of_a_gpu_is_the_union_of_its_work() -> None:
    events = [
        event("trainer step", "user_annotation", 0, 1000),
        event("trainer step", "gpu_user_annotation", 0, 1000),
        event("aten::mm", "cpu_op", 0, 900),
        event("gemm", "kernel", 100, 300, thread=7),
        event("nccl", "kernel", 200, 300, thread=8),
        event("gemm", "kernel", 700, 50, thread=7),
        event("copy", "gpu_memcpy", 740, 60, thread=9),
        {"ph": "i", "name": "marker", "ts": 5000},
    ]
    seconds, busy, top = summarise(events)
    assert seconds == 1e-3
    assert busy == pytest.approx(0.5)
    assert [(cost.name, cost.calls) for cost in top] == [("gemm", 2), ("nccl", 1), ("copy", 1)]
    assert top[0].seconds == pytest.approx(350e-6)


def test_operations_are_charged_for_their_own_time_only() -> None:
    events = [
        event("linear", "cpu_op", 0, 100),
        event("mm", "cpu_op", 10, 40),
        event("empty", "cpu_op", 20, 10),
        event("add", "cpu_op", 50, 20),
        event("linear", "cpu_op", 100, 50),
        event("mm", "cpu_op", 20, 70, thread=2),
    ]
    seconds, busy, top = summarise(events)
    assert (seconds, busy) == (150e-6, None)
    assert {cost.name: (round(cost.seconds * 1e6), cost.calls) for cost in top} == {
        "linear": (40 + 50, 2),
        "mm": (30 + 70, 2),
        "empty": (10, 1),
        "add": (20, 1),
    }
