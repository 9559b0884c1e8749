"""The files by which homes see each other's runs in a checkpoint folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from gputui.recovery import checkpoint_writers
from gputui.recovery.checkpoint_writers import (
    PREFIX,
    RENEWED_SECONDS,
    SILENT_SECONDS,
    others,
    remove_records,
    write_record,
)
from gputui.recovery.ledger_inputs import AttemptSpan
from gputui.store.checkpoints import AFTER_END_SECONDS, Neighbour
from gputui.store.machine import this_machine

NOW = 1_700_000_000.0


def span(begun_at: float, ended_at: float | None) -> AttemptSpan:
    return AttemptSpan(1, begun_at, ended_at, None, None, False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "one" / "state", tmp_path / "other" / "state"
    for home in made:
        home.mkdir(parents=True)
    return made


def seen(home: Path, folder: Path, now: float = NOW, *attempts: AttemptSpan) -> list[tuple[float, float | None]]:
    """Begin and end of the attempts of others."""
    return [(one.begun_at, one.ended_at) for one in others(home, "a-1", attempts, folder, (), now)]


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_run_of_another_home_is_seen_and_one_of_its_own_is_not(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-1", [span(NOW - 50, NOW - 40), span(NOW - 30, None)], folder, NOW)
    assert seen(homes[1], folder) == [(NOW - 50, NOW - 40), (NOW - 30, None)]
    assert seen(homes[0], folder) == []
    (neighbour,) = others(homes[1], "b-1", (), folder, (), NOW)[1:]
    assert neighbour == Neighbour(f"a-1 of the home {homes[0]}", NOW - 30, None)
    # Other users of the folder read it too.
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644


def test_one_in_a_folder_below_may_have_written_there_only(homes: tuple[Path, Path], folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    write_record(homes[0], "a-1", [span(NOW, None)], below, NOW)
    (neighbour,) = others(homes[1], "a-1", (), folder, [str(below / "x.pt"), str(folder / "y.pt")], NOW)
    assert neighbour.may_have_written(str(below / "x.pt")) and not neighbour.may_have_written(str(folder / "y.pt"))


def test_the_attempts_of_a_home_that_was_moved_are_its_own(homes: tuple[Path, Path], folder: Path) -> None:
    earlier, later = span(NOW - 50, NOW - 40), span(NOW - 30, None)
    write_record(homes[0], "a-1", [earlier, later], folder, NOW)
    assert seen(homes[1], folder, NOW, earlier) == [(later.begun_at, None)]


def test_a_home_that_is_silent_for_long_is_gone(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    assert seen(homes[1], folder, NOW + SILENT_SECONDS - 1.0) == [(NOW, None)]
    assert seen(homes[1], folder, NOW + SILENT_SECONDS + 1.0) == [(NOW, NOW + SILENT_SECONDS)]


def test_nothing_lives_on_after_a_reboot(
    homes: tuple[Path, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    monkeypatch.setattr(
        checkpoint_writers, "this_machine", lambda: replace(this_machine(), boot_id="another boot of this machine")
    )
    assert seen(homes[1], folder, NOW + 1000.0) == [(NOW, NOW + RENEWED_SECONDS)]


def test_the_same_path_on_another_machine_is_another_home(
    homes: tuple[Path, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    other = replace(this_machine(), machine_id="other", boot_id="other")
    monkeypatch.setattr(checkpoint_writers, "this_machine", lambda: other)
    assert seen(homes[0], folder) == [(NOW, None)]
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    assert len(files(folder)) == 2


def test_a_file_is_kept_only_where_another_home_lived_at_the_time(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-1", [span(NOW, NOW + 10)], folder, NOW + 10)
    write_record(homes[0], "a-2", [span(NOW, None)], folder, NOW + 10)
    # What the next home writes at once may look like the work of the one that has just ended.
    remove_records(homes[0], folder, NOW + 10 + AFTER_END_SECONDS)
    assert len(files(folder)) == 2
    remove_records(homes[0], folder, NOW + 11 + AFTER_END_SECONDS)
    # One that lives is not removed.
    assert len(files(folder)) == 1
    write_record(homes[0], "a-1", [span(NOW, NOW + 10)], folder, NOW + 10)
    write_record(homes[1], "b-1", [span(NOW + 10 + AFTER_END_SECONDS, NOW + 20)], folder, NOW + 20)
    for home in homes:
        remove_records(home, folder, NOW + 100)
    assert len(files(folder)) == 3


def test_another_home_with_the_same_path_is_another(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    # As another container has it.
    homes[0].rename(homes[0].with_name("kept"))
    homes[0].mkdir()
    assert seen(homes[0], folder) == [(NOW, None)]
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    assert len(files(folder)) == 2


def test_a_run_that_knows_the_folder_by_another_path_is_seen(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-2", [span(NOW, None)], folder, NOW)
    # As a bind mount does, which no link tells of.
    moved = folder.rename(folder.with_name("mounted"))
    assert others(homes[0], "a-1", (), moved, (), NOW) == [Neighbour("a-2", NOW, None)]


def test_a_home_that_was_removed_is_gone(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    homes[0].rmdir()
    assert seen(homes[1], folder, NOW + 1000.0) == [(NOW, NOW + RENEWED_SECONDS)]


def test_nothing_is_written_into_a_home_or_where_nothing_can_be(homes: tuple[Path, Path], folder: Path) -> None:
    inside = homes[0] / "runs" / "a-1" / "checkpoints"
    inside.mkdir(parents=True)
    write_record(homes[0], "a-1", [span(NOW, None)], inside, NOW)
    assert files(inside) == []
    assert not write_record(homes[0], "a-1", [span(NOW, None)], folder / "missing", NOW)
    write_record(homes[0], "a-1", [], folder, NOW)
    assert files(folder) == []


def test_a_link_in_the_place_of_the_file_is_not_followed(homes: tuple[Path, Path], folder: Path) -> None:
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    (path,) = folder.iterdir()
    victim = folder.parent / "victim"
    victim.write_text("kept")
    for name in (path.name, f"{path.name}.tmp"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
    assert seen(homes[1], folder) == []
    write_record(homes[0], "a-1", [span(NOW, None)], folder, NOW)
    assert victim.read_text() == "kept"
    assert seen(homes[1], folder) == [(NOW, None)]


HOME = {"path": "/h", "inode": 1, "machine": asdict(this_machine())}


def record(**changed: object) -> bytes:
    return json.dumps({"home": HOME, "folder": "/f", "run_id": "x-1", "attempts": [[1.0, 2.0]], **changed}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        record()[:-5],
        record(home=3),
        record(home={**HOME, "path": "x" * 10_000}),
        record(home={**HOME, "inode": "x"}),
        record(home={**HOME, "machine": {}}),
        record(home={**HOME, "machine": {"machine_id": [], "host": "", "boot_id": ""}}),
        record(folder=None),
        record(attempts=3),
        record(attempts=[[1.0]]),
        record(attempts=[[None, 1.0]]),
        record(attempts=[[10**400, 1.0]]),
    ],
)
def test_garbage_is_passed_over(homes: tuple[Path, Path], folder: Path, content: bytes) -> None:
    (folder / f"{PREFIX}0").write_bytes(content)
    (folder / f"{PREFIX}1").mkdir()
    os.mkfifo(folder / f"{PREFIX}2")
    (folder / f"{PREFIX}3").write_bytes(record())
    assert seen(homes[0], folder) == [(1.0, 2.0)]
    remove_records(homes[0], folder, NOW)
    assert len(files(folder)) == 4


def test_many_files_are_read_up_to_a_limit_the_newest_first(
    homes: tuple[Path, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writers, "MOST_RECORDS", 3)
    for number in range(5):
        path = folder / f"{PREFIX}{number}"
        path.write_bytes(record(attempts=[[float(number), None]]))
        os.utime(path, (NOW + number, NOW + number))
    assert [begun for begun, _ in seen(homes[0], folder)] == [4.0, 3.0, 2.0]
