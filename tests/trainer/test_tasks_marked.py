"""Rows of documents: what is learnt of them, and that no document is looked at from another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tables import table
from tests.trainer.instructions import CONTEXT, alone, documents
from tests.trainer.ranks import ALONE
from tests.trainer.running import settings
from tests.trainer.small_models import LLAMA
from trainer.data import load_data
from trainer.errors import SettingsError, TrainerError
from trainer.models import build_model
from trainer.tasks import build_objective
from trainer.tasks.language import LanguageObjective

WINDOW = LLAMA | {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 512, "sliding_window": 4}
MODELS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "smollm-135m": LLAMA | {"num_key_value_heads": 1},
    # Configuration files: models whose attention, or that of some layers, has a window below the length of documents.
    "mistral.json": {"model_type": "mistral"} | WINDOW,
    "gemma2.json": {"model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention"]} | WINDOW,
    "gemma3.json": {"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]} | WINDOW,
}


def flags(tokens: Path, model: str) -> list[str]:
    arguments = [
        "--task", "lm", "--data", "tokens", "--data-dir", str(tokens), "--context", str(CONTEXT), "--device", "cpu",
    ]  # fmt: skip
    if not model.endswith(".json"):
        return [*arguments, "--width", "32", "--model", model, "--model-options", json.dumps(MODELS[model])]
    config = tokens.parent / model
    config.write_text(json.dumps(MODELS[model]))
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
