"""A checkpoint's file: whole or refused, and never the last good one lost."""

from __future__ import annotations

import errno
import gzip
import os
import random
import resource
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import wait_until
from tests.trainer.checkpoint_files import (
    contents,
    end_after,
    flip_a_byte,
    in_a_child,
    listing,
    resident_anonymous_bytes,
    save,
)
from trainer import checkpoints
from trainer.checkpoints import files, hashes, names, streams
from trainer.config import Settings
from trainer.errors import CheckpointError

CPU = torch.device("cpu")


@pytest.mark.parametrize("compressed", [False, True])
def test_round_trip_with_a_hash_that_sha256sum_understands(folder: Path, compressed: bool) -> None:
    path = save(folder, 40, gzip=compressed, weights=torch.arange(1000), plain=[1, "two", (3.0, None)])
    name = "step_00000040.pt.gz" if compressed else "step_00000040.pt"
    assert listing(folder) == [name, f"{name}.sha256"]
    subprocess.run(["sha256sum", "--check", "--strict", f"{name}.sha256"], cwd=folder, check=True)
    hashes.verify(path)
    state = checkpoints.load(path)
    assert torch.equal(state["weights"], torch.arange(1000))
    assert state["plain"] == [1, "two", (3.0, None)]


def test_a_compressed_checkpoint_is_gzip_and_smaller_and_always_the_same(folder: Path) -> None:
    weights = torch.zeros(100_000)
    plain, packed = save(folder, 1, weights=weights), save(folder, 2, gzip=True, weights=weights)
    assert packed.stat().st_size < plain.stat().st_size / 20
    with gzip.open(packed) as file:
        assert file.read(2) == b"PK"
    before = packed.read_bytes()
    save(folder, 2, gzip=True, weights=weights)
    assert packed.read_bytes() == before


@pytest.mark.parametrize("compressed", [False, True])
def test_loaded_tensors_are_mapped_not_copied(folder: Path, compressed: bool) -> None:
    """They can be changed without changing the checkpoint, and outlive it."""
    path = save(folder, 1, gzip=compressed, weights=torch.ones(4_000_000), more=torch.ones(4_000_000))
    before = resident_anonymous_bytes()
    state = checkpoints.load(path)
    assert resident_anonymous_bytes() - before < 8_000_000
    path.unlink()
    state["weights"].mul_(2)
    assert state["weights"].sum() == 8_000_000 and state["more"].sum() == 4_000_000


def test_the_size_is_that_of_the_file(folder: Path) -> None:
    for compressed in (False, True):
        path = names.step_file(folder, 1, gzip=compressed)
        assert files.save({"format": 2, "weights": torch.zeros(5000)}, path) == path.stat().st_size


def test_every_flipped_byte_is_noticed(folder: Path) -> None:
    path = save(folder, 1, weights=torch.arange(100))
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 50)):
        flip_a_byte(path, position)
        with pytest.raises(CheckpointError, match=r"^checkpoint .*step_00000001\.pt is corrupt: sha256 mismatch$"):
            hashes.verify(path)
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="sha256 mismatch"):
        hashes.verify(path)


def test_a_flipped_byte_in_the_hash_is_noticed(folder: Path) -> None:
    path = save(folder, 1)
    beside = names.hash_file(path)
    whole = beside.read_bytes()
    for position in range(66):
        flip_a_byte(beside, position)
        with pytest.raises(CheckpointError, match=r"sha256 mismatch|sha256 is damaged"):
            hashes.verify(path)
        beside.write_bytes(whole)
    for damaged in (b"", b"\n", b"\xff\xfe", whole + b"half a li"):
        beside.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"is damaged|cannot be read"):
            hashes.verify(path)


def test_without_its_hash_a_file_is_not_trusted(folder: Path) -> None:
    path = save(folder, 1)
    (folder / "step_00000001.pt.sha256").unlink()
    with pytest.raises(CheckpointError, match=r"cannot be used: .*\.sha256 is missing"):
        hashes.verify(path)
    with pytest.raises(CheckpointError, match=r"step_00000002\.pt cannot be used: the file is missing"):
        hashes.verify(folder / "step_00000002.pt")
    path.with_name("step_00000003.pt.sha256").write_text("0" * 64 + "  step_00000003.pt\n")
    with pytest.raises(CheckpointError, match=r"cannot be used: .*step_00000003\.pt is missing"):
        hashes.verify(folder / "step_00000003.pt")
    (folder / "step_00000003.pt").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: "):
        hashes.verify(folder / "step_00000003.pt")


def test_a_renamed_checkpoint_is_still_one(folder: Path) -> None:
    path = save(folder, 1)
    path.rename(folder / "kept.pt")
    names.hash_file(path).rename(folder / "kept.pt.sha256")
    hashes.verify(folder / "kept.pt")
    assert checkpoints.choose(str(folder / "kept.pt"), folder).path == folder / "kept.pt"


def test_one_renamed_while_it_was_being_replaced_is_still_one(folder: Path) -> None:
    path = save(folder, 1)
    entries = hashes.read(path)
    hashes.write(path, [hashes.HashEntry(path.name, "0" * 64), *entries])
    path.rename(folder / "kept.pt")
    names.hash_file(path).rename(folder / "kept.pt.sha256")
    hashes.verify(folder / "kept.pt")
    assert [entry.name for entry in hashes.read(folder / "kept.pt")] == ["kept.pt", "kept.pt"]


def test_a_hash_file_of_sha256sum_in_binary_mode_is_understood(folder: Path) -> None:
    path = save(folder, 1)
    with names.hash_file(path).open("wb") as file:
        subprocess.run(["sha256sum", "--binary", path.name], cwd=folder, check=True, stdout=file)
    assert b" *step_00000001.pt" in names.hash_file(path).read_bytes()
    hashes.verify(path)


@pytest.mark.parametrize("place", [".", "/", ""])
def test_a_path_without_a_name_is_no_checkpoint(place: str) -> None:
    with pytest.raises(CheckpointError, match=r"^checkpoint [./] cannot be used: that is no file$"):
        hashes.verify(Path(place))


def test_a_checkpoint_cannot_run_code(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (folder / "ran",))

    for compressed in (False, True):
        path = names.step_file(folder, 1, gzip=compressed)
        files.save({"format": 2, "evil": Evil()}, path)
        hashes.verify(path)
        with pytest.raises(CheckpointError, match="cannot be loaded") as raised:
            checkpoints.load(path)
        assert "\n" not in str(raised.value)
        assert not (folder / "ran").exists()


def test_something_else_is_no_checkpoint(folder: Path) -> None:
    path = folder / "step_00000001.pt"
    for content in ({"weights": 1}, [1, 2], {"format": "new"}):
        files.save(content, path)
        with pytest.raises(CheckpointError, match="was not written by this trainer"):
            checkpoints.load(path)
    for content in (b"", b"no archive", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"^checkpoint .*step_00000001.pt cannot be loaded: .+$"):
            checkpoints.load(path)


def test_one_of_an_older_trainer_says_so(folder: Path) -> None:
    path = folder / "step_00000001.pt"
    files.save({"format": 1, "step": 1}, path)
    with pytest.raises(CheckpointError) as raised:
        checkpoints.load(path)
    assert str(raised.value) == (
        f"checkpoint {path} has format 1 and this trainer reads format 2: finish that run with the trainer that began"
        " it, or start over with --resume none"
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_a_write_that_fails_half_way_leaves_everything_as_it_was(folder: Path, compressed: bool) -> None:
    save(folder, 10)
    before = contents(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            save(folder, 20, gzip=compressed, weights=torch.randn(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert contents(folder) == before


def test_a_hash_that_cannot_be_written_leaves_everything_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(folder, 10, weights=torch.zeros(10))
    before = contents(folder)
    staged = files.stage({"format": 2, "step": 11}, path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        files.publish(staged, path)
    assert contents(folder) == before


def test_the_hash_is_durable_before_the_file_gets_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "best_model.pt"
    files.save({"a": 1}, path)
    log: list[str] = []
    sync_folder, replace = files.sync_folder, Path.replace
    monkeypatch.setattr(files, "sync_folder", lambda place: (log.append("folder"), sync_folder(place)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (log.append(Path(to).name), replace(self, to))[1])
    files.save({"a": 2}, path)
    # Both hashes, the file, its own hash alone; each on disk before the next.
    assert log == ["best_model.pt.sha256", "folder", "best_model.pt", "folder", "best_model.pt.sha256", "folder"]


def test_what_cannot_be_saved_is_an_error_and_leaves_nothing(folder: Path) -> None:
    with pytest.raises(Exception, match=r"pickle|local object"):
        save(folder, 10, function=lambda: None)
    assert listing(folder) == []


def test_a_further_name_costs_no_space_and_has_its_own_hash(folder: Path) -> None:
    path, other = folder / "step_00000001.pt", folder / "phase_main" / "epoch_1.pt"
    staged = files.stage({"format": 2, "weights": torch.zeros(100)}, path)
    files.publish(staged, path)
    files.publish_again(path, staged, other)
    assert path.stat().st_ino == other.stat().st_ino
    subprocess.run(["sha256sum", "--check", "--strict", "epoch_1.pt.sha256"], cwd=other.parent, check=True)
    path.unlink()
    hashes.verify(other)


def test_without_hard_links_there_are_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    path, other = folder / "step_00000001.pt", folder / "best_model.pt"
    staged = files.stage({"format": 2}, path)
    files.publish(staged, path)
    files.publish_again(path, staged, other)
    assert path.stat().st_ino != other.stat().st_ino
    hashes.verify(other)


def test_ended_anywhere_while_one_replaces_another_either_is_there(folder: Path) -> None:
    path = folder / "best_model.pt"
    codes = set()
    for operations in range(20):
        files.save({"format": 2, "step": 1}, path)

        def replace_it(operations: int = operations) -> None:
            end_after(operations)
            files.save({"format": 2, "step": 2}, path)

        codes.add(code := in_a_child(replace_it))
        hashes.verify(path)
        step = checkpoints.load(path)["step"]
        assert step in (1, 2) and (code == 9 or step == 2)
    assert codes == {9, 0}


def test_killed_at_any_moment_there_is_a_whole_checkpoint_or_none(folder: Path) -> None:
    """A process that saves without a pause is killed after times of all lengths; what it leaves is whole."""
    state = {"format": 2, "weights": torch.randn(200_000)}

    def save_for_ever() -> None:
        for step in range(1, 100_000):
            files.save(state, names.step_file(folder, step, gzip=step % 5 == 0))
            files.save(state, folder / "best_model.pt")

    chance = random.Random(7)
    for _ in range(6):
        child = os.fork()
        if child == 0:
            save_for_ever()
            os._exit(1)
        try:
            wait_until(lambda: checkpoints.existing(folder), what="a first checkpoint")
            time.sleep(chance.uniform(0.0, 0.1))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
        visible = checkpoints.existing(folder)
        assert visible
        for path in [*visible, *folder.glob("best_model.pt")]:
            hashes.verify(path)
        for path in visible:
            files.remove(path)


def test_random_state_round_trip(folder: Path) -> None:
    def draw() -> tuple[float, float, list[float]]:
        return random.random(), float(np.random.rand()), torch.rand(3).tolist()

    np.random.standard_normal()  # leaves half a pair of normal numbers behind
    files.save({"format": 2, "step": 1, "random": [checkpoints.random_state(CPU)]}, folder / "step_00000001.pt")
    first = draw(), np.random.standard_normal()
    checkpoints.restore_random_state(checkpoints.load(folder / "step_00000001.pt")["random"][0], CPU)
    assert (draw(), np.random.standard_normal()) == first


def test_what_does_not_fit_is_said_in_one_line_with_the_flag() -> None:
    made_with = Settings.model_validate({"task": "lm", "width": 64, "phases": [{"name": "a", "steps": 3}]})
    state = {"config": made_with.model_dump(mode="json")}
    path = Path("step_00000001.pt")
    other = Settings.model_validate({"task": "lm", "width": 64, "parallel": "fsdp", "batch_size": 99, "seed": 5})
    checkpoints.check_fits(state, other, path)
    with pytest.raises(CheckpointError) as raised:
        checkpoints.check_fits(state, Settings.model_validate({"task": "lm"}), path)
    assert str(raised.value) == (
        "checkpoint step_00000001.pt was made with --width 64, this run has 128; use the same value, or --resume none"
    )
    with pytest.raises(CheckpointError, match=r"--model-options \{\}, this run has \{'layers': 2\}"):
        checkpoints.check_fits(state, made_with.model_copy(update={"model_options": {"layers": 2}}), path)


def test_a_setting_that_did_not_exist_then_had_its_default() -> None:
    settings = Settings.model_validate({"task": "classify"})
    made_with = settings.model_dump(mode="json")
    del made_with["embedding_size"]
    checkpoints.check_fits({"config": made_with}, settings, Path("a.pt"))
    with pytest.raises(CheckpointError, match="--embedding-size 64, this run has 8"):
        checkpoints.check_fits({"config": made_with}, settings.model_copy(update={"embedding_size": 8}), Path("a.pt"))


def test_torch_writes_into_what_it_is_given_in_pieces_of_any_kind() -> None:
    class Short:
        """A disk that takes seven bytes at a time."""

        def __init__(self) -> None:
            self.content = b""

        def write(self, data: memoryview) -> int:
            self.content += bytes(data[:7])
            return len(data[:7])

    raw = Short()
    file = streams.HashingFile(raw)
    assert file.write(np.arange(5)) == 40
    assert raw.content == np.arange(5).tobytes() and file.bytes == 40
