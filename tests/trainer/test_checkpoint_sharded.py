"""Checkpoints of which every rank writes its part: read back whole, anywhere, or refused."""

from __future__ import annotations

import errno
import os
import subprocess
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainer.checkpoint_files import flip_a_byte, listing, resident_anonymous_bytes
from tests.trainer.ranks import Ranks
from trainer import checkpoints
from trainer.checkpoints import Checkpointer, files, hashes, names, rotation, sharded
from trainer.config import Settings
from trainer.errors import CheckpointError
from trainer.world import World


def settings(folder: Path, **values: Any) -> Settings:
    return Settings.model_validate(
        {
            "task": "classify",
            "parallel": "fsdp",
            "sharded_checkpoints": True,
            "checkpoint_dir": folder,
            "best_checkpoint": True,
            **values,
        }
    )


def build() -> nn.Sequential:
    """Sizes that two and four ranks do not share evenly, a buffer, and a parameter smaller than the ranks."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))


def expected(step: int) -> dict[str, Tensor]:
    return {name: value + step if value.is_floating_point() else value for name, value in build().state_dict().items()}


def shard_model(world: World) -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build()
    fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    return model


def state_of(model: nn.Module, step: int) -> Callable[[], files.State]:
    """What a strategy that shards gives: DTensors where tensors are spread; here all values are moved by `step`."""

    def collect() -> files.State:
        state = {
            name: value.detach() + step if value.is_floating_point() else value
            for name, value in model.state_dict().items()
        }
        moments = {
            name: {"step": torch.tensor(float(step)), "exp_avg": state[name] * 2} for name in ("0.weight", "2.bias")
        }
        return {"step": step, "model": state, "optimizer": moments, "random": [(1, 2)], "metrics": {"val/loss": 1.0}}

    return collect


def check_file(path: Path, step: int) -> None:
    """That a checkpoint holds `expected(step)`, read without regard to ranks."""
    hashes.verify(path)
    state = checkpoints.load(path)
    assert state["step"] == step and state["random"] == [(1, 2)]
    assert list(state["model"]) == list(expected(step)) and len(state["model"]) == len(expected(step))
    for name, value in expected(step).items():
        torch.testing.assert_close(state["model"][name], value, rtol=0, atol=0)
    assert set(state["optimizer"]) == {"0.weight", "2.bias"}
    for name, moments in state["optimizer"].items():
        assert moments["step"] == step
        torch.testing.assert_close(moments["exp_avg"], expected(step)[name] * 2, rtol=0, atol=0)


def with_writers(world: World) -> World:
    part = world.subgroup(world.size, writers=True)
    assert part is not None
    return part


def save(world: World, folder: Path, steps: dict[int, float], **values: Any) -> list[str]:
    saver = Checkpointer(settings(folder, **values), with_writers(world))
    saver.begin(0)
    model = shard_model(world)
    for step, score in steps.items():
        assert saver.save(state_of(model, step), step=step, score=score, epoch=step)
        world.barrier()  # training talks in its own group meanwhile
        saver.wait()
    return [outcome.event for outcome in saver.poll()]


def check_everywhere(world: World, path: Path, step: int) -> None:
    check_file(path, step)


@pytest.fixture
def one_rank() -> Iterator[World]:
    """A group of this process only, as torchrun makes it for one GPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World(rank=0, size=1, device=torch.device("cpu"), backend="gloo")
    dist.destroy_process_group()


@pytest.mark.parametrize("background", [False, True])
def test_a_single_rank_does_the_same(folder: Path, one_rank: World, background: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    weight = torch.arange(6.0)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "there")

    def check_disk(step: int, path: Path) -> None:
        if step == 20:
            raise full

    saver = Checkpointer(
        settings(folder, async_checkpoints=background, keep=1), with_writers(one_rank), before_write=check_disk
    )
    for step in (10, 20, 30):
        spread = distribute_tensor(weight + step, mesh)
        saver.save(
            lambda step=step, spread=spread: {"step": step, "ema": {"all": [spread, 1]}, "plain": (weight,)},
            step=step,
            score=float(-step),
        )
        saver.wait()
    assert [outcome.event for outcome in saver.poll()] == ["checkpoint", "checkpoint_failed", "checkpoint"]
    assert not list(folder.rglob("*20*"))
    for path in (names.step_file(folder, 30), names.best_file(folder)):
        hashes.verify(path)
        state = checkpoints.load(path)
        assert torch.equal(state["ema"]["all"][0], weight + 30) and state["ema"]["all"][1] == 1
        assert torch.equal(state["plain"][0], weight)
    assert listing(names.shards_folder(path)) == ["step_00000030_rank_0_of_1.pt"]


@pytest.mark.parametrize("background", [False, True])
def test_two_ranks_write_and_one_or_four_read(
    folder: Path, two_ranks: Ranks, four_ranks: Ranks, background: bool
) -> None:
    events = two_ranks.run(
        save, folder, {10: 0.5, 20: 0.25, 30: 0.75}, async_checkpoints=background, epoch_checkpoints=True, keep=2
    )
    assert events == [["checkpoint"] * 3, []]
    assert sorted(path.name for path in folder.iterdir() if not path.name.endswith(".sha256")) == [
        "best_model.json",
        "best_model.pt",
        "best_model.shards",
        "phase_main",
        "step_00000020.pt",
        "step_00000020.shards",
        "step_00000030.pt",
        "step_00000030.shards",
    ]
    for name, step in (
        ("best_model.pt", 20),
        ("step_00000030.pt", 30),
        ("phase_main/epoch_10.pt", 10),
        ("phase_main/epoch_20.pt", 20),
    ):
        path = folder / name
        assert listing(names.shards_folder(path)) == [f"step_{step:08d}_rank_{rank}_of_2.pt" for rank in range(2)]
        check_file(path, step)
        subprocess.run(["sha256sum", "--check", "--strict", f"{path.name}.sha256"], cwd=path.parent, check=True)
    four_ranks.run(check_everywhere, folder / "step_00000030.pt", 30)


def test_four_ranks_write_compressed_and_one_reads(folder: Path, four_ranks: Ranks) -> None:
    four_ranks.run(save, folder, {10: 0.5}, gzip_checkpoints=True)
    check_file(folder / "step_00000010.pt.gz", 10)
    check_file(folder / "best_model.pt.gz", 10)


def test_only_what_a_rank_has_is_in_its_shard(folder: Path, two_ranks: Ranks) -> None:
    two_ranks.run(save, folder, {10: 0.5})
    path = names.step_file(folder, 10)
    shards = [files.load(names.shards_folder(path) / names.shard_file(10, rank, 2)) for rank in range(2)]
    assert [shard["model/0.weight"]["tensor"].shape for shard in shards] == [(4, 5), (3, 5)]
    assert [shard["model/0.weight"]["offsets"] for shard in shards] == [[0, 0], [4, 0]]
    assert "model/1.running_mean" not in shards[0]
    assert torch.equal(files.read(path)["model"]["1.running_mean"], expected(10)["1.running_mean"])


def test_a_shard_that_is_damaged_or_missing_makes_it_no_checkpoint(folder: Path, two_ranks: Ranks) -> None:
    two_ranks.run(save, folder, {10: 0.5, 20: 0.75})
    newest = names.step_file(folder, 20)
    shard = names.shards_folder(newest) / names.shard_file(20, 1, 2)
    whole = shard.read_bytes()
    for position in range(0, len(whole), len(whole) // 20):
        flip_a_byte(shard, position)
        with pytest.raises(
            CheckpointError, match=r"is corrupt: sha256 mismatch in step_00000020.shards/.*_rank_1_of_2"
        ):
            hashes.verify(newest)
        shard.write_bytes(whole)
    flip_a_byte(shard)
    choice = checkpoints.choose("auto", folder)
    assert choice.path == names.step_file(folder, 10) and len(choice.rejected) == 1
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be used: .*rank_1_of_2\.pt is missing"):
        hashes.verify(newest)
    with pytest.raises(CheckpointError, match=r"rank_1_of_2\.pt cannot be loaded"):
        checkpoints.load(newest)


def test_a_part_that_is_missing_is_noticed_when_it_is_wanted(folder: Path) -> None:
    path = names.step_file(folder, 1)
    spread = {"model": {"a": {"__spread__": "model/a"}}}
    piece = {"offsets": [0], "shape": [4], "tensor": torch.zeros(2)}
    for pieces in ({}, {"model/a": piece}):
        files.save(pieces, names.shards_folder(path) / "one.pt")
        state = sharded.whole_state({**spread, "shards": {"one.pt": ""}}, path)
        with pytest.raises(CheckpointError, match="is not complete: a part of model/a is missing"):
            state["model"]["a"]
    files.save([1], names.shards_folder(path) / "one.pt")
    with pytest.raises(CheckpointError, match=r"one\.pt is no shard"):
        sharded.whole_state({**spread, "shards": {"one.pt": ""}}, path)


def test_a_sharded_tensor_may_stand_anywhere_in_a_state(folder: Path) -> None:
    path = names.step_file(folder, 1)
    files.save({"a": {"offsets": [0], "shape": [2], "tensor": torch.ones(2)}}, names.shards_folder(path) / "one.pt")
    spread = {"__spread__": "a"}
    state = sharded.whole_state({"alone": spread, "listed": [spread, 3], "shards": {"one.pt": ""}}, path)
    assert state["alone"].tolist() == state["listed"][0].tolist() == [1.0, 1.0] and state["listed"][1] == 3


def save_with_a_full_disk(world: World, folder: Path, broken: int, background: bool) -> list[Any]:
    """The disk of rank `broken` is full for its shard of step 20; broken -1: for the main file."""
    saver = Checkpointer(settings(folder, async_checkpoints=background, epoch_checkpoints=True), with_writers(world))
    model = shard_model(world)
    saver.save(state_of(model, 10), step=10, score=0.5, epoch=1)
    saver.wait()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "there")
    stage = files.stage

    def stage_unless_full(state: Any, path: Path, **values: Any) -> files.Staged:
        staged = stage(state, path, **values)
        if world.rank == max(broken, 0) and (path.parent.suffix == ".shards") == (broken >= 0):
            staged.temporary.unlink()
            raise full
        return staged

    files.stage = stage_unless_full
    try:
        answers: list[Any] = [saver.save(state_of(model, 20), step=20, score=0.25, epoch=2)]
        saver.wait()
        try:
            saver.save(state_of(model, 30), step=30, required=True)
        except OSError as error:
            answers.append(error.errno)
    finally:
        files.stage = stage
    return [*answers, [(outcome.event, outcome.step) for outcome in saver.poll()]]


@pytest.mark.parametrize("broken", [0, 1, -1])
@pytest.mark.parametrize("background", [False, True])
def test_a_rank_that_cannot_write_costs_the_checkpoint_on_all(
    folder: Path, two_ranks: Ranks, broken: int, background: bool
) -> None:
    main, other = two_ranks.run(save_with_a_full_disk, folder, broken, background)
    assert main[:2] == other[:2] == [background, errno.ENOSPC]
    assert main[2] == [("checkpoint", 10), ("checkpoint_failed", 20), ("checkpoint_failed", 30)]
    assert other[2] == []
    assert [path.name for path in folder.rglob("*") if "20" in path.name or "30" in path.name] == []
    for path in (names.step_file(folder, 10), names.best_file(folder), names.epoch_file(folder, "", 1)):
        check_file(path, 10)


def save_with_a_bug(world: World, folder: Path, where: int, background: bool) -> str:
    """What a rank's save raises where writing fails with a bug on rank `where`; -1: in the main file."""
    saver = Checkpointer(settings(folder, async_checkpoints=background), with_writers(world))
    model = shard_model(world)
    stage = files.stage

    def stage_or_fail(state: Any, path: Path, **values: Any) -> files.Staged:
        if world.rank == max(where, 0) and (path.parent.suffix == ".shards") == (where >= 0):
            raise ValueError("a bug")
        return stage(state, path, **values)

    files.stage = stage_or_fail
    try:
        saver.save(state_of(model, 20), step=20)
        saver.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        files.stage = stage
    return "saved"


@pytest.mark.parametrize("where", [0, 1, -1])
@pytest.mark.parametrize("background", [False, True])
def test_a_bug_in_one_writer_ends_all_ranks_at_once(
    folder: Path, two_ranks: Ranks, where: int, background: bool
) -> None:
    said = two_ranks.run(save_with_a_bug, folder, where, background)
    rank = max(where, 0)
    assert said[rank] == "ValueError: a bug"
    assert said[1 - rank] == f"RankError: rank {rank} could not write its checkpoint: ValueError: a bug"
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_shards_without_their_file_are_no_checkpoint_and_are_removed(folder: Path, two_ranks: Ranks) -> None:
    two_ranks.run(save, folder, {10: 0.5, 20: 0.75})
    names.step_file(folder, 20).unlink()
    assert checkpoints.choose("auto", folder).path == names.step_file(folder, 10)
    rotation.begin_branch(folder, 10)
    assert not names.shards_folder(names.step_file(folder, 20)).exists()
    check_file(names.step_file(folder, 10), 10)
    check_file(names.best_file(folder), 10)


def pieces_of_all_kinds(world: World, folder: Path) -> None:
    """Tensors spread in every way over four ranks, by the placements that FSDP2 and tensor parallelism use."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    whole = torch.arange(63.0).reshape(7, 9)
    placements = {
        "rows": (Replicate(), Shard(0)),
        "columns": (Shard(1), Replicate()),
        "blocks": (Shard(0), Shard(1)),
        "crossed": (Shard(1), Shard(0)),
        "twice": (Shard(0), Shard(0)),
        "everywhere": (Replicate(), Replicate()),
    }
    model = {name: distribute_tensor(whole, mesh, kinds) for name, kinds in placements.items()}
    model["scalar"] = distribute_tensor(torch.tensor(5.0), mesh, (Replicate(), Replicate()))
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
    reference = {name: value.clone() for name, value in network.state_dict().items()}
    parallelize_module(network, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(network, mesh=mesh["data"])
    saver = Checkpointer(settings(folder), world)
    assert saver.save(lambda: {"step": 1, "model": model, "network": dict(network.state_dict())}, step=1)
    state = checkpoints.load(names.step_file(folder, 1))
    for name in placements:
        assert torch.equal(state["model"][name], whole), name
    assert state["model"]["scalar"] == 5
    for name, value in reference.items():
        assert torch.equal(state["network"][name], value), name


def test_every_way_of_spreading_is_put_together(folder: Path, four_ranks: Ranks) -> None:
    four_ranks.run(pieces_of_all_kinds, folder)
    shards = sorted(folder.glob("*.shards/*"))
    whole_ones = [sum("model/everywhere" in files.load(path) for path in shards), len(shards)]
    assert whole_ones == [1, 4]


def split_sums(world: World) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    mesh = init_device_mesh("cpu", (world.size,))
    sums = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    try:
        sharded.split({"model": {"sums": sums}})
    except ValueError as error:
        return str(error)
    return ""


def test_a_tensor_that_is_still_to_be_added_up_is_refused(two_ranks: Ranks) -> None:
    assert all("partial" in message.lower() for message in two_ranks.run(split_sums))


def test_tensors_are_put_together_when_asked_for_and_not_kept(folder: Path) -> None:
    path = names.step_file(folder, 1)
    count, size = 12, 1_000_000
    shards = {}
    for rank in range(2):
        name = names.shard_file(1, rank, 2)
        half = {"shape": [size], "offsets": [rank * size // 2]}
        pieces = {f"model/{number}": {**half, "tensor": torch.ones(size // 2)} for number in range(count)}
        files.save(pieces, names.shards_folder(path) / name)
        shards[name] = ""
    model = {str(number): {"__spread__": f"model/{number}"} for number in range(count)}
    files.save({"format": 2, "step": 1, "model": model, "shards": shards}, path)
    before = resident_anonymous_bytes()
    state = checkpoints.load(path)
    assert resident_anonymous_bytes() - before < count * size  # a quarter of what they are
    tensor = state["model"]["7"]
    assert tensor.sum() == size
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None
