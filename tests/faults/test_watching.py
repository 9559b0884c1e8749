"""Drills on what is noticed in a living run: hangs by evidence, a loss that is no number, and their look-alikes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS, meets, ranks
from tests.machines import Machine

# Starts two ranks as torchrun does, without the seconds that torch takes to import.
PAIR = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "ranks.py", *sys.argv[1:]], env={**os.environ, "RANK": rank,
    "LOCAL_RANK": rank, "WORLD_SIZE": "2"}) for rank in "01"]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


def observations(machine: Machine) -> list[tuple[str, int | None, int]]:
    return [tuple(row) for row in machine.rows("SELECT kind, rank, ends FROM observations ORDER BY observation_id")]  # type: ignore[misc]


def test_a_stopped_rank_ends_the_attempt_and_the_run_goes_on_from_its_checkpoint(machine: Machine) -> None:
    (machine.folder / "pair.py").write_text(PAIR)
    of_torchrun = Path(ranks(machine, steps=60)).read_text()
    profile = of_torchrun.replace("launcher: torchrun\nscript: ranks.py", "launcher: python\nscript: pair.py")
    machine.gputui("run", machine.profile("ranks", profile.replace("nproc: 2\n", "")))
    wait_until(lambda: len(machine.steps("ranks-1")) > 14, what="some steps")
    os.kill(machine.ranks("ranks-1")[1], signal.SIGSTOP)
    machine.wait_for("ranks-1", "succeeded")
    first, second = machine.json("show", "ranks-1")["attempts"]
    assert (first["incident"]["kind"], first["incident"]["rank"]) == ("hang", 1)
    assert Path(second["resumed_from"]).name.startswith("step_")


@pytest.mark.long
@pytest.mark.parametrize("fault", ["stop", "lock"])
def test_by_default_a_hang_of_real_ranks_is_called_within_half_a_minute(machine: Machine, fault: str) -> None:
    shutil.copy(SCRIPTS / "deadlock.py", machine.folder)
    profile = machine.profile(
        "gloo",
        f"""
        name: gloo
        launcher: torchrun
        script: deadlock.py
        python: {sys.executable}
        gpus: 0
        nproc: 2
        args: {fault}
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        recovery: {{max_attempts: 1}}
        """,
    )
    machine.gputui("run", profile)
    wait_until(lambda: ("hang", 1, 1) in observations(machine), 120, "the verdict, and the rank from the stacks")
    ((called_at,),) = machine.rows("SELECT at FROM observations WHERE ends")
    assert called_at - float((machine.workspace.run_dir("gloo-1") / "failed-at").read_text()) <= 30
    machine.wait_for("gloo-1", "failed")
    folder = machine.workspace.run_dir("gloo-1") / "incidents" / "1"
    assert "deadlock.py" in (folder / "processes.txt").read_text()
    logs = wait_until(lambda: len(paths := list((folder / "logs").glob("rank*-stderr.txt"))) == 2 and paths)
    stacks = [path.read_text() for path in logs]
    assert len(stacks) == 2
    assert all("most recent call first" in text and "deadlock.py" in text for text in stacks)


@pytest.mark.long
def test_by_default_a_validation_a_start_and_a_checkpoint_of_25_seconds_are_no_hangs(machine: Machine) -> None:
    for fault in ("validate", "compile", "save"):
        machine.gputui("run", ranks(machine, fault=fault, steps=20, seconds=25, hang_after=60))
    for number in (1, 2, 3):
        machine.wait_for(f"ranks-{number}", "succeeded", timeout=170)
    assert machine.rows("SELECT * FROM incidents") == []
    assert all(not ends for _, _, ends in observations(machine))


def test_a_loss_that_stays_nan_ends_the_attempt_and_the_next_begins_before_it(machine: Machine) -> None:
    machine.gputui("run", meets(machine), "--set", "meet=written nan")
    machine.wait_for("job-1", "succeeded")
    first, second = machine.json("show", "job-1")["attempts"]
    assert first["incident"]["kind"] == "nan_loss"
    assert "since step 76" in first["incident"]["summary"]
    assert Path(second["resumed_from"]).name == "step_000010.pt"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "seconds"), [("compile", 14), ("validate", 6), ("save", 6), ("titled", 14), ("half titled", 14)]
)
def test_what_computes_or_reads_is_never_called_a_hang(machine: Machine, fault: str, seconds: int) -> None:
    machine.gputui("run", ranks(machine, fault=fault, steps=20, seconds=seconds))
    machine.wait_for("ranks-1", "succeeded")
    assert len(machine.json("show", "ranks-1")["attempts"]) == 1
    assert machine.rows("SELECT * FROM incidents") == []
    # On a crowded machine earlier steps took seconds too, so that the rank may not even be called slow.
    assert {(kind, ends) for kind, _, ends in observations(machine)} <= {("slow", 0)}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_hang_of_the_trainer_is_called_long_before_its_own_timeout(machine: Machine) -> None:
    profile = machine.profile(
        "digits",
        f"""
        name: digits
        launcher: torchrun
        module: trainer
        python: {sys.executable}
        gpus: 0
        nproc: 2
        params:
          task: classify
          data: digits
          steps: 40
          batch_size: 16
          seed: 0
          checkpoint_every: 10
          timeout: 1200
          inject: "hang@step=25,rank=1"
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
        recovery: {{policy: standard, hang_after: 6, backoff: {{base: 0}}}}
        """,
    )
    machine.gputui("run", profile)
    machine.wait_for("digits-1", "succeeded", timeout=300)
    first, second = machine.json("show", "digits-1")["attempts"]
    assert first["incident"]["kind"] == "hang"
    assert first["last_step"] == 24
    assert Path(second["resumed_from"]).name == "step_00000020.pt"
    stacks = (machine.workspace.run_dir("digits-1") / "incidents" / "1" / "logs").glob("rank1-stderr.txt")
    assert any("faults.py" in path.read_text() for path in stacks)
