"""Ranks that share every layer of a language model train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.trainer import parallel_checks as checks
from tests.trainer.parallel_checks import ALONE, CONTEXT
from tests.trainer.ranks import Ranks
from tests.trainer.test_parallel import difference, same
from tests.trainer.tiny import TinyModel
from trainer.checkpoints import files, load, names
from trainer.errors import SettingsError
from trainer.parallel.sequence import splits_sequences
from trainer.parallel.tensor import plan

# AdamW makes more of the last bits of gradients that are nearly zero than of all others.
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 2e-6, 2e-4

SHARED: dict[str, Any] = {"parallel": "fsdp", "tensor_parallel": 2}
RECOMPUTE = ("full", "operations", "selective")


def test_sharing_layers_changes_neither_losses_nor_weights(two_ranks: Ranks) -> None:
    for kind in ("llama", "bert", "gpt2"):
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
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
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
    main = four_ranks.run(checks.save_words, "gpt2", tmp_path, **SHARED)[0]
    state = load(names.step_file(tmp_path, 1))
    assert same(dict(state["model"]), main[0])
    moments = {name: value["exp_avg"] for name, value in state["optimizer"].items()}
    assert same(moments, {name: value["exp_avg"] for name, value in main[1].items()})
    shards = [files.load(path) for path in tmp_path.glob("*.shards/*")]
    elements = sum(piece["tensor"].numel() for shard in shards for name, piece in shard.items() if "model/" in name)
    assert elements <= sum(tensor.numel() for tensor in main[0].values())


def test_ranks_drop_different_activations_of_their_own_parts_and_the_same_of_all_others(two_ranks: Ranks) -> None:
    (inside, outside), (other_inside, other_outside) = two_ranks.run(checks.draws, 0.5)
    assert outside == other_outside and len(outside) == 4
    assert not set(inside) & set(other_inside) and len(set(inside)) == 4
    # And the same again, as a resumed or a recomputed step needs them.
    assert two_ranks.run(checks.draws, 0.5)[0] == (inside, outside)
    (inside, outside), (other_inside, other_outside) = two_ranks.run(checks.draws, 0.0)
    assert (inside, outside) == (other_inside, other_outside)


def assert_gradients(kind: str, length: int, ways: list[dict[str, Any]], ranks: Ranks) -> None:
    """Those of one rank, of norms and biases too, on every rank."""
    expected = checks.words_step(ALONE, kind, length)
    for way in ways:
        for step in ranks.run(checks.words_step, kind, length, **way, **SHARED):
            assert step.loss == pytest.approx(expected.loss, abs=LOSS_TOLERANCE), (kind, way)
            assert difference(step.gradients, expected.gradients) < LOSS_TOLERANCE, (kind, way)


def test_a_length_that_is_split_and_one_that_is_not_give_the_gradients_of_one_rank(two_ranks: Ranks) -> None:
    assert_gradients("gpt2", CONTEXT, [{"recompute": way} for way in ("none", *RECOMPUTE)], two_ranks)
    assert_gradients("gpt2", CONTEXT - 1, [{}], two_ranks)


@pytest.mark.long
def test_what_is_compiled_gives_the_same_gradients(two_ranks: Ranks) -> None:
    """Also where it comes from torch's cache on the disk."""
    compiled: dict[str, Any] = {"compile": "default", "compile_scope": "blocks"}
    assert_gradients("gpt2", CONTEXT, [compiled, compiled], two_ranks)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2"])
def test_of_every_model_four_ranks_give_the_gradients_of_one(kind: str, four_ranks: Ranks) -> None:
    assert_gradients(kind, CONTEXT, [{"recompute": way} for way in ("none", *RECOMPUTE)], four_ranks)


@pytest.mark.long
def test_less_is_kept_for_backward(two_ranks: Ranks) -> None:
    for kind, most in (("llama", 0.85), ("gpt2", 0.9), ("bert", 0.92)):
        steps = two_ranks.run(checks.words_step, kind, **SHARED)
        whole = two_ranks.run(checks.words_step, kind, split=False, **SHARED)
        assert {step.kept_bytes for step in steps} == {steps[0].kept_bytes}, kind
        assert steps[0].kept_bytes < most * whole[0].kept_bytes, kind


def test_only_blocks_that_are_known_split_sequences() -> None:
    for kind in ("llama", "gpt2", "bert"):
        assert splits_sequences(checks.words_objective(kind).model)
    in_chunks = checks.words_objective("bert").model
    for module in in_chunks.modules():
        if hasattr(module, "chunk_size_feed_forward"):
            module.chunk_size_feed_forward = 2
    assert not splits_sequences(in_chunks)
    assert not splits_sequences(TinyModel()) and not splits_sequences(nn.Linear(2, 2))


def test_the_plan_names_both_halves_of_every_pair() -> None:
    llama = plan(checks.words_objective("llama").model, 2)
    block = "inner.model.layers.0."
    assert {name.removeprefix(block): cut for name, cut in llama.items() if name.startswith(block)} == {
        "self_attn.q_proj": "outputs",
        "self_attn.k_proj": "outputs",
        "self_attn.v_proj": "outputs",
        "self_attn.o_proj": "inputs",
        "mlp.gate_proj": "outputs",
        "mlp.up_proj": "outputs",
        "mlp.down_proj": "inputs",
    }
    assert len(llama) == 14 and len(plan(checks.words_objective("bert").model, 2)) == 12
    gpt2 = plan(checks.words_objective("gpt2").model, 2)
    assert {name.removeprefix("inner.transformer.h.0."): cut for name, cut in gpt2.items() if ".0." in name} == {
        "attn.c_attn": "strips",
        "attn.c_proj": "inputs",
        "mlp.c_fc": "outputs",
        "mlp.c_proj": "inputs",
    }


def test_parameters_between_shared_layers_are_refused() -> None:
    attention = {name: nn.Linear(8, 8) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    plan(nn.ModuleDict({"self_attn": nn.ModuleDict(attention)}), 2)
    with pytest.raises(SettingsError, match=r"self_attn\.q_norm\.weight"):
        plan(nn.ModuleDict({"self_attn": nn.ModuleDict({**attention, "q_norm": nn.LayerNorm(8)})}), 2)


def test_widths_must_be_divisible() -> None:
    with pytest.raises(SettingsError, match="--tensor-parallel 4 does not divide the model's num_key_value_heads, 2"):
        plan(checks.words_objective("llama").model, 4)
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"up_proj": nn.Linear(8, 6), "down_proj": nn.Linear(6, 8)})})
    assert plan(model, 3) == {"mlp.up_proj": "outputs", "mlp.down_proj": "inputs"}
    with pytest.raises(SettingsError, match=r"--tensor-parallel 4 does not divide the 6 outputs of mlp\.up_proj"):
        plan(model, 4)
    with pytest.raises(SettingsError, match="no layers to share"):
        plan(TinyModel(), 2)
