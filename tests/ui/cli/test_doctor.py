"""`gputui doctor`, for real on this machine."""

from __future__ import annotations

import json

from tests.machines import Machine


def test_this_machine_is_examined(machine: Machine) -> None:
    """A disk that is nearly full or a limit that is low may fail here; that every check answers may not."""
    machine.workspace.scenario.write_text("gpus: 2\nmemory: 80GiB\nseed: 3\n")
    machine.gputui("agent", "start")
    found = {
        result["name"]: result for result in json.loads(machine.gputui("doctor", "digits-ddp", "--json", code=None))
    }
    assert set(found) >= {"driver", "gpus", "interpreter", "disk speed", "database", "agent", "open files", "clock"}
    assert found["gpus"]["status"] == "pass" and found["gpus"]["detail"].startswith("2 × ")
    assert found["database"]["status"] == "pass" and found["agent"]["status"] == "pass"
    assert all(result["remedy"] for result in found.values() if result["status"] in ("warn", "fail"))
    assert "profile" in machine.gputui("doctor", "no-such-profile", code=2)
