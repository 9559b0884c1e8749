"""What ranks say to one another, on real gloo processes."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import RankError, Ranks
from trainer.world import World, record_collectives


def exchanges(world: World) -> dict[str, Any]:
    half = world.subgroup(world.size // 2)
    return {
        "sum": world.sum(world.rank, torch.tensor(0.5)),
        "vote": world.vote(1.0, 0.0),
        "from_main": world.from_main(f"rank {world.rank}"),
        "gather": world.gather(world.rank * 10),
        "half": half.sum(1.0)[0] if half else None,
        "patient": world.patient().vote(1.0)[0],
        "whole": world.subgroup(world.size) == world,
    }


def patience_of_a_part(world: World) -> float | None:
    half = dataclasses.replace(world, timeout=datetime.timedelta(seconds=7)).subgroup(2)
    if half is None or half.group is None:
        return None
    options: Any = half.group._get_backend(world.device).options
    return float(options._timeout.total_seconds())


def patience(world: World) -> list[float]:
    """Of the default group and of a part: as they were made, and when they are to wait less."""
    found = []
    for one in (dataclasses.replace(world, timeout=datetime.timedelta(seconds=30)), world.subgroup(1), world):
        if one is not None and one.rank < one.size:
            one = dataclasses.replace(one, timeout=one.timeout or (None if one is world else datetime.timedelta(30)))
            for seconds in (7.0, 30.0):
                one.wait_for(seconds)
                group: Any = one.group or dist.group.WORLD
                found.append(group._get_backend(world.device).options._timeout.total_seconds())
    return found


def share_a_state(world: World) -> Any:
    if not world.is_main:
        return world.broadcast(None)
    return world.broadcast(
        {
            "weights": {
                "a": torch.arange(6.0).view(2, 3).t(),
                "none": torch.empty(0),
                "half": torch.ones(3).bfloat16(),
            },
            "scalar": torch.tensor(7),
            "list": [torch.tensor([True, False]), "text", None],
            "pair": (1, torch.tensor(2.5)),
        }
    )


def fail_on_one(world: World) -> None:
    if world.rank == 1:
        raise ValueError("rank 1 gives up")


def test_ranks_of_a_part_wait_no_longer_for_each_other_than_all_do(four_ranks: Ranks) -> None:
    assert four_ranks.run(patience_of_a_part) == [7.0, 7.0, None, None]


def test_ranks_wait_as_long_as_they_are_told(two_ranks: Ranks) -> None:
    main, other = two_ranks.run(patience)
    # Where the timeout was left to torch, it stays as it is.
    assert main == [7.0, 30.0, 7.0, 30.0, 30.0, 30.0] and other == [7.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("version", "size", "file"),
    [
        ("2.6.0+cu124", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.8.0", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_the_flight_recorder_writes_beside_the_run_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, size: str, file: str
) -> None:
    """By the names that this torch knows: old ones do not know the new names, and new ones warn of the old names."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    environment = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/elsewhere/trace_"}
    record_collectives(tmp_path / "evidence", environment)
    assert environment == {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/elsewhere/trace_",
        size: "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    environment.clear()
    record_collectives(tmp_path / "evidence", environment)
    assert environment == {
        size: "2000",
        file: str(tmp_path / "evidence" / "nccl_trace_rank_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    assert (tmp_path / "evidence").is_dir()


def test_all_ranks_see_the_same(four_ranks: Ranks) -> None:
    found = four_ranks.run(exchanges)
    assert [answer.pop("half") for answer in found] == [2.0, 2.0, None, None]
    assert all(answer == found[0] for answer in found)
    assert found[0] == {
        "sum": [6.0, 2.0],
        "vote": [4.0, 0.0],
        "from_main": "rank 0",
        "gather": [0, 10, 20, 30],
        "patient": 4.0,
        "whole": True,
    }


def test_a_state_of_rank_0_reaches_every_rank_unchanged(two_ranks: Ranks) -> None:
    for state in two_ranks.run(share_a_state):
        assert torch.equal(state["weights"]["a"], torch.arange(6.0).view(2, 3).t())
        assert state["weights"]["none"].numel() == 0
        assert state["weights"]["half"].dtype == torch.bfloat16
        assert state["scalar"].item() == 7 and state["scalar"].dim() == 0
        assert torch.equal(state["list"][0], torch.tensor([True, False])) and state["list"][1:] == ["text", None]
        assert state["pair"] == (1, torch.tensor(2.5))


def test_without_a_group_every_exchange_is_the_identity() -> None:
    alone = World(rank=0, size=1, device=torch.device("cpu"), backend="")
    assert alone.sum(2.0, 3.0) == [2.0, 3.0]
    assert alone.from_main("x") == "x"
    assert alone.gather("x") == ["x"]
    assert alone.broadcast({"a": 1}) == {"a": 1}
    assert alone.patient() is alone and alone.subgroup(1) == alone
    alone.barrier()


def test_a_failing_rank_is_named_and_the_ranks_work_again(two_ranks: Ranks) -> None:
    try:
        two_ranks.run(fail_on_one)
    except RankError as error:
        assert error.by_rank == {1: ("ValueError", "rank 1 gives up")}
    else:
        raise AssertionError("the error did not come through")
    assert len(two_ranks.run(exchanges_of_two)) == 2


def exchanges_of_two(world: World) -> float:
    return world.vote(1.0)[0]
