"""Networks from a person's own function and from Hugging Face configuration files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.small_models import images, inputs, text
from trainer.config import Settings
from trainer.data.contract import Data
from trainer.errors import SettingsError, TrainerError
from trainer.models import build_model

CALLS: list[dict[str, Any]] = []


def by_facts(image_shape: tuple[int, int, int], classes: int, *, hidden: int = 4) -> nn.Module:
    size = image_shape[0] * image_shape[1] * image_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.Linear(hidden, classes))


def with_everything(**given: Any) -> nn.Module:
    CALLS.append(given)
    return nn.Identity()


def with_needs(classes: int, layers: int) -> nn.Module:
    return nn.Linear(layers, classes)


def no_module() -> str:
    return "a string"


class Answer:
    def __init__(self, logits: Any) -> None:
        self.logits = logits


class Answering(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return {"output": Answer(x + 1), "tuple": (x + 1, None), "nothing": Answer(None)}[self.kind]


def answering(kind: str) -> nn.Module:
    return Answering(kind)


not_callable = 3


def own(function: str, task: str = "classify", **changes: Any) -> Settings:
    return Settings(**{"task": task, "model": f"{__name__}:{function}", **changes})


def test_a_function_gets_the_facts_that_it_takes() -> None:
    data = images(3, 8, 8, 4)
    model = build_model(own("by_facts", model_options={"hidden": 6}), data)
    assert model(inputs(data)).shape == (3, 4)
    assert sum(parameter.numel() for parameter in model.parameters()) == 192 * 6 + 6 + 6 * 4 + 4


@pytest.mark.parametrize(
    ("task", "data", "facts"),
    [
        ("classify", images(1, 9, 8, 3), {"image_shape": (1, 9, 8), "classes": 3}),
        ("contrastive", images(1, 9, 8, 3), {"image_shape": (1, 9, 8), "classes": 3, "embedding_size": 64}),
        ("lm", text(40, 16), {"vocabulary": 40, "context": 16}),
        ("mlm", text(40, 16), {"vocabulary": 41, "context": 16}),  # with the mask
    ],
)
def test_a_function_that_takes_anything_gets_all(task: str, data: Data, facts: dict[str, Any]) -> None:
    build_model(own("with_everything", task, model_options={"further": 1}), data)
    assert CALLS.pop() == {"task": task, **facts, "further": 1}


@pytest.mark.parametrize("kind", ["output", "tuple"])
def test_outputs_of_other_kinds_become_tensors(kind: str) -> None:
    model = build_model(own("answering", model_options={"kind": kind}), images())
    assert torch.equal(model(torch.zeros(2)), torch.ones(2))


def test_an_output_without_a_tensor_is_named() -> None:
    model = build_model(own("answering", model_options={"kind": "nothing"}), images())
    with pytest.raises(TrainerError, match="the model returns Answer, not a tensor"):
        model(torch.zeros(2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (own("by_fact"), "has no function 'by_fact'; did you mean by_facts?"),
        (own("zzz"), "has no function 'zzz'"),
        (own("not_callable"), "has no function 'not_callable'"),
        (Settings(model="tests.no_such_module:make"), "no module named tests.no_such_module"),
        (Settings(model=":make"), "'' is no module's name (for :make)"),
        (Settings(model=".models:make"), "'.models' is no module's name (for .models:make)"),
        (own("by_facts", model_options={"hiden": 6}), "has no hiden; did you mean hidden?"),
        (own("with_needs"), "with_needs needs layers; give it in model_options"),
        (own("no_module"), "returned str, not a torch.nn.Module"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(settings: Settings, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        build_model(settings, images())
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_import_of_the_persons_own_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_networks.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        build_model(Settings(model="own_networks:make"), images())
    assert "own_networks" not in sys.modules


# --- configuration files ----------------------------------------------------------------------------------------------

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 90,
        "intermediate_size": 64, "max_position_embeddings": 16}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "vocab_size": 90, "torch_dtype": "bfloat16"}  # fmt: skip
CONVNEXT = {"model_type": "convnext", "hidden_sizes": [8, 8, 8, 12], "depths": [1, 1, 1, 1], "num_labels": 7}
VIT = {"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8,
       "intermediate_size": 64}  # fmt: skip
MOBILE = {"model_type": "mobilenet_v1"}


def from_file(folder: Path, config: Any, task: str, **changes: Any) -> Settings:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return Settings(**{"task": task, "model": str(path), **changes})


@pytest.mark.parametrize("config", [CONVNEXT, VIT])
@pytest.mark.parametrize("task", ["classify", "contrastive"])
def test_a_file_for_images_takes_shape_and_classes_from_the_data(tmp_path: Path, config: Any, task: str) -> None:
    data = images(1, 32, 32, 5)
    model = build_model(from_file(tmp_path, config, task, embedding_size=6), data)
    assert model(inputs(data)).shape == (3, 5 if task == "classify" else 6)


@pytest.mark.parametrize(("config", "task"), [(BERT, "mlm"), (LLAMA, "lm"), (BERT, "lm")])
def test_a_file_for_text(tmp_path: Path, config: Any, task: str) -> None:
    data = text(64, 16)
    model = build_model(from_file(tmp_path, config, task), data)
    logits = model(inputs(data))
    assert logits.shape == (3, 16, 90)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    tokens = inputs(data, 1)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 64
    sees_ahead = not torch.allclose(model.eval()(tokens)[0, :9], model(changed)[0, :9])
    assert sees_ahead == (task == "mlm")


def test_options_change_a_file(tmp_path: Path) -> None:
    small = build_model(from_file(tmp_path, LLAMA, "lm"), text(64, 16))
    wide = build_model(from_file(tmp_path, LLAMA, "lm", model_options={"num_hidden_layers": 3}), text(64, 16))
    assert len(wide.state_dict()) > len(small.state_dict())


@pytest.mark.parametrize(
    ("config", "task", "changes", "words"),
    [
        ("{", "lm", {}, "is no JSON"),
        ("[]", "lm", {}, "unknown model_type None"),
        ({"model_type": "lama"}, "lm", {}, "unknown model_type 'lama'; did you mean llama?"),
        (LLAMA, "mlm", {}, "describes llama, which cannot do mlm"),
        (LLAMA, "lm", {"context": 8192}, "max_position_embeddings is 2048, but the data needs at least 8192"),
        ({**BERT, "vocab_size": 64}, "mlm", {}, "vocab_size is 64, but the data needs at least 65"),
        (BERT, "mlm", {"model_options": {"hiden_size": 8}}, "bert has no hiden_size; did you mean hidden_size?"),
        ({**BERT, "hidden_size": 33}, "mlm", {}, "config.json: The hidden size (33) is not a multiple"),
        ({**BERT, "hidden_size": "wide"}, "mlm", {}, "config.json: Validation error for field 'hidden_size'"),
        (VIT, "classify", {"model_options": {"image_size": 8}}, "image_size cannot be set, it follows from the data"),
        (MOBILE, "contrastive", {}, "does not tell the size of its features; use package.module:function"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, config: Any, task: str, changes: dict[str, Any], words: str
) -> None:
    settings = from_file(tmp_path, config, task, **changes)
    data = images(3, 32, 32) if task in ("classify", "contrastive") else text(64, settings.context if changes else 16)
    with pytest.raises(SettingsError) as error:
        build_model(settings, data)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.json: No such file"):
        build_model(Settings(model=str(tmp_path / "none.json")), images())


def test_code_that_a_file_names_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("raise SystemExit('ran')\n")
    unknown = {"model_type": "unknown", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    with pytest.raises(SettingsError, match="unknown model_type 'unknown'"):
        build_model(from_file(tmp_path, unknown, "lm"), text())
    known = {**LLAMA, "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    assert type(build_model(from_file(tmp_path, known, "lm"), text(64, 16)).inner).__name__ == "LlamaForCausalLM"
