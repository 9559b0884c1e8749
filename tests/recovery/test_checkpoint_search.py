"""The search for checkpoints on a real disk: links, and what a person chose."""

from __future__ import annotations

import json
import os
import sqlite3
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery.attempt_steps import trouble_of
from gputui.recovery.checkpoint_search import CheckpointChoice, choose, for_person, surveyed
from gputui.recovery.ledger_inputs import AttemptSpan, CheckpointSearch, Rows
from tests.stores import open_store

NOW = 1_700_000_000.0


@pytest.fixture
def search(tmp_path: Path) -> CheckpointSearch:
    open_store(tmp_path / "gputui.db").close()
    folder = tmp_path / "out"
    folder.mkdir()
    attempts = (span(1, 0.0, 100.0),)
    return CheckpointSearch(tmp_path / "gputui.db", "a-1", folder, "*.pt", (), attempts)


def span(number: int, begun: float, ended: float, base: Path | None = None, last: int | None = 30) -> AttemptSpan:
    resumed_from = None if base is None else str(base)
    # The times of inodes are those of the test, which attempts that are long over do not allow.
    return AttemptSpan(number, NOW + begun, NOW + ended, resumed_from, last, last is not None, was_scanned_at_end=False)


def save(path: Path, at: float, weights: str = "weights") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights", weights)
    os.utime(path, (NOW + at, NOW + at))
    return path


def looked(search: CheckpointSearch) -> CheckpointSearch:
    return replace(search, rows=surveyed(search, lambda: NOW + 1000.0))


def following(search: CheckpointSearch, rows: Rows, base: Path, last: int | None = 40) -> CheckpointSearch:
    """The next attempt has begun from a checkpoint, and ended."""
    number = len(search.attempts) + 1
    begun = ledger.attempt_begins(rows, search.attempts, number, str(base))
    return replace(
        search, rows=begun, attempts=(*search.attempts, span(number, 200.0 * number, 200.0 * number + 100, base, last))
    )


def chosen(search: CheckpointSearch) -> CheckpointChoice:
    return choose(search.rows, search.attempts, 1, folder=search.folder)


@pytest.fixture
def theirs(search: CheckpointSearch) -> Path:
    (search.folder.parent / "theirs").mkdir()
    return save(search.folder.parent / "theirs" / "last.pt", -500.0)


def from_theirs(search: CheckpointSearch, theirs: Path) -> CheckpointSearch:
    choice = for_person(looked(search), theirs)
    assert [info.path for info in choice.usable] == [theirs]
    return following(search, choice.rows, theirs)


def test_a_chosen_checkpoint_that_is_gone_is_not_followed_by_the_beginning(
    search: CheckpointSearch, theirs: Path
) -> None:
    save(search.folder / "step_20.pt", 20.0)
    search = from_theirs(search, theirs)
    theirs.unlink()
    choice = chosen(looked(search))
    assert choice.usable == () and choice.is_lost
    assert choice.unreadable is not None and "last.pt, which a person chose, is gone" in choice.unreadable


# --- numbers that go wrong --------------------------------------------------------------------------------------------


def lines(search: CheckpointSearch, attempt: int, *told: tuple[int, float, float], is_timed: bool = True) -> None:
    """Lines of (step, time, loss)."""
    connection = sqlite3.connect(search.database)
    with connection:
        connection.execute(
            "INSERT OR IGNORE INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
            "VALUES ('a-1', 1, 'a', 'a', 'running', '{}', '{}', 0)"
        )
        connection.execute(
            "INSERT OR IGNORE INTO metric_sources (source_id, run_id, path, format) VALUES (1, 'a-1', '/m', 'jsonl')"
        )
        connection.execute("INSERT INTO metric_boundaries VALUES (1, 0, ?, ?)", (attempt * 1000, attempt))
        for offset, (step, at, loss) in enumerate(told):
            data = {"step": step, "loss": "NaN" if loss != loss else loss} | ({"time": NOW + at} if is_timed else {})
            connection.execute(
                "INSERT INTO metrics (source_id, generation, byte_offset, attempt, step, at, data) "
                "VALUES (1, 0, ?, ?, ?, ?, ?)",
                (attempt * 1000 + offset, attempt, step, NOW + at, json.dumps(data)),
            )
    connection.close()


NAN = float("nan")


def after_nan(search: CheckpointSearch, number: int, step: int) -> list[str]:
    search = looked(search)
    trouble = trouble_of(search, search.rows, number, step)
    rows = ledger.attempt_ended(search.rows, search.attempts, number, "nan_loss", step, trouble)
    return [row.name for row in ledger.candidates(rows, search.attempts)]


def test_a_resumed_attempt_that_counts_its_steps_anew_leaves_the_earlier_checkpoints(search: CheckpointSearch) -> None:
    """Steps within an epoch, or counted from 1 after each start: step 10 of the second attempt is later than 80."""
    saved = [save(search.folder / f"model_{epoch}.pt", epoch * 20 + 0.5) for epoch in (1, 2, 3, 4)]
    search = replace(search, attempts=(span(1, 0.0, 90.0, last=90),))
    lines(search, 1, *((step, float(step), 1.0) for step in range(1, 91)))
    search = following(search, looked(search).rows, saved[-1], last=15)
    lines(search, 2, *((step, 400.0 + step, 1.0 if step < 10 else NAN) for step in range(1, 16)))
    save(search.folder / "model_5.pt", 412.5)
    assert after_nan(search, 2, 10) == [path.name for path in reversed(saved)]


# --- files that each rank writes --------------------------------------------------------------------------------------


def with_files(search: CheckpointSearch, *files: tuple[str, float]) -> CheckpointSearch:
    for name, at in files:
        save(search.folder / name, at, f"{name} {at}")
    return looked(search)


def names_of(choice: CheckpointChoice) -> list[str]:
    return [info.path.name for info in choice.usable]


def test_the_files_of_all_ranks_are_one_checkpoint(search: CheckpointSearch) -> None:
    tens, twenties = (
        [(f"step_{step}_rank0.pt", float(step)), (f"step_{step}_rank1.pt", step + 0.5)] for step in (10, 20)
    )
    search = with_files(search, *tens, *twenties)
    assert names_of(choose(search.rows, search.attempts, 9)) == ["step_20_rank1.pt", "step_10_rank1.pt"]
    (search.folder / "step_20_rank0.pt").write_bytes(b"")
    os.utime(search.folder / "step_20_rank0.pt", (NOW + 20.0, NOW + 20.0))
    search = looked(search)
    choice = choose(search.rows, search.attempts, 9)
    assert names_of(choice) == ["step_10_rank1.pt"]
    assert choice.refused[0].why == "belongs to step_20_rank0.pt, which is empty"


def test_a_checkpoint_without_a_ranks_file_is_not_whole(search: CheckpointSearch) -> None:
    search = with_files(search, ("step_10_rank0.pt", 10.0), ("step_10_rank1.pt", 10.5), ("step_20_rank0.pt", 20.0))
    choice = chosen(search)
    assert names_of(choice) == ["step_10_rank1.pt"]
    assert "lacks the file of rank 1" in choice.refused[0].why


def over_forty_steps(search: CheckpointSearch) -> CheckpointSearch:
    lines(search, 1, *((step, float(step), 1.0) for step in range(1, 41)))
    return replace(search, attempts=(span(1, 0.0, 41.0, last=40),))


def test_ranks_that_write_over_their_files_may_leave_two_saves(search: CheckpointSearch) -> None:
    search = with_files(over_forty_steps(search), ("rank0.pt", 40.0), ("rank1.pt", 30.0))
    choice = chosen(search)
    assert choice.usable == () and choice.doubted is not None
    assert "rank0.pt is more than a step newer than rank1.pt" in choice.doubted
    # A person may know better.
    named = for_person(search, search.folder / "rank0.pt")
    assert names_of(named) == ["rank0.pt"]
    search = following(search, named.rows, search.folder / "rank0.pt", last=None)
    assert names_of(chosen(looked(search))) == ["rank0.pt"]


def test_what_is_struck_off_takes_the_other_ranks_files_along(search: CheckpointSearch) -> None:
    search = with_files(search, ("rank0.pt", 20.0), ("rank1.pt", 20.7))
    rows = tuple(replace(row, verdict="struck", why="was bad") if row.ranks == ("1",) else row for row in search.rows)
    assert choose(rows, search.attempts, 9).usable == ()
    whys = {row.name: why for row, why in ledger.refused(rows, search.attempts)}
    assert whys == {"rank1.pt": "was bad", "rank0.pt": "belongs to rank1.pt, which was bad"}
