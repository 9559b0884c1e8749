"""The checkpoints of a run's page: listed and checked in a thread."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gputui.tui import checkpoint_list
from gputui.tui.checkpoint_list import CheckpointReader
from gputui.tui.snapshot import Checkpoint, CheckpointList


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(folder: Path, step: int, *, damaged: bool = False) -> Path:
    path = folder / f"step_{step}.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"weights" * 100)
    if damaged:
        content = bytearray(path.read_bytes())
        content[60] ^= 0xFF
        path.write_bytes(content)
    return path


def look(reader: CheckpointReader, folder: Path, to_check: str | None = None) -> CheckpointList:
    reader.read(folder, "step_*.pt", to_check)
    reader.wait(5.0)
    return reader.read(folder, "step_*.pt", to_check)


def test_the_newest_is_checked_and_the_others_when_asked(tmp_path: Path) -> None:
    write(tmp_path, 100, damaged=True)
    write(tmp_path, 200)
    clock = Clock()
    reader = CheckpointReader(clock)
    found = look(reader, tmp_path)
    assert found.is_known and found.count == 2
    assert [(each.step, each.is_valid) for each in found.newest] == [(200, True), (100, None)]
    assert "CRC" in found.newest[0].why and found.newest[0].size_bytes and found.newest[0].modified_at
    asked = look(reader, tmp_path, "step_100.pt")
    assert asked.newest[1].is_valid is False and "damaged" in asked.newest[1].why


def test_a_large_one_is_read_only_when_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 200)
    monkeypatch.setattr(checkpoint_list, "CHECKED_UNASKED_BYTES", 10)
    reader = CheckpointReader(Clock())
    assert look(reader, tmp_path).newest[0].is_valid is None
    assert look(reader, tmp_path, "step_200.pt").newest[0].is_valid is True


def test_what_comes_later_is_found_a_few_seconds_later(tmp_path: Path) -> None:
    clock = Clock()
    reader = CheckpointReader(clock)
    assert look(reader, tmp_path / "missing") == CheckpointList(is_known=True)
    write(tmp_path, 100)
    assert look(reader, tmp_path).count == 1
    write(tmp_path, 200)
    assert reader.read(tmp_path, "step_*.pt").count == 1  # listed a moment ago
    clock.now = checkpoint_list.LIST_SECONDS
    assert look(reader, tmp_path).newest[0].step == 200


def test_a_folder_is_as_large_as_its_files_and_another_run_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "step_300"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"x" * 1000)
    (folder / "b.json").write_bytes(b"x" * 24)
    reader = CheckpointReader(Clock())
    reader.read(tmp_path, "step_*")
    reader.wait(5.0)
    assert reader.read(tmp_path, "step_*").newest[0].size_bytes == 1024
    assert reader.read(tmp_path / "other", "step_*").newest == ()
    reader.wait(5.0)


def test_of_a_past_moment_only_what_was_there() -> None:
    found = CheckpointList((Checkpoint("b", 2, 1, 20.0), Checkpoint("a", 1, 1, 10.0)), 5, True)
    assert [each.name for each in found.written_by(15.0).newest] == ["a"] and found.written_by(15.0).count == 4
