"""Networks by name: shapes, sizes, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.tables import table
from tests.trainer.small_models import SMALL, images, inputs, small_settings, text
from trainer.config import Settings
from trainer.data.contract import Data, Images, Text
from trainer.errors import SettingsError
from trainer.models import build, build_model


def small(name: str, **options: Any) -> tuple[Settings, Data]:
    return small_settings(name, model_options=options), SMALL[name][1]


@table("name", SMALL)
def test_each_named_network_maps_samples_to_logits(name: str) -> None:
    _, data, _ = SMALL[name]
    model = build_model(small_settings(name), data)
    assert model.training
    logits = model(inputs(data))
    if isinstance(data, Images):
        assert logits.shape == (3, len(data.classes))
    else:
        assert logits.shape[:2] == (3, data.context)
        assert logits.shape[2] >= data.vocabulary
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for dropout in (0.0, 0.5):
        model = build_model(small_settings(name, dropout=dropout), data)
        same = torch.equal(model(inputs(data)), model(inputs(data)))
        assert same == (dropout == 0 or name.startswith("resnet"))


@table(
    ("name", "data", "options", "parameters"),
    [
        # Counted without the trainer, from the classes of transformers themselves; 1000 classes.
        ("resnet18", images(3, 224, 224, 1000), {}, 11_689_512),
        ("resnet50", images(3, 224, 224, 1000), {}, 25_557_032),
        ("vit-b16", images(3, 224, 224, 1000), {}, 86_567_656),
        ("gpt2", text(50257, 1024), {"vocab_size": 50257}, 124_439_808),
        ("smollm-135m", text(49152, 2048), {}, 134_515_008),
        ("bert-base", text(30521, 512), {"vocab_size": 30522}, 109_514_298),
    ],
)
def test_full_sizes_have_the_published_numbers_of_parameters(
    name: str, data: Data, options: dict[str, Any], parameters: int
) -> None:
    model = build(small_settings(name, model_options=options), data, sharded=True).model
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@table("name", ["bytes", "gpt2", "smollm-135m", "bert-large"])
def test_only_masked_models_look_ahead_and_know_the_mask(name: str) -> None:
    task, data, _ = SMALL[name]
    assert isinstance(data, Text)
    model = build_model(small_settings(name), data).eval()
    tokens = inputs(data, 1)
    changed = tokens.clone()
    changed[0, 9] = data.vocabulary if task == "mlm" else (changed[0, 9] + 1) % 64  # the mask comes after the tokens
    before = model(tokens)
    after = model(changed)
    assert torch.equal(before[0, :9], after[0, :9]) == (task == "lm")
    assert not torch.allclose(before[0, 9:], after[0, 9:])


@table("name", ["vit-b16", "gpt2", "smollm-135m", "bert-base", "bytes"])
def test_attention_takes_no_mask_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast kernels know whole and causal windows only."""
    calls: list[tuple[Any, Any]] = []
    attention = functional.scaled_dot_product_attention

    def counted(*args: Any, attn_mask: Any = None, is_causal: bool = False, **further: Any) -> torch.Tensor:
        calls.append((attn_mask, is_causal))
        return attention(*args, attn_mask=attn_mask, is_causal=is_causal, **further)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    data = SMALL[name][1]
    build_model(small_settings(name), data)(inputs(data))
    assert calls == [(None, SMALL[name][0] == "lm")] * 3


@table("name", ["gpt2", "smollm-135m", "bert-base", "bytes"])
def test_a_language_model_is_compiled_as_one_graph(name: str) -> None:
    data = SMALL[name][1]
    explanation = torch._dynamo.explain(build_model(small_settings(name), data))(inputs(data))
    assert explanation.graph_break_count == 0


# --- what is refused --------------------------------------------------------------------------------------------------


@table(
    ("settings", "data", "phrase"),
    [
        (Settings(model="resnet5"), images(), "resnet5 is no model for classify; did you mean resnet50?"),
        (Settings(model="gpt2"), images(), "gpt2 is no model for classify; use cnn, resnet18"),
        (Settings(task="lm", model="bert-base"), text(), "bert-base is no model for lm; use bytes, gpt2"),
        (Settings(task="lm"), images(), "--task lm cannot learn from --data auto"),
        (Settings(task="classify"), text(), "--task classify cannot learn from --data auto"),
        (Settings(), images(1, 8, 7), "cnn needs images of 8x8 pixels or more, not (8, 7)"),
        (Settings(model_options={"width": 8}), images(), "cnn has none; set width, depth and dropout"),
        (Settings(model="vit-b16"), images(3, 223, 223), "patches of 1 do not suit 223x223"),
        (*small("vit-b16", patch_size=5), "patches of 5 do not suit 28x28"),
        (*small("vit-b16", hidden_sise=8), "vit has no hidden_sise; did you mean hidden_size?"),
        (*small("resnet18", num_labels=3), "num_labels cannot be set, it follows from the data"),
        (*small("resnet18", depths="deep"), "model or model_options: Validation error for field 'depths'"),
        (*small("gpt2", vocab_size=299), "vocab_size is 299, but the data needs at least 300"),
        (*small("gpt2", n_positions=8), "max_position_embeddings is 8, but the data needs at least 16"),
    ],
)
def test_refusals_are_one_line(settings: Settings, data: Data, phrase: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(phrase)) as error:
        build_model(settings, data)
    assert "\n" not in str(error.value)
