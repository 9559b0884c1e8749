"""The clock of a step, and results that are read one step late."""

from __future__ import annotations

import torch

from trainer.telemetry.timing import Lagged, StepDurations, StepTimer, means

CPU = torch.device("cpu")


def test_a_step_and_its_waits_for_data_are_timed() -> None:
    moments = iter((10.0, 11.0, 11.5, 12.0, 12.25, 14.0))
    clock = StepTimer(CPU, now=lambda: next(moments))
    clock.start()
    for _ in range(2):
        with clock.data():
            pass
    assert clock.stop().read(exchange=0.5) == StepDurations(step=4.0, data=0.75, exchange=0.5)


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


def test_means_leave_out_what_was_unknown() -> None:
    first = StepDurations(1.0, 0.5, exchange=None, device_wait=0.25)
    second = StepDurations(3.0, 0.0, exchange=0.75, device_wait=0.75)
    assert means([first, second]) == StepDurations(2.0, 0.25, 0.75, 0.5)
    assert means([]) is None and means([StepDurations(1.0, 0.5)]) == StepDurations(1.0, 0.5, None, None)
