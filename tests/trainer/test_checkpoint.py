"""A checkpoint's file: whole or refused, and never the last good one lost."""

from __future__ import annotations

import errno
import random
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tables import table
from tests.texts import mentions
from tests.trainer.checkpoint_files import (
    contents,
    end_after,
    flip_a_byte,
    in_a_child,
    listing,
    save,
)
from trainer import checkpoints
from trainer.checkpoints import files, hashes, names
from trainer.checkpoints.snapshot import HostBuffers
from trainer.config import Settings
from trainer.errors import CheckpointError

CPU = torch.device("cpu")


def test_round_trip_with_a_hash_that_sha256sum_understands(folder: Path) -> None:
    path = save(folder, 40, weights=torch.arange(1000), plain=[1, "two", (3.0, None)])
    name = "step_00000040.pt"
    assert listing(folder) == [name, f"{name}.sha256"]
    subprocess.run(["sha256sum", "--check", "--strict", f"{name}.sha256"], cwd=folder, check=True)
    hashes.verify(path)
    state = checkpoints.load(path)
    assert torch.equal(state["weights"], torch.arange(1000))
    assert state["plain"] == [1, "two", (3.0, None)]


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


def test_a_checkpoint_cannot_run_code(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (folder / "ran",))

    path = names.step_file(folder, 1)
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


def test_a_write_that_fails_half_way_leaves_everything_as_it_was(folder: Path) -> None:
    save(folder, 10)
    before = contents(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            save(folder, 20, weights=torch.randn(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
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
    assert mentions(str(raised.value), "step_00000001.pt", "--width 64", "128", "--resume none")
    with pytest.raises(CheckpointError, match=r"--model-options \{\}, this run has \{'layers': 2\}"):
        checkpoints.check_fits(state, made_with.model_copy(update={"model_options": {"layers": 2}}), path)


def live_state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    return {
        "model": model.state_dict(keep_vars=True),
        "optimizer": {
            name: {"step": torch.tensor(3.0), "exp_avg": torch.randn_like(parameter)}
            for name, parameter in model.named_parameters()
        },
        "random": [{"torch": torch.get_rng_state(), "python": (3, (1, 2), None)}],
        "step": 7,
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
    }


def test_nothing_changes_in_it_when_training_goes_on() -> None:
    state = live_state()
    expected = flat(state)
    expected = {
        name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in expected.items()
    }
    taken = HostBuffers().take(state, copy=True)
    with torch.no_grad():
        for value in flat(state).values():
            if isinstance(value, Tensor):
                value.zero_()
    state["random"].clear()
    taken.wait()
    assert_same(flat(taken.state), expected)
    assert type(taken.state["model"]) is dict
    assert not any(value.requires_grad for value in flat(taken.state).values() if isinstance(value, Tensor))
    assert taken.state["model"]["0.weight"].stride() == state["model"]["0.weight"].stride()


@table("copy", [False, True])
def test_tensors_that_share_memory_still_do(copy: bool) -> None:
    weights = torch.arange(12.0).reshape(3, 4)
    state = {"embedding": weights, "head": weights, "row": weights[1], "transposed": [weights.T]}
    taken = HostBuffers().take(state, copy=copy).state
    assert len({value.untyped_storage().data_ptr() for value in flat(taken).values()}) == 1
    assert_same(flat(taken), flat(state))


def test_the_memory_is_used_again() -> None:
    buffers = HostBuffers()
    state = {"a": torch.ones(100), "b": torch.ones(50)}
    first = buffers.take(state, copy=True).state["a"].data_ptr()
    state["a"].fill_(2)
    again = buffers.take(state, copy=True).state
    assert again["a"].data_ptr() == first and again["a"].sum() == 200
    other = buffers.take({"a": torch.full((30,), 3.0), "b": torch.ones(50)}, copy=True).state
    assert other["a"].untyped_storage().nbytes() == 120 and other["a"].sum() == 90


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {key: value for part in state for key, value in flat(state[part], f"{name}/{part}").items()}
    if isinstance(state, list | tuple):
        return {
            key: value for number, part in enumerate(state) for key, value in flat(part, f"{name}/{number}").items()
        }
    return {name: state}


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, Tensor):
            assert value.dtype == right[name].dtype and torch.equal(value, right[name]), name
        else:
            assert value == right[name], name
