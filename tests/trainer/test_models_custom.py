"""Networks from a person's own function and from Hugging Face configuration files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.tables import table
from tests.trainer.small_models import images, inputs, text
from trainer.config import Settings
from trainer.data.contract import Data
from trainer.errors import SettingsError
from trainer.models import build_model

CALLS: list[dict[str, Any]] = []
BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 90,
        "intermediate_size": 64, "max_position_embeddings": 16}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "vocab_size": 90, "torch_dtype": "bfloat16"}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8,
       "intermediate_size": 64}  # fmt: skip
MOBILE = {"model_type": "mobilenet_v1"}


def by_facts(image_shape: tuple[int, int, int], classes: int, *, hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image_shape), hidden), nn.Linear(hidden, classes))


def with_everything(**options: Any) -> nn.Module:
    CALLS.append(options)
    return nn.Identity()


def with_needs(classes: int, layers: int) -> nn.Module:
    return nn.Linear(layers, classes)


def with_a_mistake(classes: int, layers: int = 1) -> nn.Module:
    return nn.Linear(layers, classes + "more")  # type: ignore[operator]


def no_module() -> str:
    return "a string"


not_callable = 3


def custom_model(function: str, task: str = "classify", **changes: Any) -> Settings:
    return Settings(**{"task": task, "model": f"{__name__}:{function}", **changes})


def from_file(folder: Path, config: Any, task: str, **changes: Any) -> Settings:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return Settings(**{"task": task, "model": str(path), **changes})


@table(
    ("task", "data", "facts"),
    [
        ("contrastive", images(1, 9, 8, 3), {"image_shape": (1, 9, 8), "classes": 3, "embedding_size": 64}),
        ("lm", text(40, 16), {"vocabulary": 40, "context": 16}),
        ("mlm", text(40, 16), {"vocabulary": 41, "context": 16}),  # with the mask
    ],
)
def test_a_function_gets_the_facts_that_it_takes(task: str, data: Data, facts: dict[str, Any]) -> None:
    build_model(custom_model("with_everything", task, model_options={"further": 1}), data)
    assert CALLS.pop() == {"task": task, **facts, "further": 1}
    model = build_model(custom_model("by_facts", model_options={"hidden": 6}), images(3, 8, 8, 4))
    assert model(inputs(images(3, 8, 8, 4))).shape == (3, 4)
    assert sum(parameter.numel() for parameter in model.parameters()) == 192 * 6 + 6 + 6 * 4 + 4


@table(
    ("settings", "phrase"),
    [
        (custom_model("by_fact"), "has no attribute 'by_fact'"),
        (custom_model("not_callable"), "3 is not a callable object"),
        (Settings(model="tests.no_such_module:make"), "No module named 'tests.no_such_module'"),
        (custom_model("by_facts", model_options={"hiden": 6}), "has no hiden; did you mean hidden?"),
        (custom_model("with_needs"), "with_needs: missing a required argument: 'layers'; give it in model_options"),
        (custom_model("with_a_mistake"), "with_a_mistake: it fails: TypeError: unsupported operand type"),
        (custom_model("no_module"), "returned str, not a torch.nn.Module"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(settings: Settings, phrase: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(phrase)):
        build_model(settings, images())


# --- configuration files ----------------------------------------------------------------------------------------------


@table(("config", "task"), [(BERT, "mlm"), (LLAMA, "lm"), (BERT, "lm")])
def test_a_file_for_text(tmp_path: Path, config: Any, task: str) -> None:
    data = text(64, 16)
    model = build_model(from_file(tmp_path, config, task), data).eval()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    tokens = inputs(data, 1)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 64
    before = model(tokens)
    after = model(changed)
    assert before.shape == (1, 16, 90)
    assert torch.allclose(before[0, :9], after[0, :9]) == (task == "lm")


@table(
    ("config", "task", "changes", "phrase"),
    [
        ("{", "lm", {}, "is no configuration: Expecting property name"),
        ("[]", "lm", {}, "is no configuration"),
        ({"model_type": "lama"}, "lm", {}, "unknown model_type 'lama'; did you mean llama?"),
        (LLAMA, "mlm", {}, "describes llama, which cannot do mlm"),
        (LLAMA, "lm", {"context": 8192}, "max_position_embeddings is 2048, but the data needs at least 8192"),
        (BERT, "mlm", {"model_options": {"hiden_size": 8}}, "bert has no hiden_size; did you mean hidden_size?"),
        ({**BERT, "hidden_size": 33}, "mlm", {}, "The hidden size (33) is not a multiple"),
        (VIT, "classify", {"model_options": {"image_size": 8}}, "image_size cannot be set, it follows from the data"),
        (MOBILE, "contrastive", {}, "does not tell the size of its features"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, config: Any, task: str, changes: dict[str, Any], phrase: str
) -> None:
    settings = from_file(tmp_path, config, task, **changes)
    data = images(3, 32, 32) if task in ("classify", "contrastive") else text(64, settings.context if changes else 16)
    with pytest.raises(SettingsError, match=re.escape(phrase)) as error:
        build_model(settings, data)
    assert "\n" not in str(error.value)


def test_code_that_a_file_names_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("raise SystemExit('ran')\n")
    unknown = {"model_type": "unknown", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    with pytest.raises(SettingsError, match="unknown model_type 'unknown'"):
        build_model(from_file(tmp_path, unknown, "lm"), text())
    options = {**LLAMA, "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    assert type(build_model(from_file(tmp_path, options, "lm"), text(64, 16)).inner).__name__ == "LlamaForCausalLM"
