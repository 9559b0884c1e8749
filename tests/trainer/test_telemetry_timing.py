"""The clock of a step, and results that are read one step late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.telemetry.timing import Lagged, MeanTimes, Pending, StepDurations, StepTimer

CPU = torch.device("cpu")


def ticking(*moments: float) -> Iterator[float]:
    yield from moments


def test_a_step_and_its_waits_for_data_are_timed() -> None:
    moments = ticking(10.0, 11.0, 11.5, 12.0, 12.25, 14.0)
    clock = StepTimer(CPU, now=lambda: next(moments))
    clock.start()
    for _ in range(2):
        with clock.data():
            pass
    assert clock.stop().read(exchange=0.5) == StepDurations(step=4.0, data=0.75, exchange=0.5)


def test_a_wait_that_fails_counts_and_the_next_step_begins_at_nothing() -> None:
    moments = ticking(0.0, 0.0, 1.0, 2.0, 5.0, 6.0)
    clock = StepTimer(CPU, now=lambda: next(moments))
    clock.start()
    with pytest.raises(OSError), clock.data():
        raise OSError
    assert clock.stop().read().data == 1.0
    clock.start()
    assert clock.stop().read() == StepDurations(step=1.0, data=0.0)


def test_on_a_gpu_a_step_lasts_from_event_to_event() -> None:
    class Event:
        def elapsed_time(self, end: Event) -> float:
            assert end is ended
            return 250.0

    began, ended = Event(), Event()
    pending = Pending(9.0, 0.1, (began, ended))  # type: ignore[arg-type]
    assert pending.read(exchange=0.05, device_wait=0.2) == StepDurations(0.25, 0.1, 0.05, 0.2)


def test_without_lag_a_result_is_there_at_once() -> None:
    lagged: Lagged[str] = Lagged(CPU)
    lagged.push(7, {"loss": torch.tensor(0.5), "norm": torch.tensor(2, dtype=torch.int64)}, "note")
    [result] = lagged.pop_ready()
    assert (result.step, result.values, result.note) == (7, {"loss": 0.5, "norm": 2.0}, "note")
    assert lagged.pop_ready() == [] == lagged.pop_ready(force=True)


def test_with_a_lag_of_one_results_come_a_step_late_and_unchanged() -> None:
    lagged: Lagged[None] = Lagged(CPU, lag=1)
    total = torch.zeros(())
    seen = []
    for step in (1, 2, 3):
        total.fill_(step / 2)  # the tensor that the first push was given changes after it
        lagged.push(step, {"loss": total}, None)
        seen.append([(result.step, result.values["loss"]) for result in lagged.pop_ready()])
    assert seen == [[], [(1, 0.5)], [(2, 1.0)]]
    assert [result.step for result in lagged.pop_ready(force=True)] == [3]


def test_the_wait_for_the_device_is_measured() -> None:
    moments = ticking(5.0, 5.75)
    lagged: Lagged[None] = Lagged(CPU, now=lambda: next(moments))
    lagged.push(1, {}, None)
    [result] = lagged.pop_ready()
    assert (result.values, result.waited) == ({}, 0.75)


def test_a_gpu_lags_by_one_step() -> None:
    assert Lagged[None](torch.device("cuda", 0)).lag == 1
    assert Lagged[None](CPU).lag == 0


def test_means_leave_out_what_was_unknown_and_start_afresh() -> None:
    means = MeanTimes()
    assert means.take() is None
    means.add(StepDurations(1.0, 0.5, exchange=None, device_wait=0.25))
    means.add(StepDurations(3.0, 0.0, exchange=0.75, device_wait=0.75))
    assert means.take() == StepDurations(2.0, 0.25, 0.75, 0.5)
    means.add(StepDurations(1.0, 0.5))
    assert means.take() == StepDurations(1.0, 0.5, None, None)
