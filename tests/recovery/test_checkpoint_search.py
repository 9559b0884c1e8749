"""The search for checkpoints on a real disk: links, and what a person chose."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery.attempt_steps import trouble_of
from gputui.recovery.checkpoint_search import CheckpointChoice, choose, for_person, is_unchanged, surveyed
from gputui.recovery.checkpoints import measured
from gputui.recovery.ledger_inputs import AttemptSpan, CheckpointSearch, Rows
from gputui.store.checkpoints import CheckpointRow, Neighbour
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


def test_a_link_that_a_person_names_means_what_it_leads_to_now(search: CheckpointSearch) -> None:
    sound, later = save(search.folder / "step_20.pt", 20.0), save(search.folder / "step_27.pt", 27.0)
    link = search.folder / "latest.pt"
    link.symlink_to(sound.name)
    search = looked(search)
    choice = for_person(search, link)
    assert [info.path for info in choice.usable] == [sound]
    link.unlink()
    link.symlink_to(later.name)
    search = looked(following(search, choice.rows, choice.usable[0].path, last=None))
    assert [info.path for info in chosen(search).usable] == [sound]


@pytest.fixture
def theirs(search: CheckpointSearch) -> Path:
    (search.folder.parent / "theirs").mkdir()
    return save(search.folder.parent / "theirs" / "last.pt", -500.0)


def from_theirs(search: CheckpointSearch, theirs: Path) -> CheckpointSearch:
    choice = for_person(looked(search), theirs)
    assert [info.path for info in choice.usable] == [theirs]
    return following(search, choice.rows, theirs)


def test_a_chosen_checkpoint_that_was_written_over_is_not_taken_again(search: CheckpointSearch, theirs: Path) -> None:
    search = from_theirs(search, theirs)
    assert [info.path for info in chosen(looked(search)).usable] == [theirs]
    save(theirs, 450.0, "others")
    choice = chosen(looked(search))
    assert choice.usable == () and choice.is_lost
    assert choice.unreadable is not None and "last.pt, which a person chose, was written over" in choice.unreadable
    # With something of its own the training goes on.
    own = save(search.folder / "step_40.pt", 460.0)
    assert [info.path for info in chosen(looked(search)).usable] == [own]


def test_a_folder_in_a_ledger_of_version_0_1_is_not_taken_for_written_over(search: CheckpointSearch) -> None:
    """Its time and size there are by all its files."""
    search = replace(search, pattern="checkpoint-*")
    own, named = search.folder / "checkpoint-200", search.folder.parent / "theirs" / "checkpoint-100"
    for folder, at in ((own, 20.0), (named, -500.0)):
        folder.mkdir(parents=True)
        save(folder / "model.pt", at)
        (folder / "eval_results.json").write_text("{}")
        for path in (folder / "eval_results.json", folder):
            os.utime(path, (NOW + at + 9.0, NOW + at + 9.0))

    def stored(row: CheckpointRow) -> CheckpointRow:
        file = measured(Path(row.path))
        assert file is not None and file.with_all_files is not None
        return replace(row, modified_ns=file.with_all_files[0], size_bytes=file.with_all_files[1])

    (row,) = looked(search).rows
    search = replace(search, rows=(stored(row),))
    assert is_unchanged(search.rows[0])
    assert [info.path for info in chosen(search).usable] == [own]
    search = following(search, for_person(search, named).rows, named, last=None)
    search = replace(search, rows=tuple(stored(row) if row.origin == "named" else row for row in search.rows))
    assert [info.path for info in chosen(looked(search)).usable] == [named]
    assert {row.path: row.stamp for row in looked(search).rows}[str(own)] == row.stamp


def test_a_chosen_checkpoint_that_is_gone_is_not_followed_by_the_beginning(
    search: CheckpointSearch, theirs: Path
) -> None:
    save(search.folder / "step_20.pt", 20.0)
    search = from_theirs(search, theirs)
    theirs.unlink()
    choice = chosen(looked(search))
    assert choice.usable == () and choice.is_lost
    assert choice.unreadable is not None and "last.pt, which a person chose, is gone" in choice.unreadable


def test_a_chosen_checkpoint_in_the_folder_that_others_wrote_over_is_missed(search: CheckpointSearch) -> None:
    named = save(search.folder / "named.pt", -500.0)
    search = from_theirs(search, named)
    save(named, 150.0, "others")
    choice = chosen(looked(search))
    assert choice.usable == () and choice.unreadable is not None and "named.pt" in choice.unreadable
    # What the training itself writes there is its own.
    save(named, 450.0, "own")
    assert [info.path for info in chosen(looked(search)).usable] == [named]


def test_a_folder_that_is_a_link_to_another_one_at_each_start_loses_nothing(search: CheckpointSearch) -> None:
    first, second, latest = (search.folder / name for name in ("run-1", "run-2", "latest"))
    first.mkdir()
    second.mkdir()
    latest.symlink_to(first)
    search = replace(search, folder=latest, neighbours=(Neighbour("b-1", NOW, NOW + 50.0, str(latest / "sub")),))
    base = save(first / "step_30.pt", 30.0)
    search = looked(search)
    assert [info.path for info in chosen(search).usable] == [base]
    latest.unlink()
    latest.symlink_to(second)
    search = looked(following(search, search.rows, base))
    assert [info.path for info in chosen(search).usable] == [base]
    newer = save(second / "step_40.pt", 440.0)
    search = looked(search)
    assert [info.path for info in chosen(search).usable] == [newer]
    newer.unlink()
    shutil.rmtree(first)
    save(second / "others.pt", -900.0)
    choice = chosen(looked(search))
    assert choice.usable == () and choice.unreadable is not None and "step_30.pt is gone" in choice.unreadable


def test_a_neighbours_folder_below_a_linked_one_is_known(search: CheckpointSearch) -> None:
    real = search.folder / "real"
    (real / "sub").mkdir(parents=True)
    link = search.folder / "link"
    link.symlink_to(real)
    other = Neighbour("b-1", NOW, NOW + 50.0, str(link / "sub"))
    search = replace(search, folder=link, pattern="**/*.pt", neighbours=(other,))
    save(real / "sub" / "step_30.pt", 30.0)
    save(real / "step_20.pt", 20.0)
    assert {row.name: row.origin for row in looked(search).rows} == {"step_30.pt": "contested", "step_20.pt": "run"}


def test_entries_of_an_older_version_keep_what_they_tell_where_the_folder_is_a_link(search: CheckpointSearch) -> None:
    link = search.folder.parent / "link"
    link.symlink_to(search.folder)
    save(search.folder / "step_20.pt", 20.0)
    search = looked(search)
    (row,) = search.rows
    old = replace(row, path=str(link / "step_20.pt"), verdict="struck", why="was bad")
    search = looked(replace(search, folder=link, rows=(old,)))
    assert [(row.path, row.verdict) for row in search.rows] == [(str(search.real_folder / "step_20.pt"), "struck")]


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


def test_where_each_fiftieth_step_is_told_the_last_sound_one_is_the_limit(search: CheckpointSearch) -> None:
    """The loss goes wrong between the steps 50 and 100, of which step 100 is the first to tell it."""
    search = replace(search, attempts=(span(1, 0.0, 210.0, last=200),))
    lines(search, 1, (50, 50.0, 1.0), (100, 100.0, NAN), (150, 150.0, NAN), (200, 200.0, NAN))
    for step in (40, 50, 60, 90, 110):
        save(search.folder / f"step_{step}.pt", step + 0.5)
        save(search.folder / f"e{step}.pt", step + 0.6)
    assert after_nan(search, 1, 100) == ["step_50.pt", "e40.pt", "step_40.pt"]


def test_the_last_sound_step_may_be_of_the_attempt_before(search: CheckpointSearch) -> None:
    first, base = save(search.folder / "step_50.pt", 50.5), save(search.folder / "step_80.pt", 80.5)
    search = replace(search, attempts=(span(1, 0.0, 90.0, last=50), span(2, 100.0, 200.0, base, last=100)))
    lines(search, 1, (50, 50.0, 1.0))
    lines(search, 2, (100, 120.0, NAN))
    assert after_nan(search, 2, 100) == [first.name]
    # A course of its own, of which nothing was sound.
    search = replace(search, attempts=(*search.attempts, span(3, 300.0, 400.0, last=50)))
    lines(search, 3, (50, 350.0, NAN))
    save(search.folder / "step_20.pt", 320.0)
    assert after_nan(search, 3, 50) == []


def test_a_resumed_attempt_that_counts_its_steps_anew_leaves_the_earlier_checkpoints(search: CheckpointSearch) -> None:
    """Steps within an epoch, or counted from 1 after each start: step 10 of the second attempt is later than 80."""
    saved = [save(search.folder / f"model_{epoch}.pt", epoch * 20 + 0.5) for epoch in (1, 2, 3, 4)]
    search = replace(search, attempts=(span(1, 0.0, 90.0, last=90),))
    lines(search, 1, *((step, float(step), 1.0) for step in range(1, 91)))
    search = following(search, looked(search).rows, saved[-1], last=15)
    lines(search, 2, *((step, 400.0 + step, 1.0 if step < 10 else NAN) for step in range(1, 16)))
    save(search.folder / "model_5.pt", 412.5)
    assert after_nan(search, 2, 10) == [path.name for path in reversed(saved)]


def test_trouble_in_the_first_line_of_steps_counted_anew_is_not_before_the_earlier_checkpoints(
    search: CheckpointSearch,
) -> None:
    saved = [save(search.folder / f"model_{epoch}.pt", epoch * 20 + 0.5) for epoch in (1, 2, 3, 4)]
    search = replace(search, attempts=(span(1, 0.0, 90.0, last=90),))
    lines(search, 1, *((step, float(step), 1.0) for step in range(1, 91)))
    search = following(search, looked(search).rows, saved[-1], last=5)
    lines(search, 2, *((step, 400.0 + step, NAN) for step in range(1, 6)))
    assert after_nan(search, 2, 1) == [path.name for path in reversed(saved)]


def test_lines_that_arrive_in_blocks_leave_a_range_of_steps(search: CheckpointSearch) -> None:
    """A line each second, of which fifty at once reach the file; the loss goes wrong at step 75."""
    search = replace(search, attempts=(span(1, 0.0, 130.0, last=100),))
    told = [(step, 50.0 if step <= 50 else 100.0, NAN if step >= 75 else 1.0) for step in range(1, 101)]
    lines(search, 1, *told, is_timed=False)
    for epoch in (1, 4, 6, 7, 9, 10):
        save(search.folder / f"epoch_{epoch}.pt", epoch * 10 + 0.5)
    # Those of the second block may be of any of its steps.
    assert after_nan(search, 1, 75) == ["epoch_4.pt", "epoch_1.pt"]
    save(search.folder / "step_70.pt", 70.6)
    save(search.folder / "step_90.pt", 90.6)
    with zipfile.ZipFile(search.folder / "inside.pt", "w") as file:
        file.writestr("x/data.pkl", pickle.dumps({"global_step": 72}))
    os.utime(search.folder / "inside.pt", (NOW + 72.0, NOW + 72.0))
    assert after_nan(search, 1, 75) == ["inside.pt", "step_70.pt", "epoch_4.pt", "epoch_1.pt"]


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
    # The next attempt ends between the same two files; that of rank 1 is older.
    save(search.folder / "step_20_rank1.pt", 20.5, "c")
    search = looked(search)
    search = following(search, search.rows, search.folder / "step_10_rank1.pt")
    save(search.folder / "step_20_rank0.pt", 420.0, "a")
    assert names_of(chosen(looked(search))) == ["step_10_rank1.pt"]
    save(search.folder / "step_20_rank1.pt", 420.5, "b")
    assert names_of(chosen(looked(search))) == ["step_20_rank1.pt"]


def test_a_rank_that_is_none_of_several_lacks_no_other(search: CheckpointSearch) -> None:
    search = with_files(search, ("lora_rank8_step_10.pt", 10.0), ("lora_rank16_step_20.pt", 20.0))
    assert names_of(chosen(search)) == ["lora_rank16_step_20.pt"]


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


def test_ranks_that_wrote_over_their_files_at_one_step_leave_one_checkpoint(search: CheckpointSearch) -> None:
    search = with_files(over_forty_steps(search), ("rank0.pt", 40.0), ("rank1.pt", 40.7))
    assert names_of(chosen(search)) == ["rank1.pt"]
    search = replace(search, rows=for_person(search, search.folder / "rank0.pt").rows)
    assert {row.name: row.verdict for row in search.rows} == {"rank0.pt": "valid", "rank1.pt": "unexamined"}
    search = following(search, search.rows, search.folder / "rank0.pt")
    save(search.folder / "rank1.pt", 460.0, "d")
    choice = chosen(looked(search))
    assert choice.usable == () and choice.doubted is not None
    assert "rank1.pt lies beside rank0.pt of attempt 1" in choice.doubted


def test_what_is_struck_off_takes_the_other_ranks_files_along(search: CheckpointSearch) -> None:
    search = with_files(search, ("rank0.pt", 20.0), ("rank1.pt", 20.7))
    rows = tuple(replace(row, verdict="struck", why="was bad") if row.ranks == ("1",) else row for row in search.rows)
    assert choose(rows, search.attempts, 9).usable == ()
    whys = {row.name: why for row, why in ledger.refused(rows, search.attempts)}
    assert whys == {"rank1.pt": "was bad", "rank0.pt": "belongs to rank1.pt, which was bad"}
