"""Checkpoints: whole or refused, and never the last good one lost."""

from __future__ import annotations

import errno
import resource
import subprocess
from pathlib import Path

import pytest
import torch

from tests.trainer.running import flip_a_byte
from trainer import checkpoint
from trainer.errors import CheckpointError

CPU = torch.device("cpu")


def save(directory: Path, step: int, **values: object) -> Path:
    path = checkpoint.path_for(directory, step)
    checkpoint.save({"format": checkpoint.FORMAT, "step": step, **values}, path)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_round_trip_with_a_hash_that_sha256sum_understands(folder: Path) -> None:
    path = save(folder, 40, weights=torch.arange(1000))
    assert names(folder) == ["step_00000040.pt", "step_00000040.pt.sha256"]
    subprocess.run(["sha256sum", "--check", "--strict", "step_00000040.pt.sha256"], cwd=folder, check=True)
    checkpoint.verify(path)
    assert torch.equal(checkpoint.load(path)["weights"], torch.arange(1000))


def test_the_size_is_that_of_the_file(folder: Path) -> None:
    path = folder / "step_00000001.pt"
    assert checkpoint.save({"format": 1, "weights": torch.zeros(5000)}, path) == path.stat().st_size


def test_every_flipped_byte_is_noticed(folder: Path) -> None:
    path = save(folder, 1, weights=torch.arange(100))
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match=r"^checkpoint .*step_00000001\.pt is corrupt: sha256 mismatch$"):
            checkpoint.verify(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="sha256 mismatch"):
        checkpoint.verify(path)


def test_without_its_hash_a_file_is_not_trusted(folder: Path) -> None:
    path = save(folder, 1)
    (folder / "step_00000001.pt.sha256").unlink()
    with pytest.raises(CheckpointError, match=r"cannot be used: .*\.sha256 is missing"):
        checkpoint.verify(path)
    with pytest.raises(CheckpointError, match=r"cannot be used: .*step_00000002\.pt.* is missing"):
        checkpoint.verify(folder / "step_00000002.pt")


def test_a_checkpoint_cannot_run_code(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (folder / "ran",))

    path = folder / "step_00000001.pt"
    checkpoint.save({"format": 1, "evil": Evil()}, path)
    checkpoint.verify(path)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        checkpoint.load(path)
    assert not (folder / "ran").exists()


def test_something_else_is_no_checkpoint(folder: Path) -> None:
    path = folder / "step_00000001.pt"
    checkpoint.save({"weights": 1}, path)
    with pytest.raises(CheckpointError, match="was not written by this trainer"):
        checkpoint.load(path)


def test_auto_takes_the_newest_that_is_whole_and_says_what_it_passed_over(folder: Path) -> None:
    paths = [save(folder, step) for step in (10, 20, 30)]
    assert checkpoint.choose("auto", folder) == checkpoint.Choice(paths[2], [])
    flip_a_byte(paths[2])
    choice = checkpoint.choose("auto", folder)
    assert choice.path == paths[1]
    assert choice.rejected == [f"checkpoint {paths[2]} is corrupt: sha256 mismatch"]
    for path in paths[:2]:
        flip_a_byte(path)
    assert checkpoint.choose("auto", folder).path is None
    assert len(checkpoint.choose("auto", folder).rejected) == 3


def test_auto_and_none_without_checkpoints(folder: Path) -> None:
    assert checkpoint.choose("auto", folder / "missing") == checkpoint.Choice(None, [])
    save(folder, 10)
    assert checkpoint.choose("none", folder) == checkpoint.Choice(None, [])


def test_a_path_is_taken_or_refused(folder: Path) -> None:
    path = save(folder, 10)
    save(folder, 20)
    assert checkpoint.choose(str(path), folder).path == path
    flip_a_byte(path)
    with pytest.raises(CheckpointError, match="is corrupt: sha256 mismatch"):
        checkpoint.choose(str(path), folder)


def test_the_newest_are_kept(folder: Path) -> None:
    for step in (10, 20, 30, 100_000_000):
        save(folder, step)
    checkpoint.prune(folder, 2)
    assert [checkpoint.step_of(path) for path in checkpoint.existing(folder)] == [100_000_000, 30]
    assert len(names(folder)) == 4


def test_the_last_valid_one_outlives_newer_corrupt_ones(folder: Path) -> None:
    paths = [save(folder, step) for step in (10, 20, 30)]
    flip_a_byte(paths[1])
    flip_a_byte(paths[2])
    checkpoint.prune(folder, 2)
    assert checkpoint.choose("auto", folder).path == paths[0]
    save(folder, 40)
    checkpoint.prune(folder, 2)
    assert [checkpoint.step_of(path) for path in checkpoint.existing(folder)] == [40, 30]


def test_a_branch_that_is_left_is_set_aside_until_the_new_one_has_passed_it(folder: Path) -> None:
    for step in (10, 20, 30):
        save(folder, step)
    (folder / ".step_00000040.pt.tmp").write_text("half a checkpoint")
    moved = checkpoint.begin_branch(folder, 10)
    assert sorted(path.name for path in moved) == ["step_00000020.pt.stale", "step_00000030.pt.stale"]
    assert [checkpoint.step_of(path) for path in checkpoint.existing(folder)] == [10]
    assert not (folder / ".step_00000040.pt.tmp").exists()
    save(folder, 20)
    checkpoint.prune(folder, 3)
    assert [name for name in names(folder) if "stale" in name] == [
        "step_00000030.pt.sha256.stale",
        "step_00000030.pt.stale",
    ]
    save(folder, 30)
    checkpoint.prune(folder, 3)
    assert [name for name in names(folder) if "stale" in name] == []


def test_a_write_that_fails_half_way_leaves_everything_as_it_was(folder: Path) -> None:
    save(folder, 10)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            save(folder, 20, weights=torch.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_random_state_round_trip() -> None:
    state = checkpoint.random_state(CPU)
    first = torch.rand(3)
    checkpoint.restore_random_state(state, CPU)
    assert torch.equal(torch.rand(3), first)
