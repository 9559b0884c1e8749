"""Peak rates of GPUs, and verdicts on what limits the speed."""

from __future__ import annotations

import pytest

from tests.tables import table
from trainer.telemetry.speed import Arithmetic, Kind, peak_flops, verdict
from trainer.telemetry.timing import StepDurations


def ranks(*rows: tuple[float | None, ...]) -> list[StepDurations]:
    return [StepDurations(*row) for row in rows]  # type: ignore[arg-type]


@table(
    ("times", "on_gpu", "busy", "kind", "said"),
    [
        (ranks((1.0, 0.01)), False, None, "compute", "data takes 1% of a step"),
        (ranks((1.0, 0.5)), False, None, "data", "50%"),
        (ranks((1.0, 0.14)), False, None, "compute", "arithmetic"),
        (ranks((1.0, 0.0, 0.4), (1.0, 0.0, 0.35)), False, None, "communication", "35%"),
        (ranks((1.0, 0.2, 0.35), (1.0, 0.15, 0.4)), False, None, "communication", "--grad-accum"),
        (ranks((1.0, 0.4, 0.2), (1.0, 0.4, 0.2)), False, None, "data", "40%"),
        (ranks((1.0, 0.0)), True, 0.97, "compute", "busy for 97%"),
        (ranks((1.0, 0.0)), True, 0.5, "idle", "50%"),
        (ranks((1.0, 0.3)), True, 0.95, "compute", "95%"),
        (ranks((1.0, 0.3)), True, 0.6, "data", "30%"),
        (ranks((1.0, 0.0, None, 0.8)), True, None, "compute", "arithmetic"),
        (ranks((1.0, 0.3, None, 0.2)), True, None, "compute", "arithmetic"),
        (ranks((1.0, 0.0, None, 0.0)), True, None, "idle", "never keeps"),
        (ranks((1.0, 0.0)), True, None, "unknown", "--trace-every"),
        ([], True, 0.9, "unknown", "No steps"),
        (ranks((0.0, 0.0)), False, None, "unknown", "No steps"),
    ],
)
def test_the_verdict(times: list[StepDurations], on_gpu: bool, busy: float | None, kind: Kind, said: str) -> None:
    result = verdict(times, on_gpu=on_gpu, device_busy=busy)
    assert result.kind == kind
    assert said in result.sentence
    assert result.straggler is None
    if busy is not None and times:
        assert result.figures["device_busy"] == busy


def test_a_slow_rank_is_named_although_all_steps_are_equally_long() -> None:
    result = verdict(ranks((1.0, 0.0, 0.4), (1.0, 0.0, 0.4), (1.0, 0.0, 0.1), (1.0, 0.0, 0.4)), on_gpu=False)
    assert (result.kind, result.straggler) == ("compute", 2)
    assert (
        result.sentence == "Rank 2 holds up the others: 0.9 s a step against 0.6 s, because its own work takes longer."
    )
    assert result.figures["straggler_time"] == pytest.approx(0.9)
    assert result.figures["others_time"] == pytest.approx(0.6)


@table(
    ("times", "slow"),
    [
        (ranks((1.0, 0.0, 0.2), (1.0, 0.0, 0.1)), None),
        (ranks((1.0, 0.0, 0.2), (1.0, 0.0, 0.05)), 1),
        (ranks((1.0, 0.0, 0.5), (1.0, 0.0, None)), None),
        (ranks((1.0, 0.0, 0.5)), None),
    ],
)
def test_stragglers(times: list[StepDurations], slow: int | None) -> None:
    assert verdict(times, on_gpu=False).straggler == slow


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
