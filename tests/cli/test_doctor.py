"""`gputui doctor`, for real on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.cli.doctor import report
from gputui.runs.checks import CheckResult
from tests.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def test_the_report_shows_words_remedies_and_a_summary() -> None:
    lines = report([
        CheckResult("disk", "pass", "much room"), CheckResult("clock", "warn", "wrong", "set it"),
        CheckResult("gpus", "fail", "lost", "reset it"), CheckResult("pcie", "skip", "idle", "never shown"),
    ])  # fmt: skip
    assert lines[0] == "✓ PASS  disk   much room"
    assert lines[1].startswith("▲ WARN  clock") and lines[2].strip() == "→ set it"
    assert not any("never shown" in line for line in lines)
    assert re.findall(r"\d+ \w+", lines[-1]) == ["1 passed", "1 warning", "1 failed", "1 skipped"]


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
