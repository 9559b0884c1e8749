"""Which checkpoint a run starts from, which ones stay, and that the last valid one always does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.texts import mentions
from tests.trainer.checkpoint_files import flip_a_byte, is_valid, listing, pretend, save, unfinished, write
from trainer import checkpoints
from trainer.checkpoints import files, rotation
from trainer.errors import CheckpointError


def steps(directory: Path) -> list[int | None]:
    return [rotation.step_of(path) for path in checkpoints.existing(directory)]


def test_auto_takes_the_newest_that_is_whole_and_says_what_it_passed_over(folder: Path) -> None:
    paths = [save(folder, step) for step in (10, 20, 30)]
    assert checkpoints.choose("auto", folder) == checkpoints.ResumeChoice(paths[2], [])
    flip_a_byte(paths[2])
    choice = checkpoints.choose("auto", folder)
    assert choice.path == paths[1]
    assert len(choice.rejected) == 1 and mentions(choice.rejected[0], paths[2], "sha256")
    for path in paths[:2]:
        flip_a_byte(path)
    assert checkpoints.choose("auto", folder).path is None
    assert len(checkpoints.choose("auto", folder).rejected) == 3


def test_auto_and_none_without_checkpoints(folder: Path) -> None:
    assert checkpoints.choose("auto", folder / "missing") == checkpoints.ResumeChoice(None, [])
    save(folder, 10)
    assert checkpoints.choose("none", folder) == checkpoints.choose("", folder) == checkpoints.ResumeChoice(None, [])


def test_a_path_is_taken_or_refused(folder: Path) -> None:
    path = save(folder, 10)
    save(folder, 20)
    assert checkpoints.choose(str(path), folder).path == path
    flip_a_byte(path)
    with pytest.raises(CheckpointError, match="is corrupt: sha256 mismatch"):
        checkpoints.choose(str(path), folder)
    with pytest.raises(CheckpointError, match=r"nowhere\.pt cannot be used: .* is missing"):
        checkpoints.choose(str(folder / "nowhere.pt"), folder)


def test_the_last_valid_one_outlives_newer_corrupt_ones(folder: Path) -> None:
    paths = [save(folder, step) for step in (10, 20, 30)]
    flip_a_byte(paths[1])
    flip_a_byte(paths[2])
    rotation.prune(folder, 2)
    assert checkpoints.choose("auto", folder).path == paths[0]
    save(folder, 40)
    rotation.prune(folder, 2)
    assert steps(folder) == [40, 30]


def test_a_branch_that_is_left_is_set_aside_until_the_new_one_has_passed_it(folder: Path) -> None:
    for step in (10, 20, 30):
        save(folder, step)
    (folder / ".step_00000040.pt.tmp").write_text("half a checkpoint")
    moved = rotation.begin_branch(folder, 10)
    assert sorted(path.name for path in moved) == ["step_00000020.pt.stale", "step_00000030.pt.stale"]
    assert steps(folder) == [10]
    assert not (folder / ".step_00000040.pt.tmp").exists()
    save(folder, 20)
    rotation.prune(folder, 3)
    assert [name for name in listing(folder) if "stale" in name] == [
        "step_00000030.pt.sha256.stale",
        "step_00000030.pt.stale",
    ]
    save(folder, 30)
    rotation.prune(folder, 3)
    assert [name for name in listing(folder) if "stale" in name] == []


def test_shards_go_where_their_checkpoint_goes(folder: Path) -> None:
    for step in (10, 20, 30):
        path = pretend(files.step_file(folder, step))
        pretend(files.shards_folder(path) / files.shard_name(step, 0, 1))
    for _ in range(2):  # the second time it replaces what was set aside before
        rotation.begin_branch(folder, 20)
        path = pretend(files.step_file(folder, 30))
        pretend(files.shards_folder(path) / files.shard_name(30, 0, 1))
        rotation.begin_branch(folder, 20)
    assert sorted(path.name for path in folder.glob("*.shards*")) == [
        "step_00000010.shards",
        "step_00000020.shards",
        "step_00000030.shards.stale",
    ]
    pretend(files.step_file(folder, 40))
    rotation.prune(folder, 2)
    assert [path.name for path in folder.glob("*.shards*")] == ["step_00000020.shards"]


def test_what_a_killed_predecessor_left_is_removed_and_nothing_else(folder: Path) -> None:
    whole = pretend(files.step_file(folder, 10))
    pretend(files.shards_folder(whole) / files.shard_name(10, 0, 1))
    mine = [
        folder / "notes.tmp",
        folder / ".hidden.tmp",
        folder / "my.shards" / "a.pt",
        folder / "phase_x" / "plot.png",
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("a person's own")
    before = listing(folder)
    half = files.step_file(folder, 11)
    for path in (
        unfinished(half),
        unfinished(files.hash_file(half)),
        files.shards_folder(half) / files.shard_name(11, 0, 2),
        unfinished(files.shards_folder(whole) / files.shard_name(10, 1, 2)),
        unfinished(files.epoch_file(folder, "x", 3)),
        unfinished(folder / "best_model.json"),
        files.hash_file(files.step_file(folder, 12)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    assert rotation.begin_branch(folder, 10) == []
    assert listing(folder) == before
    assert not files.shards_folder(half).exists()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("prune"), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("branch"), st.integers(0, 9), st.booleans()),
    ),
    max_size=25,
)


@given(OPERATIONS)
def test_whatever_happens_the_newest_valid_one_stays_and_not_too_many_do(
    operations: list[tuple[str, int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for operation, number, flag in operations:
            before = checkpoints.choose("auto", folder).path
            if operation == "save":
                pretend(files.step_file(folder, number), valid=flag)
                continue
            if operation == "branch":
                reachable = [path for path in checkpoints.existing(folder) if (rotation.step_of(path) or 0) <= number]
                moved = rotation.begin_branch(folder, number)
                assert checkpoints.existing(folder) == reachable
                assert all(path.exists() for path in moved)
                continue
            known = before if flag else None
            all_before = checkpoints.existing(folder)
            rotation.prune(folder, number, known_valid=known)
            left = checkpoints.existing(folder)
            assert checkpoints.choose("auto", folder).path == before
            assert left[:number] == all_before[:number]
            if any(is_valid(path) for path in all_before[:number]):
                assert len(left) <= number
            else:
                assert left == all_before
            after_once = listing(folder)
            rotation.prune(folder, number)
            assert listing(folder) == after_once


def test_the_value_to_beat_is_that_of_the_best_valid_one(folder: Path) -> None:
    path = files.best_file(folder)
    assert rotation.best_value(folder, "val/loss") is None
    write({"format": 2, "step": 10, "metrics": {"loss": 0.5, "val/loss": 0.25}}, path)
    assert rotation.best_value(folder, "val/loss") == 0.25
    assert rotation.best_value(folder, "val/accuracy") is None
    flip_a_byte(path)
    assert rotation.best_value(folder, "val/loss") is None
