"""The files that processes and folders hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.runs import written_files
from gputui.runs.written_files import files_below, held_files


def names(folder: Path, *excluded: Path) -> list[str]:
    return [os.path.relpath(entry.path, folder) for entry in files_below(folder, excluded)]


def test_files_below_a_folder(tmp_path: Path) -> None:
    for name in ("a/b/deep.csv", "near.csv", ".git/x", "__pycache__/x", "state/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/again").symlink_to(tmp_path)
    assert names(tmp_path, tmp_path / "state") == ["near.csv", "a/b/deep.csv"]
    assert names(tmp_path / "missing") == []


def test_remote_file_systems_below_a_folder_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("far away/x.pt", "near/x.pt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    mounts = (("far\\040away", "nfs4"), ("near", "ext4"))
    lines = [f"42 27 0:39 / {tmp_path}/{name} rw - {kind} server:/export rw" for name, kind in mounts]
    monkeypatch.setattr(written_files, "_MOUNTS", tmp_path / ".mountinfo")
    (tmp_path / ".mountinfo").write_text("\n".join(lines))
    assert names(tmp_path) == [".mountinfo", "near/x.pt"]


def test_a_large_folder_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_files, "MAX_ENTRIES", 10)
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(20):
        (folder / str(number)).touch()
    assert len(names(folder)) == 10
    monkeypatch.setattr(written_files, "MAX_FOLDER_ENTRIES", 3)
    (folder / "runs").mkdir()
    (folder / "runs/model.pt").touch()
    assert len(names(tmp_path / "large")) <= 4


def test_files_held_open_for_writing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w"), (tmp_path / "log").open(), (tmp_path / "read").open("w") as read:
        read.close()
        with (tmp_path / "read").open():
            assert held_files([os.getpid(), 2**22 + 1]) & {str(tmp_path / "log"), str(tmp_path / "read")} == {
                str(tmp_path / "log")
            }
