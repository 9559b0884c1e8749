"""Ranks that share every layer of a language model train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer import parallel_checks as checks
from tests.trainer.comparing import difference, same
from tests.trainer.parallel_checks import CONTEXT
from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.tiny import TinyModel
from trainer.checkpoints import files, load, streams
from trainer.errors import SettingsError
from trainer.parallel.tensor import check_shareable

# AdamW makes more of the last bits of gradients that are nearly zero than of all others.
LOSS_TOLERANCE = 2e-6
WEIGHT_TOLERANCE = 2e-4

SHARED: dict[str, Any] = {"parallel": "fsdp", "tensor_parallel": 2}
RECOMPUTE = ("full", "operations", "selective")


def assert_gradients(kind: str, ways: list[dict[str, Any]], ranks: Ranks) -> None:
    """Those of one rank, of norms and biases too, on every rank."""
    expected_loss, expected = checks.gradients(ALONE, kind=kind)
    for way in ways:
        for loss, gradients in ranks.run(checks.gradients, kind=kind, **way, **SHARED):
            assert loss == pytest.approx(expected_loss, abs=LOSS_TOLERANCE), (kind, way)
            assert difference(gradients, expected) < LOSS_TOLERANCE, (kind, way)


def test_sharing_layers_changes_neither_losses_nor_weights(two_ranks: Ranks) -> None:
    for kind in ("llama", "bert"):
        expected = checks.train_some(ALONE, range(10), kind=kind)
        main, second = two_ranks.run(checks.train_some, range(10), kind=kind, **SHARED)
        assert expected.losses[-1] < 0.9 * expected.losses[0], kind
        assert main.losses == pytest.approx(expected.losses, abs=LOSS_TOLERANCE), kind
        assert main.norms == second.norms == pytest.approx(expected.norms, abs=LOSS_TOLERANCE), kind
        assert difference(main.model, expected.model) < WEIGHT_TOLERANCE, kind
        assert main.optimizer.keys() == expected.optimizer.keys(), kind
        for name, state in expected.optimizer.items():
            assert difference(main.optimizer[name], state) < LOSS_TOLERANCE, (kind, name)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_state_goes_on_with_and_without_shared_layers(kind: str, two_ranks: Ranks, four_ranks: Ranks) -> None:
    more = range(100, 103)
    state = checks.train_some(ALONE, range(10), kind=kind)[1:3]
    expected = checks.train_some(ALONE, more, state=state, kind=kind)
    for group in (two_ranks, four_ranks):
        outcome = group.run(checks.train_some, more, state=state, kind=kind, **SHARED)[0]
        assert outcome.losses == pytest.approx(expected.losses, abs=LOSS_TOLERANCE)
    shared = two_ranks.run(checks.train_some, range(10), kind=kind, **SHARED)[0]
    outcome = two_ranks.run(checks.train_some, more, state=shared[1:3], kind=kind, parallel="zero1")[0]
    assert outcome.losses == pytest.approx(expected.losses, abs=1e-4)
    assert difference(outcome.model, expected.model) < 1e-3


def test_every_part_of_a_sharded_checkpoint_is_written_once(four_ranks: Ranks, tmp_path: Path) -> None:
    """Also of what ranks that share layers, and take the same data, have alike, such as norms and embeddings."""
    places = four_ranks.run(checks.kind_and_place, kind="llama", **SHARED)
    assert [place[1:] for place in places] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    main = four_ranks.run(checks.save_words, tmp_path, **SHARED)[0]
    state = load(files.step_file(tmp_path, 1))
    assert same(dict(state["model"]), main[0])
    moments = {name: value["exp_avg"] for name, value in state["optimizer"].items()}
    assert same(moments, {name: value["exp_avg"] for name, value in main[1].items()})
    shards = [streams.load_file(path) for path in tmp_path.glob("*.shards/*")]
    elements = sum(piece["tensor"].numel() for shard in shards for name, piece in shard.items() if "model/" in name)
    assert elements <= sum(tensor.numel() for tensor in main[0].values())


def test_ranks_drop_different_activations_of_their_own_parts_and_the_same_of_all_others(two_ranks: Ranks) -> None:
    (inside, outside), (other_inside, other_outside) = two_ranks.run(checks.draws, 0.5)
    assert outside == other_outside
    assert len(outside) == 2
    assert not set(inside) & set(other_inside)
    assert len(set(inside)) == 4
    # A second pass gives the same gradients, as a resumed or recomputed step needs.
    assert two_ranks.run(checks.draws, 0.5)[0] == (inside, outside)
    (inside, outside), (other_inside, other_outside) = two_ranks.run(checks.draws, 0.0)
    assert (inside, outside) == (other_inside, other_outside)


def test_parts_of_sequences_give_the_gradients_of_one_rank(two_ranks: Ranks) -> None:
    assert_gradients("llama", [{"recompute": way} for way in ("none", *RECOMPUTE)], two_ranks)


@pytest.mark.long
def test_what_is_compiled_gives_the_same_gradients(two_ranks: Ranks) -> None:
    """Also where it comes from torch's cache on the disk."""
    compiled: dict[str, Any] = {"compile": "default", "compile_scope": "blocks"}
    assert_gradients("llama", [compiled, compiled], two_ranks)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_of_every_model_four_ranks_give_the_gradients_of_one(kind: str, four_ranks: Ranks) -> None:
    assert_gradients(kind, [{"recompute": way} for way in ("none", *RECOMPUTE)], four_ranks)


def test_unknown_blocks_and_sizes_that_cannot_be_shared_are_refused() -> None:
    llama = checks.words_objective("llama").model
    check_shareable(llama, 2, CONTEXT)
    check_shareable(checks.words_objective("bert").model, 4, 12)
    rows = [
        (llama, 4, CONTEXT, "--tensor-parallel 4 does not divide num_key_value_heads, 2"),
        (llama, 2, 15, "--tensor-parallel 2 does not divide --context, 15"),
        (checks.words_objective("gpt2").model, 2, CONTEXT, "knows the layers of"),
        (TinyModel(), 2, CONTEXT, "knows the layers of"),
    ]
    for model, ranks, context, message in rows:
        with pytest.raises(SettingsError, match=message):
            check_shareable(model, ranks, context)
