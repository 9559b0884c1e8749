"""Verdicts on what limits the speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.telemetry.bottleneck import Kind, straggler, verdict
from trainer.telemetry.timing import StepDurations


def ranks(*rows: tuple[float | None, ...]) -> list[StepDurations]:
    return [StepDurations(*row) for row in rows]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "on_gpu", "busy", "kind", "said"),
    [
        pytest.param(ranks((1.0, 0.01)), False, None, "compute", "data takes 1% of a step", id="cpu alone"),
        pytest.param(ranks((1.0, 0.5)), False, None, "data", "50%", id="cpu waits for data"),
        pytest.param(ranks((1.0, 0.14)), False, None, "compute", "arithmetic", id="data below the threshold"),
        pytest.param(ranks((1.0, 0.0, 0.4), (1.0, 0.0, 0.35)), False, None, "communication", "35%", id="exchange"),
        pytest.param(
            ranks((1.0, 0.2, 0.35), (1.0, 0.15, 0.4)),
            False,
            None,
            "communication",
            "--grad-accum",
            id="exchange > data",
        ),
        pytest.param(ranks((1.0, 0.4, 0.2), (1.0, 0.4, 0.2)), False, None, "data", "40%", id="data > exchange"),
        pytest.param(ranks((1.0, 0.0)), True, 0.97, "compute", "busy for 97%", id="gpu busy"),
        pytest.param(ranks((1.0, 0.0)), True, 0.5, "idle", "50%", id="gpu idle"),
        pytest.param(ranks((1.0, 0.3)), True, 0.95, "compute", "95%", id="data hidden behind a busy gpu"),
        pytest.param(ranks((1.0, 0.3)), True, 0.6, "data", "30%", id="gpu starves"),
        pytest.param(ranks((1.0, 0.0, None, 0.8)), True, None, "compute", "arithmetic", id="host waits for gpu"),
        pytest.param(ranks((1.0, 0.3, None, 0.2)), True, None, "compute", "arithmetic", id="host is ahead"),
        pytest.param(ranks((1.0, 0.0, None, 0.0)), True, None, "idle", "never keeps", id="host is behind"),
        pytest.param(ranks((1.0, 0.0)), True, None, "unknown", "--trace-every", id="nothing known of the gpu"),
        pytest.param([], True, 0.9, "unknown", "No steps", id="no steps"),
        pytest.param(ranks((0.0, 0.0)), False, None, "unknown", "No steps", id="no time"),
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


def test_a_rank_that_is_slow_for_its_data_is_a_matter_of_data() -> None:
    result = verdict(ranks((1.0, 0.35, 0.05), (1.0, 0.02, 0.4)), on_gpu=False)
    assert (result.kind, result.straggler) == ("data", 0)
    assert "its data arrives late" in result.sentence


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        pytest.param(ranks((1.0, 0.0, 0.2), (1.0, 0.0, 0.1)), None, id="12 % more"),
        pytest.param(ranks((1.0, 0.0, 0.2), (1.0, 0.0, 0.05)), 1, id="19 % more"),
        pytest.param(ranks((1.0, 0.0, 0.5), (1.0, 0.0, None)), None, id="one unknown"),
        pytest.param(ranks((1.0, 0.0, 0.5)), None, id="one rank"),
    ],
)
def test_stragglers(times: list[StepDurations], slow: int | None) -> None:
    assert straggler(times) == slow


seconds = st.floats(0, 10)
times = st.builds(StepDurations, st.floats(0, 10), seconds, st.none() | seconds, st.none() | seconds)


@given(st.lists(times, max_size=5), st.booleans(), st.none() | st.floats(0, 1))
def test_there_is_always_a_verdict(measured: list[StepDurations], on_gpu: bool, busy: float | None) -> None:
    result = verdict(measured, on_gpu=on_gpu, device_busy=busy)
    assert result.sentence.endswith(".")
    assert result.straggler is None or result.straggler < len(measured)
    assert on_gpu or result.kind != "idle"
