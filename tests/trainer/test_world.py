"""Communication of ranks, on real gloo processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.trainer.ranks import Ranks
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
    }


def test_the_flight_recorder_writes_beside_the_run_unless_told_otherwise(tmp_path: Path) -> None:
    for environ in ({}, {"TORCH_FR_DUMP_TEMP_FILE": "/elsewhere/trace_"}):
        environment = dict(environ)
        record_collectives(tmp_path / "evidence", environment)
        assert environment == {
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "evidence" / "nccl_trace_rank_"),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            **environ,
        }
    assert (tmp_path / "evidence").is_dir()


def test_all_ranks_see_the_same(four_ranks: Ranks) -> None:
    answers = four_ranks.run(exchanges)
    assert [answer.pop("half") for answer in answers] == [2.0, 2.0, None, None]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == {
        "sum": [6.0, 2.0],
        "vote": [4.0, 0.0],
        "from_main": "rank 0",
        "gather": [0, 10, 20, 30],
        "patient": 4.0,
    }


def test_without_a_group_every_exchange_is_the_identity() -> None:
    alone = World(rank=0, size=1, device=torch.device("cpu"), backend="")
    assert alone.sum(2.0, 3.0) == [2.0, 3.0]
    assert alone.from_main("x") == "x"
    assert alone.gather("x") == ["x"]
    assert alone.patient() is alone
    assert alone.subgroup(1) == alone
    alone.barrier()
