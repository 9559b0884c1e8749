"""However training is spread over ranks, it is the training of one process: gradients, losses and state."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import parallel_checks as checks
from tests.trainer.parallel_checks import ALONE
from tests.trainer.ranks import Ranks

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
    "local_sgd": {"parallel": "local_sgd", "average_every": 2},
    "zero1-sgd": {"parallel": "zero1", "optimizer": "sgd"},
    "powersgd": {"compress_gradients": "powersgd", "powersgd_rank": 1, "bucket_cap_mb": 0.001},
}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.long)])
def ranks(request: pytest.FixtureRequest, two_ranks: Ranks, four_ranks: Ranks) -> Ranks:
    return two_ranks if request.param == 2 else four_ranks


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("way", EXACT)
def test_gradients_are_those_of_one_process_on_the_joined_batch(way: str, accumulate: int, ranks: Ranks) -> None:
    found = ranks.run(checks.gradients, accumulate, **EXACT[way])
    for gradients in found:
        # With FSDP the whole is put together on rank 0 only.
        assert not gradients or same(gradients, found[0])
    assert difference(found[0], checks.gradients(ALONE)) < 1e-7


@pytest.mark.parametrize("way", ROUNDED)
def test_in_half_precision_gradients_are_the_same_on_all_ranks_and_nearly_right(way: str, two_ranks: Ranks) -> None:
    settings, tolerance = ROUNDED[way]
    found = two_ranks.run(checks.gradients, 2, **settings)
    assert all(not gradients or same(gradients, found[0]) for gradients in found)
    assert 0 < difference(found[0], checks.gradients(ALONE)) < tolerance


@pytest.mark.parametrize("parallel", ["ddp", "zero1"])
def test_what_low_rank_products_leave_out_is_kept_for_later_steps(parallel: str, two_ranks: Ranks) -> None:
    found = two_ranks.run(checks.exchanged_and_left, 5, **{**STATEFUL["powersgd"], "parallel": parallel})
    exchanged, exact, left = found[0]
    assert same(exchanged, found[1][0]) and same(left, found[1][2])
    matrices = {name for name, gradient in exact.items() if gradient.dim() == 2}
    assert left.keys() == matrices
    for name, gradient in exact.items():
        assert torch.allclose(exchanged[name] + left.get(name, torch.zeros(())), gradient, atol=1e-6), name
        assert (float((exchanged[name] - gradient).abs().max()) > 1e-4) == (name in matrices), name


def test_products_of_a_high_rank_are_exact(two_ranks: Ranks) -> None:
    """A matrix of eight columns has at most rank eight: of those that are exchanged so, nothing is left out."""
    settings = {"compress_gradients": "powersgd", "powersgd_rank": 5}
    exchanged, exact, left = two_ranks.run(checks.exchanged_and_left, 1, **settings)[0]
    assert left.keys() == {f"blocks.{number}.{name}.weight" for number in range(3) for name in ("inner", "outer")}
    exact_ones = exact.keys() - left.keys()
    assert difference({n: exchanged[n] for n in exact_ones}, {n: exact[n] for n in exact_ones}) < 1e-7
    coarse = two_ranks.run(checks.exchanged_and_left, 1, compress_gradients="powersgd", powersgd_rank=1)[0]
    for name in left:
        assert float(left[name].norm()) < 0.9 * float(coarse[2][name].norm()), name


def test_a_run_with_low_rank_products_learns_and_goes_on_with_any_number_of_ranks(
    two_ranks: Ranks, four_ranks: Ranks
) -> None:
    settings = STATEFUL["powersgd"]
    model, optimizer, exchange = two_ranks.run(checks.state_after, 4, **settings)[0]
    losses, expected = two_ranks.run(checks.go_on, model, optimizer, range(4, 12), exchange=exchange, **settings)[0]
    assert losses[-1] < 0.95 * losses[0]
    # Only the mean of what each rank has left over matters.
    found, result = four_ranks.run(checks.go_on, model, optimizer, range(4, 12), exchange=exchange, **settings)[0]
    assert found == pytest.approx(losses, abs=1e-4) and difference(result, expected) < 1e-3
    forgotten, _ = two_ranks.run(checks.go_on, model, optimizer, range(4, 12), **settings)[0]
    assert forgotten[1:] != pytest.approx(losses[1:], abs=1e-5)


def test_data_parallel_has_the_gradients_of_one_process() -> None:
    # Without GPUs it is one part; the weights of the parts are what is tested.
    assert difference(checks.gradients(ALONE, parallel="data_parallel"), checks.gradients(ALONE)) < 1e-7


@pytest.mark.parametrize("way", ["ddp", "zero1", "fsdp"])
def test_part_of_the_ranks_can_work_by_themselves(way: str, four_ranks: Ranks) -> None:
    found = four_ranks.run(checks.in_a_part, checks.gradients, 1, **EXACT[way])
    assert found[2:] == [None, None]
    assert difference(found[0], checks.gradients(ALONE)) < 1e-7


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", EXACT)
def test_all_ways_reach_the_same_loss(way: str, ranks: Ranks) -> None:
    losses, model, optimizer = checks.train_and_state(ALONE, 10)
    found, found_model, found_optimizer = ranks.run(checks.train_and_state, 10, 2, **EXACT[way])[0]
    assert found == pytest.approx(losses, abs=TOLERANCE)
    assert losses[-1] < 0.9 * losses[0]
    assert difference(found_model, model) < TOLERANCE
    assert found_optimizer.keys() == optimizer.keys()
    for name, state in optimizer.items():
        assert difference(found_optimizer[name], state) < TOLERANCE


def test_local_sgd_learns_and_ends_with_one_model(two_ranks: Ranks) -> None:
    settings = STATEFUL["local_sgd"]
    (losses, first, _), (_, second, _) = two_ranks.run(checks.train_and_state, 10, **settings)
    assert losses[-1] < 0.9 * losses[0]
    assert same(first, second)


def test_local_sgd_of_plain_gradient_steps_averaged_each_time_is_ddp(two_ranks: Ranks) -> None:
    # The mean of weights after one step each is the weights after a step along the mean gradient.
    settings = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    [(_, averaged, _), _] = two_ranks.run(
        checks.train_and_state_unclipped, 5, parallel="local_sgd", average_every=1, **settings
    )
    [(_, exchanged, _), _] = two_ranks.run(checks.train_and_state_unclipped, 5, **settings)
    assert difference(averaged, exchanged) < TOLERANCE


@pytest.mark.parametrize("way", ["zero1", "fsdp"])
def test_optimizer_state_is_shared_out(way: str, four_ranks: Ranks) -> None:
    held = four_ranks.run(checks.optimizer_share, **EXACT[way])
    parameters = held[0][1]
    assert sum(elements for elements, _ in held) == parameters
    assert max(elements for elements, _ in held) < 0.5 * parameters


def test_ranks_with_a_copy_hold_half_of_it_each(four_ranks: Ranks) -> None:
    held = four_ranks.run(checks.optimizer_share, **EXACT["hsdp"])
    assert [elements for elements, _ in held[:2]] == [elements for elements, _ in held[2:]]
    assert sum(elements for elements, _ in held[:2]) == held[0][1]


def test_copies_must_have_as_many_ranks_each(four_ranks: Ranks) -> None:
    said = four_ranks.run(checks.refusal, parallel="fsdp", shard_ranks=3)
    assert said == ["--shard-ranks 3 does not divide the 4 ranks"] * 4


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["fsdp", *(pytest.param(one, marks=pytest.mark.long) for one in (*STATEFUL, "one process") if one != "fsdp")],
)
def test_state_goes_on_with_any_other_way_and_number_of_ranks(source: str, two_ranks: Ranks, four_ranks: Ranks) -> None:
    settings = STATEFUL.get(source, {})
    kind = {"optimizer": settings["optimizer"]} if "optimizer" in settings else {}
    if source == "one process":
        _, model, optimizer = checks.train_and_state(ALONE, 4)
    else:
        _, model, optimizer = four_ranks.run(checks.train_and_state, 4, **settings)[0]
    more = range(4, 8)
    losses, expected = checks.go_on(ALONE, model, optimizer, more, **kind)
    for target in ("ddp", "zero1", "fsdp"):
        for group in (two_ranks, four_ranks):
            found, result = group.run(checks.go_on, model, optimizer, more, **{**STATEFUL[target], **kind})[0]
            assert found == pytest.approx(losses, abs=TOLERANCE), target
            assert difference(result, expected) < TOLERANCE, target


@pytest.mark.parametrize("way", STATEFUL)
def test_a_resumed_run_is_the_one_that_went_on_bit_for_bit(way: str, two_ranks: Ranks) -> None:
    for straight, resumed in two_ranks.run(checks.straight_and_resumed, 4, 3, **STATEFUL[way]):
        assert same(straight, resumed)


@pytest.mark.parametrize("way", ["ddp", "zero1", "fsdp"])
def test_state_that_does_not_fit_is_refused(way: str, two_ranks: Ranks) -> None:
    said = [
        "KeyError: the model's state lacks enter.weight",
        "KeyError: the model's state has tensors that the model does not have: other",
        "ValueError: enter.weight has shape (2, 3), the model's (8, 8)",
        "KeyError: the optimizer's state has parameters that the model does not have: other",
        "ValueError: the optimizer's exp_avg of enter.weight has shape (3,), the parameter (8, 8)",
        "ValueError: the optimizer's state of enter.weight holds momentum_buffer: it is not that of AdamW",
    ]
    # On all ranks alike, also on those that have no share of the parameter.
    assert two_ranks.run(checks.load_errors, **STATEFUL[way]) == [said, said]


@pytest.mark.parametrize("way", ["ddp", "zero1", "fsdp"])
def test_parameters_without_optimizer_state_start_without(way: str, two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.optimizer_kept_and_forgotten, **STATEFUL[way]) == [({"enter.weight"}, set())] * 2


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_shares_become_whole_and_shares_again(way: str, two_ranks: Ranks) -> None:
    found = two_ranks.run(checks.shares_and_back, **STATEFUL[way])
    model = dict(checks.build(ALONE).objective.model.named_parameters())
    parameters = {name: 2 * parameter.detach() for name, parameter in model.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    whole = sum(tensor.numel() for tensor in parameters.values())
    assert sum(one["elements"] for one in found) == (whole if way == "fsdp" else 2 * whole)
    for rank, one in enumerate(found):
        assert one["same"]
        assert same(one["whole"], parameters)
        assert one["spread_shapes"] == one["spread_model"] == shapes
        assert one["spread_optimizer"] == {name: {"step", "exp_avg", "exp_avg_sq"} for name in shapes}
        assert set(one["model"]) == (set() if way == "fsdp" and rank else set(shapes))


@pytest.mark.parametrize("reshard", [True, False])
def test_what_is_written_to_shares_counts_in_the_next_step(reshard: bool, two_ranks: Ranks) -> None:
    settings = {"parallel": "fsdp", "reshard_after_forward": reshard}
    expected = checks.loss_after_writing(ALONE)
    assert two_ranks.run(checks.loss_after_writing, **settings) == pytest.approx([expected] * 2, abs=TOLERANCE)


# --- the exchange -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["small-buckets", "zero1", "unused"])
def test_only_the_last_micro_batch_exchanges_gradients(way: str, two_ranks: Ranks) -> None:
    once = two_ranks.run(checks.rounds_per_step, 3, 1, **EXACT[way])
    assert min(min(rounds) for rounds in once) >= 1
    assert two_ranks.run(checks.rounds_per_step, 3, 4, **EXACT[way]) == once


def test_a_static_graph_is_learnt_with_one_more_exchange(two_ranks: Ranks) -> None:
    assert two_ranks.run(checks.rounds_per_step, 3, 4, static_graph=True) == [[2, 1, 1]] * 2


def test_the_wait_for_a_slow_rank_is_measured_on_the_others(two_ranks: Ranks) -> None:
    (before, fast), (_, slow) = two_ranks.run(checks.waits, steps=6, slow=1, seconds=0.2)
    assert before is None
    # A crowded machine may hold up either rank in some of the steps, but not in all of them.
    assert max(fast) > 0.15 > min(slow) >= 0


def test_ways_without_an_exchange_measure_no_wait() -> None:
    strategy = checks.build(ALONE)
    checks.train(strategy, range(1))
    assert strategy.exchange_seconds() is None


def test_data_parallel_computes_in_the_chosen_type_on_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of their own do not know which type autocast was given."""
    strategy = checks.build(ALONE, parallel="data_parallel")
    part = strategy._wrapped.module
    seen: list[torch.dtype] = []
    strategy.objective.model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))

    def in_a_thread(*inputs: Any) -> Tensor:
        with ThreadPoolExecutor(1) as threads:
            found: Tensor = threads.submit(part, *inputs).result()
        return found

    monkeypatch.setattr(strategy, "_wrapped", in_a_thread)
    for half in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=half):
            strategy.loss(checks.micro_batches(strategy, 0, 1)[0])
    strategy.loss(checks.micro_batches(strategy, 0, 1)[0])
    assert seen == [torch.float16, torch.bfloat16, torch.float32]


def test_for_cuda_graphs_gradients_lie_in_memory_of_their_own() -> None:
    """torch's error says so: allocate stable .grad buffers before the compiled backward runs."""
    strategy = checks.build(ALONE, compile="reduce-overhead")
    addresses = []
    for step in range(2):
        with strategy.accumulate(last=True):
            before = {name: gradient.data_ptr() for name, gradient in strategy.local_gradients().items()}
            strategy.loss(checks.micro_batches(strategy, step, 1)[0]).backward()
        addresses += [before, {name: gradient.data_ptr() for name, gradient in strategy.local_gradients().items()}]
        strategy.clear_gradients()
        assert all(not gradient.any() for gradient in strategy.local_gradients().values())
    assert addresses[0].keys() == strategy.local_parameters().keys()
    assert all(found == addresses[0] for found in addresses)


@pytest.mark.parametrize("broadcast", [True, False])
def test_what_is_measured_is_one_model_with_the_statistics_of_rank_0(broadcast: bool, two_ranks: Ranks) -> None:
    (main, measured), (other, also) = two_ranks.run(checks.statistics, broadcast_buffers=broadcast)
    assert difference(main, other) > 1e-4
    assert difference(measured, main) == 0
    assert difference(also, main if broadcast else other) == 0


@pytest.mark.parametrize("offload", [False, True])
def test_fsdp_measures_with_the_statistics_of_rank_0(offload: bool, two_ranks: Ranks) -> None:
    (main, measured), (other, also) = two_ranks.run(checks.statistics, parallel="fsdp", cpu_offload=offload)
    assert difference(main, other) > 1e-4
    assert difference(measured, main) == difference(also, main) == 0


def test_local_sgd_shows_all_ranks_that_one_has_gradients_that_are_not_finite(two_ranks: Ranks) -> None:
    norms = two_ranks.run(checks.norm_where_one_is_not_finite, **STATEFUL["local_sgd"])
    assert all(math.isnan(norm) for norm in norms)
