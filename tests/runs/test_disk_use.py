"""What a folder takes of the disk, as `du` counts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gputui.runs.disk_use import folder_bytes, sized_entries


def test_a_folder_takes_what_du_says(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints" / "deep").mkdir(parents=True)
    (tmp_path / "outside.bin").write_bytes(b"x" * 500_000)
    (folder / "model.pt").write_bytes(b"x" * 70_001)
    (folder / "copy.pt").hardlink_to(folder / "model.pt")
    (folder / "shared.bin").hardlink_to(tmp_path / "outside.bin")
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "loop").symlink_to(folder)
    (folder / "checkpoints" / "deep" / "step.pt").write_bytes(b"x" * 12_345)
    with (folder / "sparse.log").open("wb") as file:
        file.truncate(1 << 30)
    total = folder_bytes(folder, 60.0)
    of_folder = folder.lstat().st_blocks * 512
    du = subprocess.run(["du", "-s", "-B1", str(folder)], capture_output=True, text=True, check=True)
    assert total is not None
    assert total + of_folder == int(du.stdout.split()[0])
    assert 580_000 < total < 1 << 21
    assert sum(path.endswith((".pt", "shared.bin")) for path, _ in sized_entries(folder)) == 3


def test_what_cannot_be_read_in_time_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert folder_bytes(tmp_path, -1.0) is None
    assert folder_bytes(tmp_path / "none", 1.0) == 0
