"""What ranks say to one another, on real gloo processes."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import torch

from tests.trainer.ranks import RankError, Ranks
from trainer.world import World


def exchanges(world: World) -> dict[str, Any]:
    half = world.part(world.size // 2)
    return {
        "sum": world.sum(world.rank, torch.tensor(0.5)),
        "vote": world.vote(1.0, 0.0),
        "from_main": world.from_main(f"rank {world.rank}"),
        "gather": world.gather(world.rank * 10),
        "half": half.sum(1.0)[0] if half else None,
        "patient": world.patient().vote(1.0)[0],
        "whole": world.part(world.size) == world,
    }


def patience_of_a_part(world: World) -> float | None:
    half = dataclasses.replace(world, timeout=datetime.timedelta(seconds=7)).part(2)
    if half is None or half.group is None:
        return None
    options: Any = half.group._get_backend(world.device).options
    return float(options._timeout.total_seconds())


def share_a_state(world: World) -> Any:
    if not world.is_main:
        return world.share(None)
    return world.share(
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
    assert alone.share({"a": 1}) == {"a": 1}
    assert alone.patient() is alone and alone.part(1) == alone
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
