"""Failures made real by cheap scripts without PyTorch: each run meets one in its first attempt, at step 15, and is
brought back from its checkpoint of step 10, or is given up at once where trying again would fail the same way."""

from __future__ import annotations

import pytest

from tests.faults.jobs import meets
from tests.machines import Machine

# Kind of incident → a text in its evidence, and the number of data loader workers of the next attempt.
RECOVERED = {
    "user_exception": ("KeyError: 'tokens'", 4),
    "nonzero_exit": ("ended with code 7", 4),
    "killed": ("SIGKILL", 4),
    "segfault": ("SIGSEGV", 4),
    "host_oom": ("MemoryError", 2),
    "resource_limit": ("Too many open files", 2),
    "disk_full": ("No space left on device", 4),
    "port_in_use": ("Address already in use", 4),
    "nan_loss": ("loss is nan", 4),
    "shim_lost": ("no exit record", 4),
}
GIVEN_UP = {"import_error": ("no_such_module_here", "failed"), "stopped_outside": ("asked to stop", "stopped")}
LOOK_ALIKES = ("quotes", "caught", "usage", "long step")


@pytest.mark.long
def test_real_failures_are_told_apart_and_recovered(machine: Machine) -> None:
    recovery = "policy: standard, backoff: {base: 0.1, max: 0.2}, ladders: {disk_full: [restart]}"
    profile = meets(machine, recovery)
    for kind in (*RECOVERED, *GIVEN_UP, *LOOK_ALIKES):
        machine.gputui("run", profile, "--set", f"meet={kind}", "--name", kind.replace(" ", "-"))
    for kind, (evidence, workers) in RECOVERED.items():
        state = machine.wait_for(f"{kind}-1", "succeeded", "failed", "stopped")
        first, second = machine.json("show", f"{kind}-1")["attempts"]
        assert first["incident"]["kind"] == kind
        assert evidence in " ".join([first["incident"]["summary"], *first["incident"]["evidence"]])
        assert first["decision"]["reason"]
        assert second["resumed_from"].endswith("step_000010.pt")
        assert second["params"] == {**first["params"], "num_workers": workers}
        assert (state, second["state"]) == ("succeeded", "succeeded")
        assert machine.steps(f"{kind}-1") == [(1, step) for step in range(16)] + [(2, step) for step in range(10, 30)]
    for kind, (evidence, expected) in GIVEN_UP.items():
        assert machine.wait_for(f"{kind}-1", "succeeded", "failed", "stopped") == expected
        (attempt,) = machine.json("show", f"{kind}-1")["attempts"]
        assert attempt["incident"]["kind"] == kind
        assert evidence in " ".join([attempt["incident"]["summary"], *attempt["incident"]["evidence"]])
    for name in LOOK_ALIKES:
        run_id = f"{name.replace(' ', '-')}-1"
        assert machine.wait_for(run_id, "succeeded", "failed", "stopped") == "succeeded"
        (attempt,) = machine.json("show", run_id)["attempts"]
        assert attempt["incident"] is None
    assert machine.rows("SELECT * FROM leases") == []
