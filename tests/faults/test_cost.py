"""The cost of a failure, by the command line and by the metrics themselves."""

from __future__ import annotations

import json

import pytest

from gputui.core.units import duration
from tests.conftest import wait_until
from tests.machines import STEPS_SCRIPT, Machine

OOM = (
    'raise type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})("CUDA out of memory. Tried to allocate '
    '2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free.")'
)


def test_an_injected_out_of_memory_error_costs_what_the_metrics_say(machine: Machine) -> None:
    profile = machine.profile()
    script = STEPS_SCRIPT.replace('raise RuntimeError("the dog ate the gradients")', OOM)
    (machine.folder / "steps.py").write_text(script)
    run = machine.json("run", profile, "--set", "fail_at=25", "--wait")["id"]

    record = machine.json("show", run)
    first, second = record["attempts"]
    assert first["incident"]["kind"] == "cuda_oom"
    assert second["state"] == "succeeded"
    times = dict(
        machine.rows(
            "SELECT m.attempt * 1000 + m.step, m.at FROM metrics m JOIN metric_sources s USING (source_id) "
            "WHERE s.run_id = ?",
            run,
        )
    )
    # Steps 20 to 25 were done after the checkpoint of step 20, and again by the second attempt.
    again = sum(1 for step in range(100) if 1000 + step in times and 2000 + step in times)
    assert first["incident"]["lost_steps"] == again == 6
    seconds = times[2020] - times[1019]
    assert first["incident"]["lost_seconds"] == pytest.approx(seconds, abs=0.01)
    assert first["incident"]["lost_gpu_hours"] == 0.0
    cost = record["cost_of_failures"]
    assert (cost["incidents"], cost["unknown"], cost["lost_steps"]) == (1, 0, 6)
    assert cost["lost_seconds"] == first["incident"]["lost_seconds"]

    text = f"6 steps and {duration(seconds)}"
    assert f"That cost {text}." in " ".join(machine.gputui("explain", run).split())
    assert f"1 incident cost {text}" in machine.gputui("show", run)


def test_an_incidents_evidence_is_kept_named_and_removed_with_the_run(machine: Machine) -> None:
    run = machine.json("run", machine.profile(), "--set", "fail_at=25", "--wait")["id"]
    folder = machine.workspace.run_dir(run) / "incidents" / "1"
    wait_until((folder / "logs" / "launcher-output.txt").exists, what="the evidence")
    assert "dog ate" in (folder / "logs" / "launcher-output.txt").read_text()
    assert json.loads((folder / "decision.json").read_text())["incident"]["kind"] == "user_exception"
    assert machine.gputui("explain", run, "--evidence").split() == [str(folder)]
    assert str(folder.parent) in machine.gputui("explain", run).splitlines()[-1]
    machine.gputui("rm", run)
    assert not folder.parent.parent.exists()
