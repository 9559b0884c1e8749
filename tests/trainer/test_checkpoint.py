"""A checkpoint's file: whole or refused, and never the last good one lost; copies of a state, and random states."""

from __future__ import annotations

import errno
import random
import resource
import subprocess
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gputui.runs.checkpoint_formats import validate
from tests.tables import table
from tests.texts import mentions
from tests.trainer.checkpoint_files import contents, flip_a_byte, listing, save, write
from trainer import checkpoints
from trainer.checkpoints import files, streams
from trainer.checkpoints.state import HostBuffers
from trainer.config import Settings
from trainer.config.schema import Compression
from trainer.errors import CheckpointError

CPU = torch.device("cpu")


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [tensor for part in parts for tensor in tensors_of(part)]
    return [value] if isinstance(value, Tensor) else []


def test_round_trip_with_a_hash_that_sha256sum_understands(folder: Path) -> None:
    path = save(folder, 40, weights=torch.arange(1000), plain=[1, "two", (3.0, None)])
    assert listing(folder) == ["step_00000040.pt", "step_00000040.pt.sha256"]
    subprocess.run(["sha256sum", "--check", "--strict", "step_00000040.pt.sha256"], cwd=folder, check=True)
    renamed = path.replace(folder / "mine.pt")
    files.hash_file(path).replace(files.hash_file(renamed))
    files.verify(renamed)
    state = checkpoints.load(renamed)
    assert torch.equal(state["weights"], torch.arange(1000))
    assert state["plain"] == [1, "two", (3.0, None)]


def test_every_flipped_byte_of_it_or_of_its_hash_is_noticed(folder: Path) -> None:
    path = save(folder, 1, weights=torch.arange(100))
    beside = files.hash_file(path)
    whole = path.read_bytes()
    hashes = beside.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 50)):
        flip_a_byte(path, position)
        with pytest.raises(CheckpointError, match="is corrupt: sha256 mismatch"):
            files.verify(path)
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="is corrupt: sha256 mismatch"):
        files.verify(path)
    path.write_bytes(whole)
    for position in range(66):
        flip_a_byte(beside, position)
        with pytest.raises(CheckpointError, match=r"sha256 mismatch|sha256 is damaged"):
            files.verify(path)
        beside.write_bytes(hashes)
    for damaged in (b"", b"\n", b"\xff\xfe", hashes + b"half a li"):
        beside.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"is damaged|cannot be read"):
            files.verify(path)


def test_without_its_hash_a_file_is_not_trusted(folder: Path) -> None:
    path = save(folder, 1)
    files.hash_file(path).unlink()
    with pytest.raises(CheckpointError, match=r"cannot be used: .*\.sha256 is missing"):
        files.verify(path)
    with pytest.raises(CheckpointError, match=r"cannot be used: .*step_00000002\.pt is missing"):
        files.verify(folder / "step_00000002.pt")
    path.with_name("step_00000003.pt.sha256").write_text("0" * 64 + "  step_00000003.pt\n")
    with pytest.raises(CheckpointError, match=r"cannot be used: .*step_00000003\.pt is missing"):
        files.verify(folder / "step_00000003.pt")
    (folder / "step_00000003.pt").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: "):
        files.verify(folder / "step_00000003.pt")


def test_a_checkpoint_cannot_run_code(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (folder / "ran",))

    path = save(folder, 1, evil=Evil())
    files.verify(path)
    with pytest.raises(CheckpointError, match="cannot be loaded") as raised:
        checkpoints.load(path)
    assert "\n" not in str(raised.value)
    assert not (folder / "ran").exists()


def test_something_else_is_no_checkpoint(folder: Path) -> None:
    path = folder / "step_00000001.pt"
    for content in ({"weights": 1}, [1, 2], {"format": "new"}, {"format": 1}):
        write(content, path)
        with pytest.raises(CheckpointError, match="was not written by this version"):
            checkpoints.load(path)
    for nonsense in (b"", b"no archive", b"PK\x03\x04"):
        path.write_bytes(nonsense)
        with pytest.raises(CheckpointError, match=r"^checkpoint .*step_00000001.pt cannot be loaded: .+$"):
            checkpoints.load(path)


@table("compression", ["zstd", "gzip"])
def test_a_compressed_file_is_smaller_and_read_or_refused_as_a_plain_one_also_by_gputui(
    compression: Compression, folder: Path
) -> None:
    torch.manual_seed(0)
    path = files.step_file(folder, 1)
    weights = torch.randn(700_000)  # more than a piece, and no whole number of them
    content = {"format": files.FORMAT, "step": 1, "weights": weights}
    files.make_folder(folder)
    sha256, size = streams.write(content, path, compression)
    files.publish(path, path, sha256, {})
    assert size == path.stat().st_size < 0.95 * weights.nbytes
    files.verify(path)
    assert torch.equal(checkpoints.load(path)["weights"], weights)
    assert listing(folder) == ["step_00000001.pt", "step_00000001.pt.sha256"], "nothing unpacked is left"
    info = validate(path)
    assert (info.valid, info.step, info.size_bytes) == (True, 1, size)
    whole = path.read_bytes()
    for damaged in (whole[: size // 2], whole[: size // 3] + b"?" + whole[size // 3 + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is corrupt: sha256 mismatch"):
            files.verify(path)
        assert not validate(path).valid
    path.write_bytes(whole[: size // 2])
    with pytest.raises(CheckpointError, match=r"^checkpoint .*step_00000001.pt cannot be loaded: .+$"):
        checkpoints.load(path)


@table("compression", get_args(Compression))
def test_a_write_that_fails_half_way_leaves_everything_as_it_was(compression: Compression, folder: Path) -> None:
    save(folder, 10)
    before = contents(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with (
            pytest.raises(OSError, match="File too large") as raised,
            files.unfinished(folder / "step_00000020.pt") as temporary,
        ):
            streams.write({"weights": torch.randn(100_000)}, temporary, compression)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert contents(folder) == before


def test_the_hash_is_durable_before_the_file_gets_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    sync_folder = files.sync_folder
    replace = Path.replace
    monkeypatch.setattr(files, "sync_folder", lambda place: (log.append("folder"), sync_folder(place)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (log.append(Path(to).name), replace(self, to))[1])
    save(folder, 10)
    first = ["step_00000010.pt.sha256", "folder", "step_00000010.pt", "folder"]
    assert log == first
    path = folder / "best_model.pt"
    write({"a": 1}, path)
    log.clear()
    write({"a": 2}, path)
    # The order of writing: both hashes, the file, the hash of the new file alone; each is on disk before the next.
    assert log == ["best_model.pt.sha256", "folder", "best_model.pt", "folder", "best_model.pt.sha256", "folder"]


def test_random_state_round_trip(folder: Path) -> None:
    def draw() -> tuple[float, float, list[float]]:
        return random.random(), float(np.random.rand()), torch.rand(3).tolist()

    np.random.standard_normal()  # numpy draws normal numbers in pairs and keeps the second in its state
    path = save(folder, 1, random=[checkpoints.random_state(CPU)])
    first = draw(), np.random.standard_normal()
    checkpoints.restore_random_state(checkpoints.load(path)["random"][0], CPU)
    assert (draw(), np.random.standard_normal()) == first


def test_what_does_not_fit_is_said_in_one_line_with_the_flag() -> None:
    made_with = Settings.model_validate({"task": "lm", "width": 64, "phases": [{"name": "a", "steps": 3}]})
    state = {"config": made_with.model_dump(mode="json")}
    path = Path("step_00000001.pt")
    changed = Settings.model_validate({"task": "lm", "width": 64, "parallel": "fsdp", "batch_size": 99, "seed": 5})
    checkpoints.check_fits(state, changed, path)
    with pytest.raises(CheckpointError) as raised:
        checkpoints.check_fits(state, Settings.model_validate({"task": "lm"}), path)
    assert mentions(str(raised.value), "step_00000001.pt", "--width 64", "128", "--resume none")
    with pytest.raises(CheckpointError, match=r"--model-options \{\}, this run has \{'layers': 2\}"):
        checkpoints.check_fits(state, made_with.model_copy(update={"model_options": {"layers": 2}}), path)


def test_a_checkpoint_from_before_a_setting_came_fits_its_default() -> None:
    settings = Settings.model_validate({"task": "lm"})
    older = settings.model_dump(mode="json")
    del older["lora"], older["train_only"], older["epochs"]
    checkpoints.check_fits({"config": older}, settings, Path("step_00000001.pt"))
    with pytest.raises(CheckpointError, match="--train-only"):
        changed = settings.model_copy(update={"train_only": "head"})
        checkpoints.check_fits({"config": older}, changed, Path("step_00000001.pt"))


@table("copy", [False, True])
def test_a_copy_has_the_same_values_and_shares_memory_where_equal_tensors_do(copy: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    tied = torch.randn(3, 4)
    state = {
        "model": model.state_dict(keep_vars=True),
        "tied": (tied, tied),
        "part": [torch.randn(500)[:20], torch.randn(6, 5).T],
        "random": [{"python": (3, (1, 2), None)}],
        "step": 7,
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
    }
    live = tensors_of(state)
    expected = [tensor.detach().clone() for tensor in live]
    snapshot = HostBuffers().take(state, copy=copy)
    if copy:  # training overwrites the state while the copy is being written
        with torch.no_grad():
            for tensor in live:
                tensor.zero_()
        state["random"] = []
    tensors = tensors_of(snapshot)
    for copied, original in zip(tensors, expected, strict=True):
        assert copied.dtype == original.dtype
        assert torch.equal(copied, original)
        assert not copied.requires_grad
        assert copied.untyped_storage().nbytes() == copied.nbytes
    assert (snapshot["random"], snapshot["step"]) == ([{"python": (3, (1, 2), None)}], 7)
    assert snapshot["tied"][0].data_ptr() == snapshot["tied"][1].data_ptr()
    assert snapshot["model"]["0.weight"].stride() == state["model"]["0.weight"].stride()


def test_the_memory_is_used_again() -> None:
    buffers = HostBuffers()
    state = {"a": torch.ones(100), "b": torch.ones(50)}
    first = buffers.take(state, copy=True)["a"].data_ptr()
    state["a"].fill_(2)
    again = buffers.take(state, copy=True)
    assert again["a"].data_ptr() == first
    assert again["a"].sum() == 200
    second = buffers.take({"a": torch.full((30,), 3.0), "b": torch.ones(50)}, copy=True)
    assert second["a"].untyped_storage().nbytes() == 120
    assert second["a"].sum() == 90
