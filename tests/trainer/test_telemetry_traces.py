"""Chrome traces of one step: loadable, few, and summed up rightly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from trainer.telemetry.traces import KEPT_TRACES, Trace, record, summarise


def trace(path: Path) -> Trace:
    with record(path, torch.device("cpu")) as recorded:
        torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64)).relu()
    return recorded


def test_a_trace_holds_the_step_s_operations(tmp_path: Path) -> None:
    recorded = trace(tmp_path / "traces" / "step_00000100.json.gz")
    content = json.loads(gzip.decompress(recorded.path.read_bytes()))
    names = {event.get("name") for event in content["traceEvents"]}
    assert {"aten::mm", "aten::relu", "trainer step"} <= names
    assert (recorded.device_busy, recorded.error) == (None, "")
    assert {name for name, _ in recorded.top} < names - {"trainer step"}
    assert 0 < sum(seconds for _, seconds in recorded.top) < recorded.seconds


def test_the_newest_traces_are_kept_also_when_their_step_is_lower(folder: Path) -> None:
    for step in range(100, 100 + KEPT_TRACES):
        (folder / f"step_{step:08d}.json.gz").write_bytes(b"")
    assert trace(folder / "step_00000007.json.gz").path.exists()
    assert len(list(folder.iterdir())) == KEPT_TRACES
    assert not (folder / "step_00000100.json.gz").exists()


def test_a_trace_that_cannot_be_written_says_so(folder: Path) -> None:
    (folder / "traces").touch()
    assert "step_00000001.json.gz was not written" in trace(folder / "traces" / "step_00000001.json.gz").error


def event(
    name: str, begin: float, end: float, device: DeviceType = DeviceType.CUDA, mark: bool = False
) -> FunctionEvent:
    return FunctionEvent(0, name, 1, begin, end, device_type=device, is_user_annotation=mark)


def test_the_busy_share_of_a_gpu_is_the_union_of_its_work() -> None:
    events = [
        event("trainer step", 0, 1000, DeviceType.CPU, mark=True),
        event("trainer step", 0, 1000, mark=True),
        event("aten::mm", 0, 900, DeviceType.CPU),
        event("gemm", 100, 400),
        event("nccl", 200, 500),
        event("gemm", 700, 750),
        event("copy", 740, 800),
        event("small", 740, 741),
    ]
    busy, top = summarise(events, 1e-3)
    assert busy == pytest.approx(0.5)
    assert [(name, round(seconds * 1e6)) for name, seconds in top] == [("gemm", 350), ("nccl", 300), ("copy", 60)]


def test_operations_are_charged_for_their_own_time_only() -> None:
    outer, inner = event("linear", 0, 100, DeviceType.CPU), event("mm", 10, 50, DeviceType.CPU)
    outer.append_cpu_child(inner)
    busy, top = summarise([outer, inner, event("linear", 100, 150, DeviceType.CPU)], 1e-3)
    assert busy is None
    assert [(name, round(seconds * 1e6)) for name, seconds in top] == [("linear", 110), ("mm", 40)]
