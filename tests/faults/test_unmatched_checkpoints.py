"""A pattern that finds none of what a script saves: said after the attempt, with what it may have meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.recovery.checkpoint_search import unmatched
from gputui.recovery.ledger_inputs import AttemptSpan, CheckpointSearch
from tests.conftest import wait_until
from tests.machine import Machine


def unmatched_events(machine: Machine) -> list[tuple[str, int, str, str]]:
    return machine.rows("SELECT key, attempt, severity, message FROM events WHERE kind = 'checkpoints_unmatched'")


def misnamed(machine: Machine, folder: str, pattern: str) -> str:
    path = Path(machine.profile())
    text = path.read_text().replace("{run_dir}/checkpoints", folder).replace('"step_*.pt"', f'"{pattern}"')
    path.write_text(text)
    return str(path)


def test_a_run_that_saves_elsewhere_says_so_once_with_a_pattern_that_would_match(machine: Machine) -> None:
    profile = misnamed(machine, "{run_dir}", "step_*.ckpt")
    machine.gputui("run", profile, "--set", "fail_at=25", "--wait", code=None)
    ((key, attempt, severity, message),) = unmatched_events(machine)
    assert (key, attempt, severity) == ("step_*.ckpt", 1, "warning")
    assert "checkpoints/step_" in message and "**/step_*.pt " in message
    assert "**/step_*.pt" in machine.gputui("explain", "steps-1")


def test_one_that_ends_well_without_any_says_so_and_one_that_finds_them_does_not(machine: Machine) -> None:
    machine.gputui("run", misnamed(machine, "{run_dir}/nowhere/at/all", "*.pt"), "--set", "steps=5", "--wait")
    assert [row[:3] for row in unmatched_events(machine)] == [("*.pt", 1, "warning")]
    machine.gputui("run", machine.profile(), "--name", "fine", "--wait")
    assert len(unmatched_events(machine)) == 1


def test_one_that_is_stopped_before_its_first_says_nothing(machine: Machine) -> None:
    profile = machine.profile()
    script = machine.folder / "steps.py"
    script.write_text(script.read_text().replace("or stopping", "").replace("% 10", "% 1000"))
    machine.gputui("run", profile, "--set", "steps=2000")
    wait_until(lambda: len(machine.steps("steps-1")) > 5, 60, "some steps")
    machine.gputui("stop", "steps-1")
    machine.wait_for("steps-1", "stopped")
    assert unmatched_events(machine) == []


@pytest.mark.parametrize(
    ("saved", "pattern"),
    [
        ("run/last.pth.tar", "**/last.pth.tar"), ("epoch=3.ckpt", "epoch=*.ckpt"),
        ("checkpoint-40/x.json", "checkpoint-*"), ("notes.txt", None),
    ],
)  # fmt: skip
def test_what_looks_like_a_checkpoint(tmp_path: Path, saved: str, pattern: str | None) -> None:
    path = tmp_path / saved
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    attempt = AttemptSpan(1, path.stat().st_mtime - 1, None, None, 5, True)
    search = CheckpointSearch(tmp_path / "db", "a-1", tmp_path, "none_*", (), (attempt,))
    assert unmatched(search).pattern == pattern
    # What lay there before the run is none of its.
    later = AttemptSpan(1, path.stat().st_mtime + 1, None, None, 5, True)
    assert unmatched(CheckpointSearch(tmp_path / "db", "a-1", tmp_path, "none_*", (), (later,))).pattern is None
