"""Fine-tuning from a folder of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.tables import table
from tests.trainer.small_models import LLAMA, SMALL, images, inputs, small_settings, text
from trainer.errors import TrainerError
from trainer.models import Built, build, build_model
from trainer.models.weights import load_weights
from trainer.models.wrappers import Logits


def saved(folder: Path, name: str, data: Any = None, **changes: Any) -> nn.Module:
    """A network with weights of its own, which the folder then holds as transformers saves it."""
    torch.manual_seed(7)
    model: Any = build_model(small_settings(name, **changes), data or SMALL[name][1])
    inner = getattr(model, "inner", model)
    if hasattr(inner, "save_pretrained"):
        inner.save_pretrained(folder)
    else:
        save_file(inner.state_dict(), folder / "model.safetensors")
    return inner


def tuned(folder: Path, name: str, data: Any = None, **changes: Any) -> Built:
    torch.manual_seed(8)
    return build(small_settings(name, weights=folder, **changes), data or SMALL[name][1])


def inner(built: Built) -> dict[str, Tensor]:
    model: Any = built.model
    return getattr(model, "inner", model).state_dict()


@table("name", ["cnn", "bytes", "resnet18", "resnet50", "vit-b16", "gpt2", "smollm-135m", "bert-base"])
def test_every_tensor_is_taken_over(tmp_path: Path, name: str) -> None:
    source = saved(tmp_path, name).state_dict()
    for mode in ("none", "full"):
        built = tuned(tmp_path, name, gradient_checkpointing=mode)
        assert built.fresh == ()
        loaded = inner(built)
        assert loaded.keys() == source.keys()
        assert all(torch.equal(loaded[key], source[key]) for key in source)
        assert built.model.training


@table(("name", "head"), [("cnn", "head."), ("resnet18", "inner.classifier."), ("vit-b16", "inner.classifier.")])
def test_a_head_for_other_classes_starts_afresh(tmp_path: Path, name: str, head: str) -> None:
    channels, height, width = SMALL[name][1].shape  # type: ignore[union-attr]
    data = images(channels, height, width, 4)
    source = saved(tmp_path, name).state_dict()
    built = tuned(tmp_path, name, data)
    torch.manual_seed(8)
    fresh = build_model(small_settings(name), data).state_dict()
    assert len(built.fresh) == 2
    assert all(key.startswith(head) for key in built.fresh)
    for key, tensor in built.model.state_dict().items():
        if key in built.fresh:
            assert torch.equal(tensor, fresh[key])
        else:
            assert torch.equal(tensor, source[key.removeprefix("inner.")])
    assert built.model(inputs(data)).shape == (3, 4)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    source = saved(tmp_path, "bytes").state_dict()
    (tmp_path / "model.safetensors").unlink()
    names = list(source)
    index = {}
    for number, part in enumerate((names[:5], names[5:])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: source[name] for name in part}, tmp_path / file)
        index |= dict.fromkeys(part, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = inner(tuned(tmp_path, "bytes"))
    assert all(torch.equal(loaded[name], source[name]) for name in source)


@table(("size_of_source", "here"), [(257, 290), (320, 257)])
def test_vocabularies_may_differ_by_their_padding(tmp_path: Path, size_of_source: int, here: int) -> None:
    options = SMALL["gpt2"][2]
    source = saved(
        tmp_path, "gpt2", text(200, 16), model_options={**options, "vocab_size": size_of_source}
    ).state_dict()
    built = tuned(tmp_path, "gpt2", text(200, 16), model_options={**options, "vocab_size": here})
    assert built.fresh == ()
    rows = min(size_of_source, here)
    assert torch.equal(inner(built)["transformer.wte.weight"][:rows], source["transformer.wte.weight"][:rows])
    assert built.model.inner.lm_head.weight is built.model.inner.transformer.wte.weight


@table("name", ["bytes", "gpt2", "bert-base"])
def test_a_shorter_context_takes_the_first_positions(tmp_path: Path, name: str) -> None:
    vocabulary = SMALL[name][1].vocabulary  # type: ignore[union-attr]
    source = saved(tmp_path, name, text(vocabulary, 24)).state_dict()
    built = tuned(tmp_path, name)
    loaded = inner(built)
    [table] = (key for key, tensor in loaded.items() if tensor.shape != source[key].shape)
    assert built.fresh == ()
    assert torch.equal(loaded[table], source[table][:16])
    with pytest.raises(TrainerError, match=r"\(24, 32\), the model's \(48, 32\)"):
        tuned(tmp_path, name, text(vocabulary, 48))


# --- what is refused --------------------------------------------------------------------------------------------------


@table(
    ("name", "lost"),
    [("cnn", "stem.weight"), ("resnet18", "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight")],
)
def test_missing_and_unexpected_tensors_are_named(tmp_path: Path, name: str, lost: str) -> None:
    tensors = saved(tmp_path, name).state_dict()
    del tensors[lost]
    extra = {lost.replace("weight", f"more{n}"): torch.zeros(1) for n in range(3)}
    for stored, phrase in ((tensors, f"{lost} is missing"), (tensors | extra, "more0 is not in the model")):
        save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(TrainerError, match=f"weights: {tmp_path} does not fit the model: .*{phrase}") as error:
            tuned(tmp_path, name)
    assert str(error.value).endswith(" and 1 more")


@table("name", ["cnn", "gpt2"])
def test_damaged_and_other_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    saved(tmp_path, name)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TrainerError, match="cannot be read") as error:
        tuned(tmp_path, name)
    assert "\n" not in str(error.value)
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(TrainerError, match=r"cannot be read: .*model\.safetensors"):
        tuned(tmp_path, name)


def test_below_a_head_nothing_may_be_missing_in_whatever_network(tmp_path: Path) -> None:
    lost = "embedder.embedder.convolution.weight"
    saved(tmp_path, "resnet18")
    backbone = tuned(tmp_path, "resnet18", task="contrastive")
    assert all(name.startswith("projection.") for name in backbone.fresh), "the head of the folder is left out"
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"resnet.{lost}"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=f"{lost} is missing"):
        tuned(tmp_path, "resnet18", task="contrastive")
    config = transformers.Llama4TextConfig(vocab_size=64, head_dim=8, num_key_value_heads=1, intermediate_size_mlp=64,
        num_local_experts=2, max_position_embeddings=16, **LLAMA)  # fmt: skip
    llama = Logits(transformers.Llama4ForCausalLM(config))
    save_file(dict(llama.inner.model.norm.state_dict(prefix="model.norm.")), tmp_path / "model.safetensors")
    config.save_pretrained(tmp_path)
    with pytest.raises(TrainerError, match=r"model\.layers\.0.* is missing"):
        load_weights(llama, tmp_path)


def test_weights_of_another_kind_or_size_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    saved(tmp_path, "gpt2")
    with pytest.raises(TrainerError, match="they are of a gpt2 model, this one is llama"):
        tuned(tmp_path, "smollm-135m")
    huge = {**json.loads(config.read_text()), "n_embd": 1 << 20}
    config.write_text(json.dumps(huge))
    with pytest.raises(TrainerError, match=r"does not fit the model: transformer.wte.weight is \(\d+, 1048576\)"):
        tuned(tmp_path, "gpt2")
