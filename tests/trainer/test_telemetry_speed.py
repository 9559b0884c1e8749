"""Times of steps, results read one step late, traces, and verdicts on what limits the speed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from tests.tables import table
from tests.texts import mentions
from trainer.telemetry.bottleneck import KEPT_TRACES, Bottleneck, Kind, Trace, record, summarise, verdict
from trainer.telemetry.speed import Arithmetic, Lagged, StepDurations, StepTimer, means, peak_flops

CPU = torch.device("cpu")
Row = tuple[float | None, ...]


def trace(path: Path) -> Trace:
    with record(path, CPU) as recorded:
        torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64)).relu()
    return recorded


def event(
    name: str, begin: float, end: float, device: DeviceType = DeviceType.CUDA, mark: bool = False
) -> FunctionEvent:
    return FunctionEvent(0, name, 1, begin, end, device_type=device, is_user_annotation=mark)


def judged(*rows: Row, on_gpu: bool = False, busy: float | None = None) -> Bottleneck:
    return verdict([StepDurations(*row) for row in rows], on_gpu=on_gpu, device_busy=busy)  # type: ignore[arg-type]


# --- times ------------------------------------------------------------------------------------------------------------


def test_a_step_and_its_waits_for_data_are_timed() -> None:
    moments = iter((10.0, 11.0, 11.5, 12.0, 12.25, 14.0))
    clock = StepTimer(CPU, now=lambda: next(moments))
    clock.start()
    for _ in range(2):
        with clock.data():
            pass
    assert clock.stop()(0.5, 0.1) == StepDurations(step=4.0, data=0.75, exchange=0.5)


@table(("lag", "expected"), [(0, [[1], [2], [3], []]), (1, [[], [1], [2], [3]])])
def test_results_come_after_the_lag_and_unchanged(lag: int, expected: list[list[int]]) -> None:
    lagged: Lagged[str] = Lagged(CPU)
    assert lagged.lag == 0, "only GPUs compute while the host goes on"
    lagged.lag = lag
    total = torch.zeros((), dtype=torch.int64)
    results_per_step = []
    for step in (1, 2, 3):
        total.fill_(step)  # the tensor that the pushes before were given changes after them
        lagged.push(step, {"loss": total}, f"note {step}")
        results_per_step.append(lagged.pop_ready())
    results_per_step.append(lagged.pop_ready(force=True))
    assert [[result.step for result in results] for results in results_per_step] == expected
    for result in [result for results in results_per_step for result in results]:
        assert (result.values, result.note) == ({"loss": float(result.step)}, f"note {result.step}")


def test_means_leave_out_what_was_unknown() -> None:
    first = StepDurations(1.0, 0.5, exchange=None, device_wait=0.25)
    second = StepDurations(3.0, 0.0, exchange=0.75, device_wait=0.75)
    assert means([first, second]) == StepDurations(2.0, 0.25, 0.75, 0.5)
    assert means([StepDurations(1.0, 0.5)]) == StepDurations(1.0, 0.5, exchange=None, device_wait=None)


# --- traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_holds_the_step_s_operations_and_the_newest_are_kept(folder: Path) -> None:
    for step in range(100, 100 + KEPT_TRACES):
        (folder / f"step_{step:08d}.json.gz").write_bytes(b"")
    recorded = trace(folder / "step_00000007.json.gz")  # of a run that started over
    assert {int(path.name[5:13]) for path in folder.iterdir()} == {7, *range(101, 100 + KEPT_TRACES)}
    content = json.loads(gzip.decompress(recorded.path.read_bytes()))
    names = {event.get("name") for event in content["traceEvents"]}
    assert {"aten::mm", "aten::relu", "trainer step"} <= names
    assert (recorded.device_busy, recorded.error) == (None, "")
    assert {name for name, _ in recorded.top} < names - {"trainer step"}
    assert 0 < sum(seconds for _, seconds in recorded.top) < recorded.seconds


def test_a_trace_that_cannot_be_written_says_so(folder: Path) -> None:
    (folder / "traces").touch()
    assert "step_00000001.json.gz was not written" in trace(folder / "traces" / "step_00000001.json.gz").error


def test_the_busy_share_of_a_gpu_is_the_union_of_its_work() -> None:
    events = [
        event("trainer step", 0, 1000, DeviceType.CPU, mark=True),
        event("trainer step", 0, 1000, mark=True),
        event("aten::mm", 0, 900, DeviceType.CPU),
        *(event("gemm", 100, 400), event("nccl", 200, 500), event("gemm", 700, 750)),
        *(event("copy", 740, 800), event("small", 740, 741)),
    ]
    busy, top = summarise(events, 1e-3)
    assert busy == pytest.approx(0.5)
    assert [(name, round(seconds * 1e6)) for name, seconds in top] == [("gemm", 350), ("nccl", 300), ("copy", 60)]


def test_operations_are_charged_for_their_own_time_only() -> None:
    outer = event("linear", 0, 100, DeviceType.CPU)
    inner = event("mm", 10, 50, DeviceType.CPU)
    outer.append_cpu_child(inner)
    busy, top = summarise([outer, inner, event("linear", 100, 150, DeviceType.CPU)], 1e-3)
    assert busy is None
    assert [(name, round(seconds * 1e6)) for name, seconds in top] == [("linear", 110), ("mm", 40)]


# --- peaks and verdicts -----------------------------------------------------------------------------------------------


@table(
    ("device", "arithmetic", "peak"),
    [
        ("NVIDIA H200", "half", 989e12),
        ("NVIDIA H100 80GB HBM3", "tf32", 494e12),
        ("NVIDIA H100 PCIe", "half", 756e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("NVIDIA T1000", "half", None),
    ],
)
def test_the_more_exact_name_counts(device: str, arithmetic: Arithmetic, peak: float | None) -> None:
    assert peak_flops(device, arithmetic) == peak


@table(
    ("rows", "on_gpu", "busy", "kind", "said"),
    [
        ([(1.0, 0.01)], False, None, "compute", "data takes 1% of a step"),
        ([(1.0, 0.5)], False, None, "data", "50%"),
        ([(1.0, 0.14)], False, None, "compute", "arithmetic"),
        ([(1.0, 0.0, 0.4), (1.0, 0.0, 0.35)], False, None, "communication", "35%"),
        ([(1.0, 0.2, 0.35), (1.0, 0.15, 0.4)], False, None, "communication", "--grad-accum"),
        ([(1.0, 0.4, 0.2), (1.0, 0.4, 0.2)], False, None, "data", "40%"),
        ([(1.0, 0.0)], True, 0.97, "compute", "busy for 97%"),
        ([(1.0, 0.0)], True, 0.5, "idle", "50%"),
        ([(1.0, 0.3)], True, 0.95, "compute", "95%"),
        ([(1.0, 0.3)], True, 0.6, "data", "30%"),
        ([(1.0, 0.0, None, 0.8)], True, None, "compute", "arithmetic"),
        ([(1.0, 0.3, None, 0.2)], True, None, "compute", "arithmetic"),
        ([(1.0, 0.0, None, 0.0)], True, None, "idle", "never keeps"),
        ([(1.0, 0.0)], True, None, "unknown", "--trace-every"),
    ],
)
def test_the_verdict(rows: list[Row], on_gpu: bool, busy: float | None, kind: Kind, said: str) -> None:
    result = judged(*rows, on_gpu=on_gpu, busy=busy)
    assert (result.kind, result.straggler, result.figures.get("device_busy")) == (kind, None, busy)
    assert said in result.sentence


@table(
    ("rows", "slow"),
    [
        ([(1.0, 0.0, 0.2), (1.0, 0.0, 0.1)], None),
        ([(1.0, 0.0, 0.2), (1.0, 0.0, 0.05)], 1),
        ([(1.0, 0.0, 0.5), (1.0, 0.0, None)], None),
        ([(1.0, 0.0, 0.5)], None),
    ],
)
def test_a_slow_rank_is_named_although_all_steps_are_equally_long(rows: list[Row], slow: int | None) -> None:
    assert judged(*rows).straggler == slow


def test_what_is_said_of_a_slow_rank() -> None:
    result = judged((1.0, 0.0, 0.4), (1.0, 0.0, 0.4), (1.0, 0.0, 0.1), (1.0, 0.0, 0.4))
    assert (result.kind, result.straggler) == ("compute", 2)
    assert mentions(result.sentence, "Rank 2", "0.9 s", "0.6 s")
    assert result.figures["straggler_time"] == pytest.approx(0.9)
    assert result.figures["others_time"] == pytest.approx(0.6)
