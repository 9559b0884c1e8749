"""Checkpoints and lineages of training: random histories, and the cases that ended with wrong
weights through the real command line, agent and processes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.faults import lineages
from tests.faults.jobs import SCRIPTS
from tests.machines import Machine
from tests.texts import mentions

SECONDS = 60.0


# Ten thousand take up to half an hour of processor time: 0.15 s each, most of it in looks at the folder (13 ms).
MANY = pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])


def trains(machine: Machine, *, directory: str = "{run_dir}/checkpoints", recovery: str = "policy: standard") -> str:
    """The profile of a job that does as plan.json says: see scripts/trains.py."""
    shutil.copy(SCRIPTS / "trains.py", machine.folder)
    return machine.profile(
        "trains",
        f"""
        name: trains
        launcher: python
        script: trains.py
        python: {sys.executable}
        gpus: 0
        args: "{directory}"
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{dir: "{directory}", pattern: "checkpoint-*", resume: "{{checkpoint}}"}}
        recovery: {{{recovery}, backoff: {{base: 0}}}}
        """,
    )


def plan(machine: Machine, run_id: str, *attempts: dict[str, Any]) -> None:
    """Write the plan of each attempt of a run."""
    (machine.folder / f"{run_id}.json").write_text(json.dumps(attempts))


def attempts_of(machine: Machine, run_id: str) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = machine.json("show", run_id)["attempts"]
    return attempts


def trained(machine: Machine, run_id: str) -> list[int]:
    """The attempts from which the weights come that the run ended with, as its last checkpoint holds them."""
    result: list[int] = json.loads((machine.workspace.run_dir(run_id) / "result.json").read_text())
    return result


@pytest.mark.parametrize("histories", [60, MANY])
def test_random_histories_never_take_a_checkpoint_of_another_course(histories: int, seed: int, tmp_path: Path) -> None:
    assert lineages.play(histories, seed, tmp_path) > histories


# --- end to end -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_restarted_does_not_go_on_from_what_it_had(machine: Machine) -> None:
    """(a): it had finished; restarted, it fails at step 25 without a checkpoint of its own."""
    profile = trains(machine)
    plan(machine, "trains-1", {"to": 40}, {"to": 5, "end": "fail"}, {"to": 40})
    machine.gputui("run", profile)
    machine.wait_for("trains-1", "succeeded")
    machine.gputui("restart", "trains-1")
    wait_until(lambda: len(attempts_of(machine, "trains-1")) == 3, SECONDS, "the third attempt")
    machine.wait_for("trains-1", "succeeded")
    assert [attempt["resumed_from"] for attempt in attempts_of(machine, "trains-1")] == [None, None, None]
    assert trained(machine, "trains-1") == [3]


def test_another_runs_checkpoints_in_a_fixed_folder_are_left_alone(machine: Machine) -> None:
    """(b), and that a person may name one of them."""
    folder = machine.folder / "out"
    profile = trains(machine, directory=str(folder), recovery="policy: standard, max_attempts: 2")
    checks = {check["name"]: check["status"] for check in json.loads(machine.gputui("check", profile, "--json"))}
    assert checks["checkpoints"] == "warn"
    plan(machine, "trains-1", {"to": 40})
    plan(machine, "trains-2", {"to": 5, "end": "fail"}, {"to": 6, "end": "fail"}, {"to": 60})
    machine.gputui("run", profile)
    machine.wait_for("trains-1", "succeeded")
    machine.gputui("run", profile)
    machine.wait_for("trains-2", "failed")
    assert [attempt["resumed_from"] for attempt in attempts_of(machine, "trains-2")] == [None, None]
    assert "before" in machine.gputui("explain", "trains-2")
    refused = machine.gputui("resume", "trains-2", "--from", str(folder / "nothing"), code=3)
    assert "No such file" in refused
    machine.gputui("resume", "trains-2", "--from", str(folder / "checkpoint-40"))
    machine.wait_for("trains-2", "succeeded")
    assert attempts_of(machine, "trains-2")[-1]["resumed_from"] == str(folder / "checkpoint-40")
    listed = {
        Path(checkpoint["path"]).name: checkpoint for checkpoint in machine.json("show", "trains-2")["checkpoints"]
    }
    assert listed["checkpoint-40"]["origin"] == "named"
    assert listed["checkpoint-60"]["origin"] == "run"


def test_what_was_poisoned_is_never_gone_on_from(machine: Machine) -> None:
    """(c): a NaN before any checkpoint; attempt 2 begins anew and is killed; attempt 3 must begin anew too."""
    profile = trains(machine)
    plan(
        machine, "trains-1", {"to": 1000, "nan_from": 3, "until": "ended"}, {"to": 7, "end": "kill"}, {"to": 20}
    )  # fmt: skip
    machine.gputui("run", profile)
    machine.wait_for("trains-1", "succeeded")
    attempts = attempts_of(machine, "trains-1")
    assert attempts[0]["incident"]["kind"] == "nan_loss"
    assert [attempt["resumed_from"] for attempt in attempts] == [None, None, None]
    assert trained(machine, "trains-1") == [3]


def test_a_folder_that_was_cut_short_costs_one_attempt(machine: Machine) -> None:
    """(f): killed while it saves step 40, the model first and trainer_state.json last."""
    profile = trains(machine)
    plan(machine, "trains-1", {"to": 40, "cut": 40, "end": "kill"}, {"to": 60}, {"to": 60})
    machine.gputui("run", profile)
    machine.wait_for("trains-1", "succeeded")
    attempts = attempts_of(machine, "trains-1")
    assert [attempt["resumed_from"] and Path(attempt["resumed_from"]).name for attempt in attempts] == [
        None, "checkpoint-40", "checkpoint-30",
    ]  # fmt: skip
    assert trained(machine, "trains-1") == [1, 3]
    assert "checkpoint-40" in machine.gputui("explain", "trains-1")


@pytest.mark.long
def test_what_was_poisoned_does_not_come_back_by_a_rotation_of_slots(machine: Machine) -> None:
    """A NaN from step 25, seen after step 10; attempt 2 is killed at step 30 between the renames and the save."""
    profile = trains(machine)
    poisoned = {"to": 1000, "nan_from": 25, "until": "ended", "seconds": 0.6}
    plan(
        machine, "trains-1",
        {"slots": True, **poisoned}, {"slots": True, "to": 40, "rotate": 30}, {"slots": True, "to": 40},
    )  # fmt: skip
    machine.gputui("run", profile)
    machine.wait_for("trains-1", "succeeded")
    first, second, third = attempts_of(machine, "trains-1")
    assert first["incident"]["kind"] == "nan_loss"
    assert second["incident"]["kind"] == "killed"
    # Attempt 2 goes on from step 10 or 20 and may have saved step 20 anew before it was killed.
    assert trained(machine, "trains-1") in ([1, 3], [1, 2, 3])
    assert third["resumed_from"] is not None
    begun = machine.rows("SELECT number, resumed_step FROM attempts WHERE run_id = 'trains-1' ORDER BY number")
    assert [step in (10, 20) for _, step in begun] == [False, True, True]


@pytest.mark.long
def test_a_named_checkpoint_that_is_gone_or_written_over_is_not_followed_by_the_beginning(machine: Machine) -> None:
    profile = trains(machine, recovery="policy: standard, ladders: {user_exception: [stop]}")
    plan(machine, "trains-1", {"to": 5, "end": "fail"}, {"to": 37, "end": "kill", "seconds": 1.0}, {"to": 50})
    plan(machine, "trains-2", {"to": 30})
    machine.gputui("run", profile)
    machine.wait_for("trains-1", "failed")
    machine.gputui("run", profile)
    machine.wait_for("trains-2", "succeeded")
    theirs = machine.workspace.run_dir("trains-2") / "checkpoints" / "checkpoint-30"
    link = machine.folder / "chosen"
    link.symlink_to(theirs)
    machine.gputui("resume", "trains-1", "--from", str(link))
    wait_until(lambda: len(attempts_of(machine, "trains-1")) == 2, SECONDS, "the second attempt")
    assert attempts_of(machine, "trains-1")[1]["resumed_from"] == str(theirs)
    wait_until(lambda: (machine.workspace.run_dir("trains-1") / "loaded").exists(), SECONDS, "the checkpoint's load")
    shutil.copyfile(theirs.parent / "checkpoint-20" / "model.pt", theirs / "model.pt")
    (theirs / "trainer_state.json").write_text(json.dumps({"step": 5, "attempts": [99, 99, 99]}))
    machine.wait_for("trains-1", "failed")
    assert len(attempts_of(machine, "trains-1")) == 2
    assert mentions(machine.gputui("explain", "trains-1"), "checkpoint-30", "written over")
