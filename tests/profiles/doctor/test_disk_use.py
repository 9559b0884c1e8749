"""What takes the disk of a home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.core.config import locate
from gputui.profiles.doctor.disk_use import LARGEST_RUNS, check_disk_use, measure
from gputui.store.checkpoints import save
from tests.homes import Home
from tests.ledgers import ledger_row
from tests.texts import mentions

MIB = 1 << 20


def written(path: Path, mebibytes: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * round(mebibytes * MIB))
    return path


def test_each_file_belongs_to_a_part(home: Home) -> None:
    workspace = home.workspace
    home.run("vit-1", "failed")
    run = workspace.run_dir("vit-1")
    state = workspace.state
    shard = written(run / "out" / "checkpoint-10" / "shards" / "model.bin", 4)
    saved = [shard.parents[1], written(run / "best.pt", 2)]
    save(home.connection, "vit-1", [], [ledger_row(str(place)) for place in saved])
    written(run / "attempts" / "1" / "nodes" / "0" / "output.log", 3)
    written(state / "agent.log", 1)
    written(run / "charts" / "loss.svg", 1)
    written(run / "data.log", 0.5)
    written(state / "removed" / "old-1.1" / "model.pt", 5)
    written(state / "gputui.db.corrupt-20260101T000000Z", 7)
    written(state / "studies" / "lr" / "journal", 0.25)
    use = measure(workspace)
    sizes = {part: size / MIB for part, size in use.parts.items()}
    assert use.is_whole
    assert sizes.pop("database") > 7
    assert {part: round(size, 1) for part, size in sizes.items()} == pytest.approx(
        {
            "checkpoints": 6.0, "logs": 4.0, "exports": 1.0, "run files": 0.5, "removed runs": 5.0,
            "the rest": 0.25,
        },
        abs=0.1,
    )  # fmt: skip
    assert list(use.runs) == ["vit-1"]
    assert use.runs["vit-1"] / MIB == pytest.approx(10.5, abs=0.1)


def test_the_largest_come_first_and_too_little_time_is_told(home: Home) -> None:
    for number in range(1, LARGEST_RUNS + 2):
        written(home.workspace.run_dir(f"a-{number}") / "x.bin", number / 4)
    results = {result.name: result.detail for result in check_disk_use(home.workspace)}
    assert mentions(results["disk use"], "MiB", home.workspace.state)
    assert "least" not in results["disk use"]
    assert mentions(results["disk: largest runs"], "a-6 1.5 MiB", "a-5", "a-2")
    assert "a-1 " not in results["disk: largest runs"]
    assert mentions(results["disk: run files"], "MiB", "gputui rm")
    results = {result.name: result.detail for result in check_disk_use(home.workspace, seconds=-1.0)}
    assert "at least" in results["disk use"]


def test_a_home_of_another_user_is_freed_by_that_user(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    written(home.workspace.run_dir("a-1") / "x.bin", 1)
    details = []
    for may_write in (True, False):
        monkeypatch.setattr(os, "access", lambda *_, may_write=may_write: may_write)
        parts = [result for result in check_disk_use(home.workspace) if "gputui rm" in result.detail]
        details.append([("owner" in result.detail) for result in parts])
    assert details[0]
    assert not any(details[0])
    assert details[1] == [True] * len(details[0])


def test_a_home_that_is_not_there(tmp_path: Path) -> None:
    (result,) = check_disk_use(locate(tmp_path, {}))
    assert result.status == "skip"
