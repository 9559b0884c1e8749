"""A rank that runs out of memory in the middle of a step leaves the others unhurt, and all do the step again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.trainer import parallel_checks as checks
from tests.trainer.parallel_checks import ALONE
from tests.trainer.ranks import RankError, Ranks
from tests.trainer.test_parallel import difference, same
from tests.trainer.tiny import tiny_objective, tiny_settings
from trainer.parallel.build import build_strategy

# Small enough that a tiny model has four buckets from its second step on.
BUCKETS = {"bucket_cap_mb": 0.001}

WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "one-bucket": {"bucket_cap_mb": 25.0},
    "own-gradients": {"gradient_as_bucket_view": False},
    "zero1": {"parallel": "zero1"},
    "fp16-exchange": {"compress_gradients": "fp16"},
    "unused": {"find_unused_parameters": True},
    "batch-norm": {"model": {"batch_norm": True}},
    "own-batch-norm": {"model": {"batch_norm": True}, "broadcast_buffers": False},
    "local_sgd": {"parallel": "local_sgd", "average_every": 2},
}


def assert_survived(found: list[dict[str, Any]], undisturbed: list[dict[str, Any]], tolerance: float = 0.0) -> None:
    for rank, (one, other) in enumerate(zip(found, undisturbed, strict=True)):
        assert one["losses"] == pytest.approx(other["losses"], abs=tolerance), rank
        if rank == 0:
            assert difference(one["model"], other["model"]) <= tolerance


@pytest.mark.parametrize("where", ["data", "forward", "backward"])
@pytest.mark.parametrize("way", WAYS)
def test_the_run_goes_on_as_if_nothing_had_happened(way: str, where: str, two_ranks: Ranks) -> None:
    settings = {**BUCKETS, **WAYS[way]}
    undisturbed = two_ranks.run(checks.survive, "", (), 0, **settings)
    everywhere = itertools.product((0, 1, 3), ((0,), (1,), (0, 1)))
    # In step 1, the second, torch lays out the buckets anew.
    for step, failing in everywhere if way == "ddp" else ((1, (0,)), (1, (1,)), (3, (0, 1))):
        assert_survived(two_ranks.run(checks.survive, where, failing, step, **settings), undisturbed)


@pytest.mark.parametrize("where", ["data", "forward", "backward"])
@pytest.mark.parametrize("way", ["ddp", "batch-norm"])
def test_micro_batches_that_exchange_nothing_may_fail_as_well(way: str, where: str, two_ranks: Ranks) -> None:
    settings = {**BUCKETS, **WAYS[way]}
    undisturbed = two_ranks.run(checks.survive, "", (), 0, accumulate=3, **settings)
    for step, micro in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
        found = two_ranks.run(checks.survive, where, (1,), step, micro, accumulate=3, **settings)
        assert_survived(found, undisturbed)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_two_of_four_ranks_may_fail_at_once(where: str, four_ranks: Ranks) -> None:
    undisturbed = four_ranks.run(checks.survive, "", (), 0, **BUCKETS)
    for step in (0, 1, 3):
        found = four_ranks.run(checks.survive, where, (1, 2), step, **BUCKETS)
        # Four addends in another order: buckets are laid out anew.
        assert_survived(found, undisturbed, tolerance=1e-6)
        assert all(same(one["model"], found[0]["model"]) for one in found)


def test_zeros_stand_for_the_buckets_that_were_not_sent(two_ranks: Ranks) -> None:
    undisturbed = two_ranks.run(checks.survive, "", (), 0, **BUCKETS)
    # torch lays out the buckets by the order in which gradients came in the first step.
    assert undisturbed[1]["rounds"] == [1, 4, 4, 4, 4]
    assert two_ranks.run(checks.survive, "forward", (1,), 3, **BUCKETS)[1]["answers"] == 4
    in_the_middle = two_ranks.run(checks.survive, "backward", (1,), 3, **BUCKETS)
    assert 0 < in_the_middle[1]["answers"] < 4
    # A renewed exchange lays them out anew, and nothing of the old one is left.
    assert in_the_middle[1]["rounds"] == [1, 4, 4, 1, 4]


def test_nothing_is_owed_when_all_gradients_are_exchanged(two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.settled_late) == [0, 0]


@pytest.mark.parametrize("parallel", ["ddp", "local_sgd"])
def test_an_objective_that_exchanges_in_forward_cannot_be_settled(parallel: str, two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.can_settle, parallel=parallel) == [True, True]
    assert two_ranks.run(checks.can_settle, exchanges=True, parallel=parallel) == [False, False]


@pytest.mark.parametrize("settings", [{"static_graph": True}, {"parallel": "fsdp"}])
def test_what_cannot_be_answered_is_not_settled(settings: dict[str, Any], two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.can_settle, **settings) == [False, False]


def test_buckets_that_do_not_hold_all_gradients_are_no_answer(two_ranks: Ranks) -> None:
    with pytest.raises(RankError) as failed:
        two_ranks.run(checks.settle_with_broken_buckets)
    assert failed.value.by_rank[1] == (
        "RankError",
        "out of memory while the buckets of gradients were laid out: this step cannot be settled",
    )


def test_one_process_takes_its_batch_statistics_back() -> None:
    objective = tiny_objective(batch_norm=True)
    strategy = build_strategy(tiny_settings(oom_retries=1), objective, ALONE)
    checks.train(strategy, range(2))
    before = checks.copied(strategy.model_state())
    assert strategy.can_settle
    with strategy.accumulate(False):
        strategy.loss(checks.micro_batches(strategy, 2, 1)[0])
    assert not same(before, strategy.model_state())
    strategy.settle()
    strategy.renew()
    assert same(before, strategy.model_state())
    strategy.renew()
    assert torch.equal(before["batch_norm.num_batches_tracked"], torch.tensor(2))
