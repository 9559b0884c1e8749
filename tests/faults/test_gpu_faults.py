"""Drills on GPUs that fail, through the simulated source: real agents and processes, planned faults."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gputui.recovery.kinds import KINDS
from tests.conftest import wait_until
from tests.faults.jobs import write_scenario
from tests.machines import Machine
from tests.texts import mentions

# Steps until a file appears; then, in the first attempt, it waits in vain as a rank does whose GPU is gone.
HANGING_SCRIPT = """
import json, os, pathlib, sys, time
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
attempt = int(os.environ["GPUTUI_ATTEMPT"])
(run_dir / f"seen-{attempt}.json").write_text(json.dumps({"gpus": os.environ["CUDA_VISIBLE_DEVICES"], "argv": sys.argv,
    "nccl": os.environ.get("NCCL_DEBUG")}))
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(10_000):
    if attempt == 1 and (run_dir / "hang").exists():
        time.sleep(600)
    if attempt > 1 and step == 20:
        sys.exit(0)
    if (run_dir / "fail").exists() and attempt == 1:
        raise RuntimeError("the dog ate the gradients")
    os.write(out, (json.dumps({"step": step, "loss": 1.0}) + "\\n").encode())
    time.sleep(0.02)
"""


def launch(machine: Machine, gpus: int, more: str = "", launcher: str = "python") -> Path:
    (machine.folder / "hanging.py").write_text(HANGING_SCRIPT)
    profile = machine.profile(
        "job",
        f"""
            name: job
            launcher: {launcher}
            script: hanging.py
            python: {sys.executable}
            gpus: {gpus}
            params: {{batch_size: 16, grad_accum: 3}}
            metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
            {more}
            """,
    )
    machine.gputui("run", profile)
    machine.wait_for("job-1", "running")
    return machine.workspace.run_dir("job-1")


def environment_of(run_dir: Path, attempt: int) -> dict[str, Any]:
    environment: dict[str, Any] = json.loads((run_dir / f"seen-{attempt}.json").read_text())
    return environment


def gpu(machine: Machine, index: int) -> dict[str, Any]:
    gpu_record: dict[str, Any] = next(entry for entry in machine.json("gpus") if entry["index"] == index)
    return gpu_record


def test_a_run_whose_gpu_is_lost_goes_on_with_another(machine: Machine) -> None:
    write_scenario(machine, 2)
    run_dir = launch(machine, 1, "recovery: {policy: standard, hang_after: 2}")
    first = gpu(machine, 0)["uuid"]
    assert environment_of(run_dir, 1)["gpus"] == first
    (run_dir / "hang").touch()
    write_scenario(machine, 2, "{kind: lost, gpu: 0}", "{kind: xid, gpu: 0, code: 79}")
    machine.wait_for("job-1", "succeeded", timeout=90)
    before, after = machine.json("show", "job-1")["attempts"]
    assert before["incident"]["kind"] == "gpu_lost"
    assert [action["action"] for action in before["decision"]["actions"] if action["applied"]] == ["exclude_gpu"]
    assert after["gpus"] != before["gpus"]
    assert environment_of(run_dir, 2)["gpus"] == after["gpus"][0]
    lost = gpu(machine, 0)
    assert lost["state"] == "lost"
    assert lost["quarantine"]["run_id"] == "job-1"
    assert gpu(machine, 1)["quarantine"] is None
    wait_until(lambda: not machine.rows("SELECT * FROM leases"), what="the end of the lease")

    # The GPU is back, but no run gets it before a person clears its quarantine.
    write_scenario(machine, 2)
    wait_until(lambda: gpu(machine, 0)["state"] == "ok", what="the GPU's return")
    refused = machine.gputui("gpus", "--clear", "1", code=3)
    assert "not in quarantine" in refused
    assert "quarantine" in machine.gputui("gpus")
    machine.gputui("gpus", "--clear", "0")
    assert gpu(machine, 0)["quarantine"] is None


@pytest.mark.long
def test_a_run_goes_on_with_fewer_gpus_where_its_profile_allows_it(machine: Machine) -> None:
    write_scenario(machine, 2)
    run_dir = launch(machine, 2, "min_gpus: 1")
    assert len(environment_of(run_dir, 1)["gpus"].split(",")) == 2
    write_scenario(machine, 2, "{kind: xid, gpu: 1, code: 95}")
    wait_until(lambda: machine.rows("SELECT 1 FROM gpu_events"), what="the XID")
    (run_dir / "fail").touch()
    machine.wait_for("job-1", "succeeded", timeout=60)
    first, second = machine.json("show", "job-1")["attempts"]
    assert first["incident"]["kind"] == "ecc"
    assert "XID 95" in first["incident"]["summary"]
    assert second["gpus"] == [gpu(machine, 0)["uuid"]]
    assert environment_of(run_dir, 2)["gpus"] == second["gpus"][0]
    quarantine = gpu(machine, 1)["quarantine"]
    assert quarantine["run_id"] == "job-1"
    assert mentions(quarantine["reason"], KINDS["ecc"].title)


@pytest.mark.long
def test_a_lost_gpu_is_replaced_before_any_queued_run_starts_and_those_keep_their_order(machine: Machine) -> None:
    write_scenario(machine, 3)
    run_dir = launch(machine, 2, launcher="torchrun")
    gpus = [gpu(machine, index)["uuid"] for index in range(3)]
    for name, count, steps in (("holds", 1, 100_000), ("two", 2, 5), ("one", 1, 5)):
        machine.gputui("run", machine.profile(), "--name", name, "--gpus", str(count), "--set", f"steps={steps}")
    machine.wait_for("holds-1", "running")
    (rank, *_) = wait_until(lambda: machine.ranks("job-1").values(), what="a rank")
    write_scenario(machine, 3, "{kind: lost, gpu: 1}")
    os.kill(rank, signal.SIGKILL)
    waits = "SELECT 1 FROM runs WHERE run_id = 'job-1' AND attempt = 1 AND state = 'queued' AND waiting_for IS NOT NULL"
    wait_until(lambda: machine.rows(waits), what="the wait for another GPU")
    assert machine.state("job-1") == "queued"
    assert machine.state("two-1") == machine.state("one-1") == "queued"
    machine.gputui("stop", "holds-1", "--now")
    for name in ("job-1", "two-1", "one-1"):
        machine.wait_for(name, "succeeded", timeout=90)
    first, second = machine.json("show", "job-1")["attempts"]
    assert (first["incident"]["kind"], set(second["gpus"])) == ("gpu_lost", {gpus[0], gpus[2]})
    assert environment_of(run_dir, 2)["gpus"] == f"{gpus[0]},{gpus[2]}"
    began = dict(machine.rows("SELECT run_id, min(started_at) FROM attempts WHERE number = 1 GROUP BY run_id"))
    ended = dict(machine.rows("SELECT run_id, ended_at FROM runs"))
    assert ended["job-1"] <= began["two-1"] < began["one-1"]
    wait_until(lambda: not machine.rows("SELECT * FROM leases"), what="the end of every lease")


@pytest.mark.long
def test_a_recovering_run_never_goes_on_with_fewer_gpus_in_silence(machine: Machine) -> None:
    write_scenario(machine, 4)
    run_dir = launch(machine, 4, "recovery: {policy: standard, backoff: {base: 3, jitter: 0}}")
    (run_dir / "fail").touch()
    machine.wait_for("job-1", "recovering")
    machine.kill_agent()
    write_scenario(machine, 3)
    machine.gputui("agent", "start")
    (waits,) = wait_until(
        lambda: machine.rows("SELECT waiting_for FROM runs WHERE waiting_for LIKE '%missing%'"), what="the reason"
    )
    assert environment_of(run_dir, 1)["gpus"].split(",")[3] in waits[0]
    assert machine.state("job-1") == "queued"
    machine.kill_agent()
    write_scenario(machine, 4)
    machine.gputui("agent", "start")
    machine.wait_for("job-1", "succeeded")
    assert environment_of(run_dir, 2)["gpus"] == environment_of(run_dir, 1)["gpus"]
