"""Ranks that share every layer of a language model train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer import parallel_checks as checks
from tests.trainer.parallel_checks import ALONE, CONTEXT
from tests.trainer.ranks import Ranks
from tests.trainer.test_parallel import difference, same
from tests.trainer.tiny import TinyModel
from trainer.checkpoints import files, load
from trainer.errors import SettingsError
from trainer.parallel.tensor import check_shareable

# AdamW makes more of the last bits of gradients that are nearly zero than of all others.
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 2e-6, 2e-4

SHARED: dict[str, Any] = {"parallel": "fsdp", "tensor_parallel": 2}
RECOMPUTE = ("full", "operations", "selective")


def test_sharing_layers_changes_neither_losses_nor_weights(two_ranks: Ranks) -> None:
    for kind in ("llama", "bert"):
        losses, model, optimizer, norms = checks.train_words(ALONE, kind, 10)
        main, other = two_ranks.run(checks.train_words, kind, 10, **SHARED)
        assert losses[-1] < 0.9 * losses[0], kind
        assert main[0] == pytest.approx(losses, abs=LOSS_TOLERANCE), kind
        assert main[3] == other[3] == pytest.approx(norms, abs=LOSS_TOLERANCE), kind
        assert difference(main[1], model) < WEIGHT_TOLERANCE, kind
        assert main[2].keys() == optimizer.keys(), kind
        for name, state in optimizer.items():
            assert difference(main[2][name], state) < LOSS_TOLERANCE, (kind, name)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_state_goes_on_with_and_without_shared_layers(kind: str, two_ranks: Ranks, four_ranks: Ranks) -> None:
    _, model, optimizer, _ = checks.train_words(ALONE, kind, 10)
    losses, expected, _, _ = checks.train_words(ALONE, kind, 3, state=(model, optimizer))
    for group in (two_ranks, four_ranks):
        found, _, _, _ = group.run(checks.train_words, kind, 3, state=(model, optimizer), **SHARED)[0]
        assert found == pytest.approx(losses, abs=LOSS_TOLERANCE)
    shared = two_ranks.run(checks.train_words, kind, 10, **SHARED)[0]
    found, result, _, _ = two_ranks.run(checks.train_words, kind, 3, state=shared[1:3], parallel="zero1")[0]
    assert found == pytest.approx(losses, abs=1e-4)
    assert difference(result, expected) < 1e-3


def test_every_part_of_a_sharded_checkpoint_is_written_once(four_ranks: Ranks, tmp_path: Path) -> None:
    """Also of what ranks that share layers, and take the same data, have alike, such as norms and embeddings."""
    assert four_ranks.run(checks.data_place, **SHARED) == [(0, 2), (0, 2), (1, 2), (1, 2)]
    main = four_ranks.run(checks.save_words, "llama", tmp_path, **SHARED)[0]
    state = load(files.step_file(tmp_path, 1))
    assert same(dict(state["model"]), main[0])
    moments = {name: value["exp_avg"] for name, value in state["optimizer"].items()}
    assert same(moments, {name: value["exp_avg"] for name, value in main[1].items()})
    shards = [files.load_file(path) for path in tmp_path.glob("*.shards/*")]
    elements = sum(piece["tensor"].numel() for shard in shards for name, piece in shard.items() if "model/" in name)
    assert elements <= sum(tensor.numel() for tensor in main[0].values())


def test_ranks_drop_different_activations_of_their_own_parts_and_the_same_of_all_others(two_ranks: Ranks) -> None:
    (inside, outside), (other_inside, other_outside) = two_ranks.run(checks.draws, 0.5)
    assert outside == other_outside and len(outside) == 2
    assert not set(inside) & set(other_inside) and len(set(inside)) == 4
    # And the same again, as a resumed or a recomputed step needs them.
    assert two_ranks.run(checks.draws, 0.5)[0] == (inside, outside)
    (inside, outside), (other_inside, other_outside) = two_ranks.run(checks.draws, 0.0)
    assert (inside, outside) == (other_inside, other_outside)


def assert_gradients(kind: str, ways: list[dict[str, Any]], ranks: Ranks) -> None:
    """Those of one rank, of norms and biases too, on every rank."""
    expected = checks.words_step(ALONE, kind)
    for way in ways:
        for step in ranks.run(checks.words_step, kind, **way, **SHARED):
            assert step.loss == pytest.approx(expected.loss, abs=LOSS_TOLERANCE), (kind, way)
            assert difference(step.gradients, expected.gradients) < LOSS_TOLERANCE, (kind, way)


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
