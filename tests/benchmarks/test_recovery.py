"""Recovery as it is measured: no healthy hour leads to an alarm, what breaks is found, and a drill is what it says."""

from __future__ import annotations

import pytest

from benchmarks.recovery import hours, report
from benchmarks.recovery.drilling import drill
from gputui.recovery.kinds import KINDS
from tests.faults.live import LIVE


@pytest.mark.long
def test_healthy_hours_lead_to_no_alarm() -> None:
    told = hours.healthy(150, seed=3)
    assert told.hours >= 150 and told.lines > 50_000 and told.looks > 10_000
    assert told.alarms == {}, told.examples


@pytest.mark.parametrize("fault", hours.FAULTS)
def test_what_breaks_in_the_same_hours_is_found(fault: str) -> None:
    found = hours.found(fault, 3, seed=2)
    assert found.found == 3
    assert found.worst_evidence_seconds is None or found.worst_evidence_seconds < 30


def test_every_kind_can_be_provoked() -> None:
    assert set(LIVE) == set(KINDS)


def test_a_drill_measures_what_happened() -> None:
    done = drill("killed")
    assert done.trouble is None and done.detected and done.right
    assert done.detect_seconds is not None and done.next_step_seconds is not None
    assert 0 < done.detect_seconds < done.next_step_seconds
    assert (done.steps_lost, done.taken) == (6, "restart")
    assert "1 kinds: 1 detected, 1 met with the right action" in report.drills([done])
