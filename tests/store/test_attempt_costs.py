"""Energy and time of GPUs, as attempts are charged for them."""

from __future__ import annotations

import pytest

from gputui.store.attempts import (
    FellowStay,
    alone_seconds,
    consumed_joules,
    energy_between,
    own_seconds,
    read_attempts,
    run_cost,
)
from tests.homes import NOW, Home


@pytest.fixture
def gpus(home: Home) -> Home:
    """Two GPUs."""
    home.gpus(2)
    return home


def test_consumed() -> None:
    for earlier, later, expected in [
        ((0.0, 1000.0), (5.0, 2500.0), 1500.0),
        ((0.0, 1000.0), (5.0, 1000.0), 0.0),
        ((0.0, 9_000_000.0), (5.0, 40.0), 40.0),  # the driver was loaded anew
    ]:
        assert consumed_joules(earlier, later) == pytest.approx(expected)


def test_parts_of_a_stretch_add_up_to_it() -> None:
    readings = [(t * 5.0, 300.0 * t * 5.0 + t * t) for t in range(100)]
    whole = energy_between(readings, 12.0, 400.0, 60.0)
    parts = [energy_between(readings, a, b, 60.0) for a, b in ((12.0, 77.7), (77.7, 300.0), (300.0, 400.0))]
    assert whole == pytest.approx(sum(part or 0 for part in parts))


def test_a_gap_tells_nothing_of_what_lay_in_it() -> None:
    readings = [(0.0, 0.0), (5.0, 1000.0), (605.0, 90_000.0), (610.0, 91_000.0)]
    assert energy_between(readings, 0.0, 700.0, 60.0) == 2000.0
    assert energy_between(readings, 100.0, 200.0, 60.0) is None
    assert energy_between([(0.0, 5.0)], 0.0, 10.0, 60.0) is None


def test_time_that_several_share_is_divided_among_them() -> None:
    for others, divided, alone in [
        ([], 12.0, 12.0),
        ([(0.0, 100.0)], 6.0, 0.0),
        ([(4.0, 10.0)], 9.0, 6.0),
        ([(-5.0, 3.0), (9.0, None)], 9.0, 6.0),
        ([(0.0, 6.0), (3.0, 9.0)], 1.5 + 1.0 + 1.5 + 3.0, 3.0),
        ([(12.0, 20.0), (-3.0, 0.0)], 12.0, 12.0),
    ]:
        stays = [FellowStay("b-1", begin, end) for begin, end in others]
        assert own_seconds(0.0, 12.0, stays) == pytest.approx(divided)
        assert alone_seconds(0.0, 12.0, stays) == pytest.approx(alone)


def test_time_is_divided_by_what_each_asked_for(home: Home) -> None:
    home.gpus(1)
    for run_id, share in (("a-1", 0.25), ("b-1", 0.75), ("c-1", 1.0)):
        home.run(run_id, "failed", attempt=2, gpus=(0,), started_ago=7200.0, ended_ago=0.0)
        home.connection.execute(
            "UPDATE runs SET spec = json_set(spec, '$.gpus.share', ?) WHERE run_id = ?", (share, run_id)
        )
    home.attempt("a-1", 1, "failed", gpus=(0,), started_ago=7200.0, ended_ago=3600.0)
    home.attempt("a-1", 2, "failed", gpus=(0,), started_ago=3600.0, ended_ago=0.0)
    home.attempt("b-1", 1, "failed", gpus=(0,), started_ago=3600.0, ended_ago=0.0)
    hours = {run_id: run_cost(home.connection, run_id, NOW).gpu_hours for run_id in ("a-1", "b-1")}
    assert hours == pytest.approx({"a-1": 1.25, "b-1": 0.75})
    alone, beside = read_attempts(home.connection, "a-1")
    assert alone.gpu_seconds(NOW - 7200, NOW - 3600) == pytest.approx(3600)
    assert beside.gpu_seconds(NOW - 3600, NOW - 1800) == pytest.approx(450)
    assert [(stay.run_id, stay.weight) for stay in beside.fellows] == [("b-1", 3.0)]
