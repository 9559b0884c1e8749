"""Rows of documents: what is learnt of them, and that no document is looked at from another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.tables import table
from tests.trainer.instructions import CONTEXT, alone, documents
from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.running import settings, train
from tests.trainer.small_models import LLAMA
from trainer.checkpoints import seed_everything
from trainer.data import load_data
from trainer.errors import SettingsError, TrainerError
from trainer.models import build_model
from trainer.models.documents import separates_documents
from trainer.models.wrappers import Logits, Way
from trainer.session import PhaseSession, TrainingProgress
from trainer.tasks import build_objective
from trainer.tasks.language import LanguageObjective
from trainer.world import World

WINDOW = LLAMA | {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 512, "sliding_window": 4}
MODELS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "smollm-135m": LLAMA | {"num_key_value_heads": 1},
    # Configuration files: models whose attention, or that of some layers, has a window below the length of documents.
    "mistral.json": {"model_type": "mistral"} | WINDOW,
    "gemma2.json": {"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"]} | WINDOW,
    "gemma3.json": {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]} | WINDOW,
    # Attention that adds its mask to the scores.
    "neo.json": {
        "model_type": "gpt_neo",
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": 512,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        "max_position_embeddings": CONTEXT,
        "resid_dropout": 0,
        "embed_dropout": 0,
        "attention_dropout": 0,
    },
    "xglm.json": {
        "model_type": "xglm",
        "d_model": 32,
        "num_layers": 2,
        "attention_heads": 2,
        "ffn_dim": 64,
        "vocab_size": 512,
        "max_position_embeddings": CONTEXT,
        "dropout": 0,
        "attention_dropout": 0,
    },
}
_HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 512}
# Models that take positions and masks, but raise for such masks, or see other documents all the same.
MIXING: dict[str, dict[str, Any]] = {
    "falcon.json": {"model_type": "falcon", "alibi": True} | _HEADS,
    "gptoss.json": {"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1} | WINDOW,
}
WAYS: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "fsdp": ("--parallel", "fsdp"),
    "fsdp in bf16": ("--parallel", "fsdp", "--precision", "bf16"),
}


def flags(tokens: Path, model: str) -> list[str]:
    arguments = [
        "--task", "lm", "--data", "tokens", "--data-dir", str(tokens), "--context", str(CONTEXT), "--device", "cpu",
    ]  # fmt: skip
    if not model.endswith(".json"):
        return [*arguments, "--width", "32", "--model", model, "--model-options", json.dumps(MODELS[model])]
    config = tokens.parent / model
    config.write_text(json.dumps((MODELS | MIXING)[model]))
    return [*arguments, "--model", str(config)]


def objective(tokens: Path, model: str = "bytes") -> LanguageObjective:
    chosen = settings(*flags(tokens, model))
    torch.manual_seed(0)
    data = load_data(chosen)
    built = build_objective(chosen, data, build_model(chosen, data), ALONE)
    assert isinstance(built, LanguageObjective)
    return built


def batch(tokens: Path, first: int, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rows as they are in the files, and as the task takes them."""
    data = load_data(settings(*flags(tokens, "bytes")))
    indices = torch.arange(first, first + count).numpy()
    raw = data.train.read(indices)
    return raw, objective(tokens).transform(training=True)(raw, indices)


@table("model", MODELS)
def test_the_loss_is_that_of_the_assistants_tokens_of_each_document_alone(tokens: Path, model: str) -> None:
    task = objective(tokens, model)
    raw, fields = batch(tokens, 0, 6)
    assert len(documents(raw)) > 9
    assert raw["learn"].any()
    assert not raw["learn"].all()
    expected, count = alone(task, raw)
    assert float(task.weight(fields)) == pytest.approx(count / fields["targets"].numel())
    loss = float(expected.detach() / count)
    assert float((task(fields) / task.weight(fields)).detach()) == pytest.approx(loss, rel=1e-6)
    measured = {name: float(value) for name, value in task.measure(fields).items()}
    assert measured["count"] == count
    assert task.summary(measured)["loss"] == pytest.approx(loss)


class Leaking(torch.nn.Module):
    """Sums of embeddings and of those seen before in the document, with a share of the mean of what `sees` adds."""

    keeps_documents = True

    def __init__(self, sees: str, share: float) -> None:
        super().__init__()
        self.values = torch.nn.Embedding(64, 24)
        self.sees = sees
        self.share = share

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        values = self.values(tokens)
        places = torch.arange(tokens.shape[1])
        seen = (places <= places[:, None]).expand(len(tokens), -1, -1)
        if positions is not None:
            document = (positions == 0).cumsum(dim=1)
            seen = seen & (document[:, None] == document[:, :, None])
            if self.sees == "documents before":
                values = values + self.share * values.roll(tokens.shape[1] // 2, 1) * (document > 1)[..., None]
            if self.sees == "documents after":
                values = values + self.share * values.roll(-tokens.shape[1] // 2, 1) * (document < 2)[..., None]
        if self.sees == "later tokens":
            values = values + self.share * values.mean(dim=1, keepdim=True)
        return (seen / seen.sum(dim=-1, keepdim=True)) @ values


@given(
    sees=st.sampled_from(["documents before", "documents after", "later tokens", ""]),
    share=st.floats(0.1, 1e3),
    length=st.integers(4, 32),
    vocabulary=st.integers(8, 64),
)
def test_what_reaches_over_an_end_or_into_the_future_is_seen(
    sees: str, share: float, length: int, vocabulary: int
) -> None:
    torch.manual_seed(0)
    model = Leaking(sees, share).eval()
    assert separates_documents(model, vocabulary, length, torch.device("cpu")) == (sees == "")


@table("precision", ["fp32", "bf16"])
def test_rounding_and_a_head_of_zeros_are_no_mixing(tokens: Path, precision: str) -> None:
    task = objective(tokens, "smollm-135m").eval()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    for parameter in (None, *task.model.parameters()):
        if parameter is not None:
            parameter.detach().zero_()
        with autocast:
            assert separates_documents(task.model, 384, 13, torch.device("cpu"))


@table("model", ["neo.json", "xglm.json"])
@table("precision", ["fp32", "bf16"])
def test_a_mask_that_is_added_as_if_it_were_not_is_seen(tokens: Path, model: str, precision: str) -> None:
    network = objective(tokens, model).eval().model
    assert isinstance(network, Logits)
    assert network.way == "added mask"
    ways: tuple[Way, ...] = ("added mask", "mask")
    for way in ways:
        network.way = way
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            assert separates_documents(network, 384, 13, torch.device("cpu")) == (way == "added mask")


@table("model", [*MODELS, *MIXING])
def test_a_session_tries_its_model_and_leaves_no_trace(tokens: Path, model: str) -> None:
    chosen = settings(*flags(tokens, model))
    with PhaseSession(chosen, ALONE, 1, TrainingProgress()) as session:
        drawn = torch.rand(3)
        assert session.mixes_documents == (model in MIXING)
        assert all(module.training for module in session.built.model.modules())
        torch.manual_seed(chosen.seed)
        fresh = build_model(chosen, session.data)
        kept = {name: value.clone() for name, value in session.built.model.state_dict().items()}
        assert all(torch.equal(value, kept[name]) for name, value in fresh.state_dict().items())
        seed_everything(session._rank_seed())
        assert torch.equal(drawn, torch.rand(3))
        _, fields = batch(tokens, 0, 2)
        assert session.objective(fields).isfinite()


def mixed_and_trained(world: World, *flags: str) -> tuple[bool, bool]:
    """Whether a session's model mixes documents, and whether its loss and gradients are finite."""
    with PhaseSession(settings(*flags), world, 1, TrainingProgress()) as session:
        fields = session.objective.transform(training=True)(session.data.train.read(np.arange(2)), np.arange(2))
        session.strategy.loss(fields).backward()
        return session.mixes_documents, bool(session.strategy.clip(0).isfinite())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["xglm.json", "falcon.json", "gptoss.json"])
def test_ranks_agree_on_models_that_mix_documents(way: str, model: str, tokens: Path, two_ranks: Ranks) -> None:
    results = two_ranks.run(mixed_and_trained, *flags(tokens, model), *WAYS[way])
    assert results == [(model in MIXING, True)] * 2


def test_a_run_says_that_documents_are_mixed(tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, says in (("falcon.json", True), ("neo.json", False)):
        assert train(tmp_path / model, *flags(tokens, model), "--steps", "1", "--warmup-steps", "0") == 0
        captured = capsys.readouterr()
        assert ("attention reaches over documents' ends" in captured.out + captured.err) == says


def test_only_positions_keep_documents_apart(tokens: Path) -> None:
    task = objective(tokens).eval()
    raw, fields = batch(tokens, 0, 1)
    assert raw["begin"].sum() > 1
    changed = fields["inputs"].clone()
    changed[0, 0] = (changed[0, 0] + 7) % 256
    for arguments, is_same in (((fields["positions"],), True), ((), False)):
        last, changed_last = (task.model(inputs, *arguments)[0, -1] for inputs in (fields["inputs"], changed))
        assert torch.equal(last, changed_last) == is_same


def test_rows_are_for_the_context_and_the_task_that_they_were_prepared_for(tokens: Path) -> None:
    with pytest.raises(SettingsError, match="prepared for --context 64, not 32"):
        load_data(settings(*flags(tokens, "bytes"), "--context", "32"))
    chosen = settings("--task", "mlm", "--data", "tokens", "--data-dir", str(tokens), "--context", str(CONTEXT))
    with pytest.raises(SettingsError, match="for --task lm, not mlm"):
        build_objective(chosen, load_data(chosen), torch.nn.Identity(), ALONE)


def test_what_prepare_has_not_finished_is_refused(tokens: Path, tmp_path: Path) -> None:
    for path in tokens.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    cut = tmp_path / "train-00000.marks"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(TrainerError, match="not one mark for each token"):
        load_data(settings(*flags(tmp_path, "bytes")))
    cut.unlink()
    with pytest.raises(TrainerError, match=r"train-00000\.marks cannot be used"):
        load_data(settings(*flags(tmp_path, "bytes")))
    (tmp_path / "meta.json").unlink()
    with pytest.raises(TrainerError, match="is not finished; run python -m trainer prepare"):
        load_data(settings(*flags(tmp_path, "bytes")))
