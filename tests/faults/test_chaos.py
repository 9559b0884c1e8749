"""The short form of the chaos drills."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.faults.chaos import Chaos
from tests.faults.chaos.studies import StudyChaos
from tests.machines import Machine


@pytest.mark.long
@pytest.mark.timeout(400)
def test_chaos_loses_doubles_and_leaves_nothing(machine: Machine) -> None:
    chaos = Chaos(machine, seed=20261121, digits=1, steps=40)
    try:
        chaos.rage(24)
        ends = chaos.check()
    finally:
        chaos.victims.close_screen()
    assert sum(ends.values()) == len(chaos.clients.runs()) >= 3
    assert sum(chaos.done.values()) >= 24


@pytest.mark.long
@pytest.mark.timeout(400)
def test_kills_in_a_study_lose_no_point_and_double_no_verdict(machine: Machine) -> None:
    chaos = StudyChaos(machine, seed=20261122, trials=10, steps=60)
    chaos.rage(16)
    ends = chaos.check()
    assert ends.total() == 10 * len(chaos.studies)
    assert chaos.killed.total() >= 16
    assert set(chaos.killed) == {"agent", "study process", "trial", "trial's shim"}
    assert chaos.checked["starts with a GPU of their own"] > ends.total()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_kills_among_trials_that_share_gpus_let_no_third_one_in(machine: Machine) -> None:
    chaos = StudyChaos(machine, seed=20261123, trials=10, steps=60, share=2)
    chaos.rage(16)
    ends = chaos.check()
    assert ends.total() == 10 * len(chaos.studies)
    assert chaos.killed.total() >= 16
    assert chaos.checked["starts beside another trial"] > 0


@pytest.mark.long
@pytest.mark.timeout(200)
def test_the_drill_of_studies_sees_what_is_lost_or_doubled(machine: Machine) -> None:
    chaos = StudyChaos(machine, seed=3, trials=3, steps=20)
    chaos.begin()
    chaos.rage(0)
    assert chaos.check().total() == 3
    machine.gputui("agent", "stop")
    doctored = {
        "a verdict that changed": "UPDATE trials SET state = 'failed' WHERE number = 0",
        "a point that changed": "UPDATE trials SET params = '{\"quality\": 2}' WHERE number = 1",
        "another run": "UPDATE trials SET run_id = (SELECT run_id FROM trials WHERE number = 0) WHERE number = 1",
        "a trial that is gone": "DELETE FROM trials WHERE number = 2",
        "a value at a rung": "UPDATE trial_rungs SET value = value + 1 WHERE number = 2",
        "a lost line": "DELETE FROM metrics WHERE step = 3",
        "a second run of a trial": "UPDATE runs SET trial = 0 WHERE trial = 1",
    }
    with closing(sqlite3.connect(":memory:")) as saved, closing(sqlite3.connect(machine.workspace.database)) as store:
        store.backup(saved)
        for what, sql in doctored.items():
            with store:
                assert store.execute(sql).rowcount, what
            with pytest.raises(AssertionError):
                chaos.check()
                pytest.fail(f"not seen: {what}")
            saved.backup(store)
    assert chaos.check().total() == 3
