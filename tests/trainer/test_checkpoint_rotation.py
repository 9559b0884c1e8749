"""The checkpoint a run starts from, and those that stay: the last valid one always does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.texts import mentions
from tests.trainer.checkpoint_files import flip_a_byte, is_valid, listing, pretend, write
from trainer import checkpoints
from trainer.checkpoints import ResumeChoice, files, rotation
from trainer.errors import CheckpointError


def test_auto_takes_the_newest_that_is_whole_and_a_path_is_taken_or_refused(folder: Path) -> None:
    assert checkpoints.choose("auto", folder / "missing") == ResumeChoice(None, [])
    paths = [pretend(files.step_file(folder, step)) for step in (10, 20, 30)]
    assert checkpoints.choose("auto", folder) == ResumeChoice(paths[2], [])
    assert checkpoints.choose("none", folder) == checkpoints.choose("", folder) == ResumeChoice(None, [])
    flip_a_byte(paths[2])
    choice = checkpoints.choose("auto", folder)
    assert choice.path == paths[1]
    assert len(choice.rejected) == 1
    assert mentions(choice.rejected[0], paths[2], "sha256")
    assert checkpoints.choose(str(paths[0]), folder).path == paths[0]
    for wrong, why in ((paths[2], "is corrupt: sha256 mismatch"), (folder / "no.pt", "is missing"), (".", "cannot be")):
        with pytest.raises(CheckpointError, match=why):
            checkpoints.choose(str(wrong), folder)
    for path in paths[:2]:
        flip_a_byte(path)
    assert checkpoints.choose("auto", folder).path is None
    assert len(checkpoints.choose("auto", folder).rejected) == 3


def test_a_branch_that_is_left_is_set_aside_until_the_new_one_has_passed_it(folder: Path) -> None:
    def save(step: int) -> None:
        path = pretend(files.step_file(folder, step))
        pretend(files.shards_folder(path) / files.shard_name(step, 0, 1))

    for step in (10, 20, 30):
        save(step)
    write({"format": files.FORMAT, "step": 20}, files.best_file(folder))
    for _ in range(2):  # the second time it replaces what was set aside before
        moved = rotation.begin_branch(folder, 10)
        assert {path.name for path in moved} >= {"step_00000020.pt.stale", "step_00000030.pt.stale"}
        assert [rotation.step_of(path) for path in checkpoints.existing(folder)] == [10]
        save(20)
        save(30)
    assert (folder / "best_model.pt.stale").exists()
    assert not (folder / "best_model.pt").exists()
    rotation.begin_branch(folder, 20)
    rotation.prune(folder, 3)
    assert {path.name for path in folder.glob("step*stale")} == {
        "step_00000030.pt.stale",
        "step_00000030.pt.sha256.stale",
        "step_00000030.shards.stale",
    }
    save(30)
    rotation.prune(folder, 2)
    assert not list(folder.glob("step*stale"))
    assert sorted(path.name for path in folder.glob("*.shards")) == ["step_00000020.shards", "step_00000030.shards"]


def test_what_a_killed_predecessor_left_is_removed_and_nothing_else(folder: Path) -> None:
    whole = pretend(files.step_file(folder, 10))
    pretend(files.shards_folder(whole) / files.shard_name(10, 0, 1))
    for name in ("notes.tmp", ".hidden.tmp", "step_00000001.tmp", "my.shards/a.pt", "phase_x/plot.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a person's own")
    before = listing(folder)
    for name in (
        ".step_00000011.pt.tmp",
        ".step_00000011.pt.sha256.tmp",
        "step_00000011.shards/step_00000011_rank_0_of_2.pt",
        "step_00000010.shards/.step_00000010_rank_1_of_2.pt.tmp",
        "phase_x/.epoch_3.pt.tmp",
        ".best_model.json.tmp",
        "step_00000012.pt.sha256",
        ".state_rank_0.tmp",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("half")
    assert rotation.begin_branch(folder, 10) == []
    assert listing(folder) == before
    assert not (folder / "step_00000011.shards").exists()


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
            all_before = checkpoints.existing(folder)
            if operation == "branch":
                source = folder.parent / "elsewhere" if flag else folder / "phase_main"
                moved = rotation.begin_branch(folder, number, files.step_file(source.resolve(), number))
                reachable = [path for path in all_before if (rotation.step_of(path) or 0) <= number - flag]
                assert checkpoints.existing(folder) == reachable
                assert all(path.exists() for path in moved)
                continue
            known_valid = before if flag else None
            rotation.prune(folder, number, known_valid=known_valid)
            paths = checkpoints.existing(folder)
            assert checkpoints.choose("auto", folder).path == before
            assert paths[:number] == all_before[:number]
            if any(is_valid(path) for path in all_before[:number]):
                assert len(paths) <= number
            else:
                assert paths == all_before
            after_once = listing(folder)
            rotation.prune(folder, number)
            assert listing(folder) == after_once


def test_the_value_to_beat_is_that_of_the_best_valid_one(folder: Path) -> None:
    path = files.best_file(folder)
    assert rotation.best_value(folder, "val/loss") is None
    write({"format": files.FORMAT, "step": 10, "metrics": {"loss": 0.5, "val/loss": 0.25}}, path)
    assert rotation.best_value(folder, "val/loss") == 0.25
    assert rotation.best_value(folder, "val/accuracy") is None
    flip_a_byte(path)
    assert rotation.best_value(folder, "val/loss") is None
