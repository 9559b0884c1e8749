"""Checkpoints of which every rank writes its part: read back whole, anywhere, or refused."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainer.checkpoint_files import flip_a_byte, listing, write
from tests.trainer.ranks import Ranks
from trainer import checkpoints
from trainer.checkpoints import Checkpointer, files, streams
from trainer.config import Settings
from trainer.config.schema import Compression
from trainer.errors import CheckpointError
from trainer.world import World

STEPPED = ("0.weight", "2.bias")


def settings(folder: Path, **values: Any) -> Settings:
    options = {"parallel": "fsdp", "sharded_checkpoints": True, "best_checkpoint": True, "checkpoint_dir": folder}
    return Settings.model_validate({"task": "classify", **options, **values})


def build() -> nn.Sequential:
    """Sizes that two and four ranks do not share evenly, a buffer, and a parameter smaller than the ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))


def moved(state: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    return {name: value.detach() + step if value.is_floating_point() else value for name, value in state.items()}


def shard_model(world: World) -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build()
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    return model


def state_of(model: nn.Module, step: int) -> Callable[[], files.State]:
    """The state of a strategy that shards: DTensors where tensors are spread; here all values are
    moved by `step`."""

    def collect() -> files.State:
        state = moved(model.state_dict(), step)
        moments = {name: {"step": torch.tensor(float(step)), "exp_avg": state[name] * 2} for name in STEPPED}
        return {"step": step, "model": state, "optimizer": moments, "random": [(1, 2)], "metrics": {"val/loss": 1.0}}

    return collect


def check_file(path: Path, step: int) -> None:
    """That a checkpoint is valid and holds the state after `step`, read without regard to ranks."""
    files.verify(path)
    check_state(checkpoints.load(path), step)


def check_state(state: files.State, step: int) -> None:
    expected = moved(build().state_dict(), step)
    assert state["step"] == step
    assert state["random"] == [(1, 2)]
    assert list(state["model"]) == list(expected)
    assert all(torch.equal(state["model"][n], expected[n]) for n in expected)
    assert set(state["optimizer"]) == set(STEPPED)
    for name, moments in state["optimizer"].items():
        assert moments["step"] == step
        assert torch.equal(moments["exp_avg"], expected[name] * 2)


def with_writers(world: World) -> World:
    part = world.subgroup(world.size)
    assert part is not None
    return part


def save(world: World, folder: Path, steps: dict[int, float], **values: Any) -> list[str]:
    saver = Checkpointer(settings(folder, **values), with_writers(world))
    saver.begin(0)
    model = shard_model(world)
    for step, score in steps.items():
        saver.save(state_of(model, step), step=step, score=score, epoch=step)
        world.barrier()  # training talks in its own group meanwhile
        saver.wait()
    return [outcome.event for outcome in saver.poll()]


@pytest.fixture
def one_rank() -> Iterator[World]:
    """A group of this process only, as torchrun makes it for one GPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World(rank=0, size=1, device=torch.device("cpu"), backend="gloo")
    dist.destroy_process_group()


def hand_over(world: World, folder: Path) -> list[int]:
    """Bytes of tensors that this rank keeps for the next phase, and of the whole state: on one machine and on two."""
    model = shard_model(world)
    answers = []
    for machine in ("one", str(world.rank)):
        rest, pieces = parts = checkpoints.parts_on_host(state_of(model, 3)(), world)
        with patch("os.uname", lambda machine=machine: SimpleNamespace(nodename=machine)):
            state = checkpoints.shared_state(parts, world, folder)
        check_state(state, 3)
        answers.append(sum(piece["tensor"].nbytes for piece in pieces.values()))
        assert (rest == {}) == (world.rank > 0)
    moments = [values["exp_avg"] for values in state["optimizer"].values()]
    return [*answers, sum(tensor.nbytes for tensor in [*dict(build().named_parameters()).values(), *moments])]


def save_with_a_full_disk(world: World, folder: Path, broken: int, background: bool) -> list[Any]:
    """The disk of rank `broken` is full for its shard of step 20; broken -1: for the main file."""
    saver = Checkpointer(settings(folder, async_checkpoints=background, epoch_checkpoints=True), with_writers(world))
    model = shard_model(world)
    saver.save(state_of(model, 10), step=10, score=0.5, epoch=1)
    saver.wait()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "there")
    write = streams.write

    def write_unless_full(state: Any, path: Path, compression: Compression) -> tuple[str, int]:
        if world.rank == max(broken, 0) and (path.parent.suffix == ".shards") == (broken >= 0):
            raise full
        return write(state, path, compression)

    answers: list[Any] = []
    streams.write = write_unless_full
    try:
        saver.save(state_of(model, 20), step=20, score=0.25, epoch=2)
        saver.wait()
        try:
            saver.save(state_of(model, 30), step=30, need="required")
        except CheckpointError as error:
            answers.append(str(full) in str(error))
    finally:
        streams.write = write
    return [*answers, [(outcome.event, outcome.step) for outcome in saver.poll()]]


def test_two_ranks_write_and_one_reads(folder: Path, two_ranks: Ranks) -> None:
    events = two_ranks.run(
        save, folder, {10: 0.5, 20: 0.25, 30: 0.75}, async_checkpoints=True, epoch_checkpoints=True, keep=2
    )
    assert events == [["checkpoint"] * 3, []]
    whole = {"best_model.pt": 20, "step_00000020.pt": 20, "step_00000030.pt": 30}
    assert {path.name for path in folder.glob("*.pt")} == whole.keys()
    for name, step in {**whole, "phase_main/epoch_10.pt": 10, "phase_main/epoch_20.pt": 20}.items():
        path = folder / name
        assert listing(files.shards_folder(path)) == [f"step_{step:08d}_rank_{rank}_of_2.pt" for rank in range(2)]
        check_file(path, step)
        subprocess.run(["sha256sum", "--check", "--strict", f"{path.name}.sha256"], cwd=path.parent, check=True)
    # Only what a rank has is in its shard.
    path = files.step_file(folder, 20)
    shards = [streams.load_file(files.shards_folder(path) / files.shard_name(20, rank, 2)) for rank in range(2)]
    assert [shard["model/0.weight"]["tensor"].shape for shard in shards] == [(4, 5), (3, 5)]
    assert [shard["model/0.weight"]["offsets"] for shard in shards] == [[0, 0], [4, 0]]


def test_a_shard_that_is_damaged_or_missing_makes_it_no_checkpoint(folder: Path, one_rank: World) -> None:
    save(one_rank, folder, {10: 0.5, 20: 0.75})
    newest = files.step_file(folder, 20)
    shard = files.shards_folder(newest) / files.shard_name(20, 0, 1)
    check_file(newest, 20)
    flip_a_byte(shard)
    with pytest.raises(CheckpointError, match=r"is corrupt: sha256 mismatch in .*_rank_0_of_1"):
        files.verify(newest)
    choice = checkpoints.choose("auto", folder)
    assert choice.path == files.step_file(folder, 10)
    assert len(choice.rejected) == 1
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be used: .*rank_0_of_1\.pt.* is missing"):
        files.verify(newest)
    with pytest.raises(CheckpointError, match=r"rank_0_of_1\.pt.* cannot be loaded"):
        checkpoints.load(newest)


def test_a_part_that_is_missing_is_noticed_when_it_is_wanted(folder: Path) -> None:
    path = files.step_file(folder, 1)
    write({"format": files.FORMAT, "model": {"a": {"__spread__": "model/a"}}, "shards": {"one.pt": ""}}, path)
    piece = {"offsets": [0], "shape": [4], "tensor": torch.zeros(2)}
    for pieces in ({}, {"model/a": piece}):
        write(pieces, files.shards_folder(path) / "one.pt")
        state = checkpoints.load(path)
        with pytest.raises(CheckpointError, match="is not complete: a part of model/a is missing"):
            state["model"]["a"]


def test_between_phases_each_rank_keeps_its_share(tmp_path: Path, two_ranks: Ranks, four_ranks: Ranks) -> None:
    for ranks, most in ((two_ranks, 0.62), (four_ranks, 0.36)):  # seven rows
        elements = ranks.run(hand_over, tmp_path)
        assert sum(here for here, _, _ in elements) == elements[0][2]
        assert max(here for here, _, _ in elements) < most * elements[0][2]
        assert [here for here, _, _ in elements] == [expected for _, expected, _ in elements]
    assert listing(tmp_path) == []


def test_a_rank_that_cannot_write_costs_the_checkpoint_on_all(tmp_path: Path, two_ranks: Ranks) -> None:
    for broken, background in ((0, False), (1, True), (-1, True)):
        folder = tmp_path / str(broken)
        main, second = two_ranks.run(save_with_a_full_disk, folder, broken, background)
        assert main == [True, [("checkpoint", 10), ("checkpoint_failed", 20), ("checkpoint_failed", 30)]]
        assert second == [True, []]
        assert [path.name for path in folder.rglob("*") if "20" in path.name or "30" in path.name] == []
        for path in (files.step_file(folder, 10), files.best_file(folder), files.epoch_file(folder, "", 1)):
            check_file(path, 10)
