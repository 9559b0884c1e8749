"""However training is spread over ranks, it is the training of one process: gradients, losses and state."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import parallel_checks as checks
from tests.trainer.comparing import difference, same
from tests.trainer.ranks import ALONE, Ranks

# In fp32 only the order of additions differs between the ways.
TOLERANCE = 2e-6

EXACT: dict[str, dict[str, Any]] = {
    "ddp": {},
    "small-buckets": {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": False},
    "static-graph": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "zero1": {"parallel": "zero1"},
    "fsdp": {"parallel": "fsdp"},
    "hsdp": {"parallel": "fsdp", "shard_ranks": 2},  # two copies on four ranks
    "fsdp-offload": {"parallel": "fsdp", "cpu_offload": True, "reshard_after_forward": False},
    # Without a GPU there are no graphs, but what is done for them is.
    "graphs": {"compile": "reduce-overhead"},
    "graphs-zero1": {"compile": "max-autotune", "parallel": "zero1", "gradient_as_bucket_view": False},
}
ROUNDED: dict[str, tuple[dict[str, Any], float]] = {
    "fp16-exchange": ({"compress_gradients": "fp16"}, 1e-3),
    "fsdp-bf16": ({"parallel": "fsdp", "precision": "bf16"}, 1e-2),
}
STATEFUL: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero1": {"parallel": "zero1"},
    "fsdp": {"parallel": "fsdp"},
    "zero1-sgd": {"parallel": "zero1", "optimizer": "sgd"},
}
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
}


# --- gradients --------------------------------------------------------------------------------------------------------


def assert_gradients(ranks: Ranks, accumulate: int) -> None:
    """Of every exact way: those of one process on the joined batch, the same on all ranks."""
    expected = checks.gradients(ALONE)[1]
    wrong = {}
    for way, settings in EXACT.items():
        results = [gradients for _, gradients in ranks.run(checks.gradients, accumulate, **settings)]
        is_same = all(same(gradients, results[0]) for gradients in results)
        wrong[way] = (is_same, difference(results[0], expected))
    assert {way: outcome for way, outcome in wrong.items() if not outcome[0] or outcome[1] >= 1e-7} == {}


def assert_survived(survivors: list[dict[str, Any]], undisturbed: list[dict[str, Any]], case: object) -> None:
    for rank, (survivor, reference) in enumerate(zip(survivors, undisturbed, strict=True)):
        assert survivor["losses"] == reference["losses"], (rank, case)
        if rank == 0:
            assert difference(survivor["model"], reference["model"]) == 0, case


def test_gradients_are_those_of_one_process_on_the_joined_batch(two_ranks: Ranks) -> None:
    assert_gradients(two_ranks, accumulate=2)
    for way, (settings, tolerance) in ROUNDED.items():
        results = [gradients for _, gradients in two_ranks.run(checks.gradients, 2, **settings)]
        assert all(same(gradients, results[0]) for gradients in results), way
        assert 0 < difference(results[0], checks.gradients(ALONE)[1]) < tolerance, way


@pytest.mark.long
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_of_four_ranks(accumulate: int, four_ranks: Ranks) -> None:
    assert_gradients(four_ranks, accumulate)


def test_data_parallel_has_the_gradients_of_one_process() -> None:
    # Without GPUs it is one part; the weights of the parts are what is tested.
    assert difference(checks.gradients(ALONE, parallel="data_parallel")[1], checks.gradients(ALONE)[1]) < 1e-7


# --- training ---------------------------------------------------------------------------------------------------------


def test_all_ways_reach_the_same_loss(two_ranks: Ranks) -> None:
    losses, model, optimizer, _ = checks.train_some(ALONE, range(10))
    assert losses[-1] < 0.9 * losses[0]
    for way, settings in EXACT.items():
        losses_of_group, found_model, found_optimizer, _ = two_ranks.run(checks.train_some, range(10), 2, **settings)[0]
        assert losses_of_group == pytest.approx(losses, abs=TOLERANCE), way
        assert difference(found_model, model) < TOLERANCE, way
        assert found_optimizer.keys() == optimizer.keys(), way
        for name, state in optimizer.items():
            assert difference(found_optimizer[name], state) < TOLERANCE, (way, name)


def test_optimizer_state_is_shared_out(four_ranks: Ranks) -> None:
    for way in ("zero1", "fsdp", "hsdp"):
        shares = [elements for elements, _ in four_ranks.run(checks.optimizer_share, **EXACT[way])]
        parameters = four_ranks.run(checks.optimizer_share, **EXACT[way])[0][1]
        copies = 2 if way == "hsdp" else 1
        assert sum(shares) == copies * parameters, way
        assert max(shares) < 0.55 * copies * parameters, way
        assert shares[:2] == shares[2:] or way != "hsdp", "each copy is shared out in the same way"


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["fsdp", *(pytest.param(way, marks=pytest.mark.long) for way in (*STATEFUL, "one process") if way != "fsdp")],
)
def test_state_goes_on_with_any_other_way_and_number_of_ranks(source: str, two_ranks: Ranks, four_ranks: Ranks) -> None:
    settings = STATEFUL.get(source, {})
    kind = {"optimizer": settings["optimizer"]} if "optimizer" in settings else {}
    if source == "one process":
        trained = checks.train_some(ALONE, range(4))
    else:
        trained = four_ranks.run(checks.train_some, range(4), **settings)[0]
    state = trained[1:3]
    more = range(4, 8)
    losses, expected, *_ = checks.train_some(ALONE, more, state=state, **kind)
    for target in ("ddp", "zero1", "fsdp"):
        for group in (two_ranks, four_ranks):
            losses_of_group, result, *_ = group.run(
                checks.train_some, more, state=state, **{**STATEFUL[target], **kind}
            )[0]
            assert losses_of_group == pytest.approx(losses, abs=TOLERANCE), target
            assert difference(result, expected) < TOLERANCE, target


def test_a_resumed_run_is_the_one_that_went_on_bit_for_bit(two_ranks: Ranks) -> None:
    for way, settings in STATEFUL.items():
        for straight, resumed in two_ranks.run(checks.straight_and_resumed, 4, 3, **settings):
            assert same(straight, resumed), way


def test_state_that_does_not_fit_is_refused(two_ranks: Ranks) -> None:
    said = [
        "KeyError: the model's state lacks enter.weight",
        "KeyError: the model's state has tensors that the model does not have: other",
        "ValueError: enter.weight has shape (2, 3), the model's (8, 8)",
        "KeyError: the optimizer's state has parameters that the model does not have: other",
    ]
    for way in ("ddp", "zero1", "fsdp"):
        # Every rank refuses it, also one that holds no shard of the parameter.
        assert two_ranks.run(checks.load_errors, **STATEFUL[way]) == [said, said], way
        # Parameters without a state start without.
        assert two_ranks.run(checks.optimizer_kept_and_forgotten, **STATEFUL[way]) == [({"enter.weight"}, set())] * 2


def test_averages_are_those_of_one_process_and_can_be_taken_over(two_ranks: Ranks) -> None:
    expected, _ = checks.averages(ALONE)
    for way in ("ddp", "fsdp"):
        (average, again), *_ = two_ranks.run(checks.averages, **STATEFUL[way])
        assert difference(average, expected) < TOLERANCE, way
        assert same(again, average), way


# --- the exchange -----------------------------------------------------------------------------------------------------


def test_only_the_last_micro_batch_exchanges_gradients(two_ranks: Ranks) -> None:
    for way in ("small-buckets", "zero1", "unused"):
        once = two_ranks.run(checks.rounds_per_step, 3, 1, **EXACT[way])
        assert min(min(rounds) for rounds in once) >= 1, way
        assert two_ranks.run(checks.rounds_per_step, 3, 4, **EXACT[way]) == once, way
    # A static graph is learnt with one more exchange.
    assert two_ranks.run(checks.rounds_per_step, 3, 4, static_graph=True) == [[2, 1, 1]] * 2


def test_data_parallel_computes_in_the_chosen_type_on_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of their own do not know which type autocast was given."""
    strategy = checks.build(ALONE, parallel="data_parallel")
    part = strategy._wrapped.module
    dtypes: list[torch.dtype] = []
    strategy.objective.model.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))

    def in_a_thread(*inputs: Any) -> Tensor:
        with ThreadPoolExecutor(1) as threads:
            output: Tensor = threads.submit(part, *inputs).result()
        return output

    monkeypatch.setattr(strategy, "_wrapped", in_a_thread)
    for half in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=half):
            strategy.loss(checks.micro_batches(strategy, 0)[0])
    strategy.loss(checks.micro_batches(strategy, 0)[0])
    assert dtypes == [torch.float16, torch.bfloat16, torch.float32]


def test_for_cuda_graphs_gradients_lie_in_memory_of_their_own() -> None:
    """torch's error says so: allocate stable .grad buffers before the compiled backward runs."""
    strategy = checks.build(ALONE, compile="reduce-overhead")
    addresses = []
    for step in range(2):
        with strategy.accumulate(last=True):
            before = {name: gradient.data_ptr() for name, gradient in strategy.local_gradients().items()}
            strategy.loss(checks.micro_batches(strategy, step)[0]).backward()
        addresses += [before, {name: gradient.data_ptr() for name, gradient in strategy.local_gradients().items()}]
        strategy.clear_gradients()
        assert all(not gradient.any() for gradient in strategy.local_gradients().values())
    assert set(addresses[0]) == set(strategy.names.values())
    assert all(address == addresses[0] for address in addresses)


def test_what_is_measured_is_one_model_with_the_statistics_of_rank_0(two_ranks: Ranks) -> None:
    for settings in (
        {"broadcast_buffers": True},
        {"broadcast_buffers": False},
        {"parallel": "fsdp"},
        {"parallel": "fsdp", "cpu_offload": True},
    ):
        (main, measured), (second, also) = two_ranks.run(checks.statistics, **settings)
        assert difference(main, second) > 1e-4, settings
        assert difference(measured, main) == 0, settings
        assert difference(also, main) == 0, settings


def test_the_run_goes_on_as_if_nothing_had_happened(two_ranks: Ranks) -> None:
    """In step 1, the second, torch lays out the buckets anew."""
    for way, options in WAYS.items():
        settings = {**BUCKETS, **options}
        undisturbed = two_ranks.run(checks.survive, "", (), 0, **settings)
        cases = [("backward", (1,), 1), ("forward", (0, 1), 3)]
        cases += [("data", (0,), 0), ("forward", (1,), 1), ("backward", (0, 1), 3)] if way == "ddp" else []
        for case in cases:
            assert_survived(two_ranks.run(checks.survive, *case, **settings), undisturbed, (way, case))
    # Micro batches that exchange nothing may fail as well.
    for way in ("ddp", "batch-norm"):
        settings = {**BUCKETS, **WAYS[way], "accumulate": 3}
        undisturbed = two_ranks.run(checks.survive, "", (), 0, **settings)
        for step, micro in ((0, 0), (1, 1), (1, 2)):
            survivors = two_ranks.run(checks.survive, "backward", (1,), step, micro, **settings)
            assert_survived(survivors, undisturbed, (way, step, micro))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_whatever_fails_wherever(way: str, two_ranks: Ranks) -> None:
    settings = {**BUCKETS, **WAYS[way]}
    undisturbed = two_ranks.run(checks.survive, "", (), 0, **settings)
    for case in itertools.product(("data", "forward", "backward"), ((0,), (1,), (0, 1)), (0, 1, 3)):
        assert_survived(two_ranks.run(checks.survive, *case, **settings), undisturbed, case)


def test_what_can_be_settled(two_ranks: Ranks) -> None:
    for settings, can in (
        ({"parallel": "ddp"}, True),
        ({"parallel": "ddp", "exchanges": True}, False),
        ({"static_graph": True}, False),
        ({"parallel": "fsdp"}, False),
    ):
        assert two_ranks.run(checks.can_settle, **settings) == [can, can], settings
