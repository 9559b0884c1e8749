"""A pattern that finds none of what a script saves: said after the attempt, with what it may have meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.recovery.checkpoints.resumable import AttemptSpan
from gputui.recovery.checkpoints.search import CheckpointSearch, unmatched
from tests.machines import Machine


def misnamed(machine: Machine, folder: str, pattern: str) -> str:
    path = Path(machine.profile())
    text = path.read_text().replace("{run_dir}/checkpoints", folder).replace('"step_*.pt"', f'"{pattern}"')
    path.write_text(text)
    return str(path)


def test_what_looks_like_a_checkpoint(tmp_path: Path) -> None:
    for saved, pattern in [
        ("run/last.pth.tar", "**/last.pth.tar"),
        ("epoch=3.ckpt", "epoch=*.ckpt"),
        ("checkpoint-40/x.json", "checkpoint-*"),
        ("notes.txt", None),
    ]:
        folder = tmp_path / f"for {pattern}".replace("/", "_")
        path = folder / saved
        path.parent.mkdir(parents=True)
        path.write_text("x")
        attempt = AttemptSpan(
            1, path.stat().st_mtime - 1, ended_at=None, resumed_from=None, last_step=5, has_worked=True
        )
        search = CheckpointSearch(tmp_path / "db", "a-1", folder, pattern="none_*", rows=(), attempts=(attempt,))
        assert unmatched(search).pattern == pattern
        # Files from before the run are not its own.
        later = AttemptSpan(1, path.stat().st_mtime + 1, ended_at=None, resumed_from=None, last_step=5, has_worked=True)
        assert (
            unmatched(
                CheckpointSearch(tmp_path / "db", "a-1", folder, pattern="none_*", rows=(), attempts=(later,))
            ).pattern
            is None
        )


def test_a_checkpoint_is_found_beside_links_to_nowhere_and_large_hidden_folders(tmp_path: Path) -> None:
    (tmp_path / "last.pt").symlink_to("gone.pt")
    (tmp_path / ".git").mkdir()
    for number in range(2100):
        (tmp_path / ".git" / f"{number}.pt").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "epoch_1.pt").write_text("x")
    assert (
        unmatched(CheckpointSearch(tmp_path / "db", "a-1", tmp_path, pattern="none_*", rows=(), attempts=())).pattern
        == "**/epoch_*.pt"
    )


@pytest.mark.long
def test_a_run_that_saves_elsewhere_says_so_once_with_a_pattern_that_would_match(machine: Machine) -> None:
    profile = misnamed(machine, "{run_dir}", "step_*.ckpt")
    machine.gputui("run", profile, "--set", "fail_at=25", "--wait", code=None)
    ((key, attempt, severity, message),) = machine.rows(
        "SELECT key, attempt, severity, message FROM events WHERE kind = 'checkpoints_unmatched'"
    )
    assert (key, attempt, severity) == ("step_*.ckpt", 1, "warning")
    assert "checkpoints/step_" in message
    assert "**/step_*.pt " in message
    assert "**/step_*.pt" in machine.gputui("explain", "steps-1")
