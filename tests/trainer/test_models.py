"""Networks by name: shapes, sizes, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.trainer.small_models import SMALL, images, inputs, small_settings, text
from trainer.config import Settings
from trainer.data.contract import Data, Images, Text
from trainer.errors import SettingsError, TrainerError
from trainer.models import NAMES, build, build_model, transformer_blocks
from trainer.models.language import padded
from trainer.models.vision import patch_size


@pytest.mark.parametrize("name", SMALL)
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


def test_every_name_is_among_them() -> None:
    assert set().union(*NAMES.values()) == set(SMALL)


@pytest.mark.parametrize(
    ("name", "data", "options", "parameters"),
    [
        # Counted without the trainer, from the classes of transformers themselves; 1000 classes.
        ("resnet18", images(3, 224, 224, 1000), {}, 11_689_512),
        ("resnet50", images(3, 224, 224, 1000), {}, 25_557_032),
        ("resnet152", images(3, 224, 224, 1000), {}, 60_192_808),
        ("vit-b16", images(3, 224, 224, 1000), {}, 86_567_656),
        ("gpt2", text(50257, 1024), {"vocab_size": 50257}, 124_439_808),
        ("gpt2-medium", text(50257, 1024), {"vocab_size": 50257}, 354_823_168),
        ("gpt2-large", text(50257, 1024), {"vocab_size": 50257}, 774_030_080),
        ("gpt2-xl", text(50257, 1024), {"vocab_size": 50257}, 1_557_611_200),
        ("smollm-135m", text(49152, 2048), {}, 134_515_008),
        ("bert-base", text(30521, 512), {"vocab_size": 30522}, 109_514_298),
        ("bert-large", text(30521, 512), {"vocab_size": 30522}, 335_174_458),
    ],
)
def test_full_sizes_have_the_published_numbers_of_parameters(
    name: str, data: Data, options: dict[str, Any], parameters: int
) -> None:
    with torch.device("meta"):
        model = build_model(small_settings(name, model_options=options), data)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["cnn", "bytes", "resnet18", "vit-b16", "gpt2", "smollm-135m", "bert-tiny"])
def test_one_seed_gives_the_same_weights(name: str) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return build_model(small_settings(name), SMALL[name][1]).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("task", "data", "name"),
    [
        ("classify", images(), "cnn"),
        ("contrastive", images(), "cnn"),
        ("lm", text(), "bytes"),
        ("mlm", text(), "bert-tiny"),
    ],
)
def test_auto_is_small(task: Any, data: Data, name: str) -> None:
    built = build(Settings(task=task), data)
    assert (built.name, built.weights) == (name, None)
    assert sum(parameter.numel() for parameter in built.model.parameters()) < 500_000


@pytest.mark.parametrize("name", ["bytes", "gpt2", "smollm-135m"])
def test_causal_models_do_not_look_ahead(name: str) -> None:
    data = SMALL[name][1]
    model = build_model(small_settings(name), data).eval()
    tokens = inputs(data, 1)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 64
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.allclose(before[0, 9:], after[0, 9:])


def test_masked_models_look_both_ways_and_know_the_mask() -> None:
    data = SMALL["bert-large"][1]
    assert isinstance(data, Text)
    model = build_model(small_settings("bert-large"), data).eval()
    tokens = inputs(data, 1)
    changed = tokens.clone()
    changed[0, 9] = data.vocabulary  # the mask comes after the data's tokens
    before, after = model(tokens), model(changed)
    assert before.shape[-1] == 128  # 64 tokens and the mask, padded
    assert not torch.allclose(before[0, :9], after[0, :9])


@pytest.mark.parametrize("name", ["vit-b16", "gpt2", "smollm-135m", "bert-base", "bytes"])
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


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("vit-b16", "smollm-135m", "bert-base", "bytes")),
    ],
)
def test_compiled_attention_takes_no_mask_either_and_is_the_same(name: str) -> None:
    calls: list[tuple[bool, bool]] = []

    def noted(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            if "scaled_dot_product_attention" in str(node.target):
                calls.append((node.kwargs.get("attn_mask") is None, node.kwargs.get("is_causal", False)))
        return graph.forward

    data = SMALL[name][1]
    model = build_model(small_settings(name, dropout=0.0), data)
    samples = inputs(data)
    compiled = torch.compile(model, backend=noted, dynamic=False)(samples)
    torch._dynamo.reset()
    assert calls == [(True, SMALL[name][0] == "lm")] * 3
    torch.testing.assert_close(compiled, model(samples))


@pytest.mark.parametrize(
    ("version", "name", "refusal"),
    [
        ("2.6.0+cpu", "gpt2", "--compile needs torch 2.7 or newer for a model of transformers; this is 2.6.0+cpu"),
        ("2.6.0", "bytes", None),
        ("2.8.0", "gpt2", None),
        (
            "2.8.0",
            "resnet18",
            "--compile with --gradient-checkpointing needs torch 2.9 or newer for a model with batch norms; "
            "this is 2.8.0",
        ),
        ("2.9.0", "resnet18", None),
    ],
)
def test_what_old_torch_does_not_compile_is_refused_by_its_version(
    version: str, name: str, refusal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(name, gradient_checkpointing="full", compile="default")
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    if refusal is None:
        build_model(settings, SMALL[name][1])
        return
    with pytest.raises(SettingsError) as raised:
        build_model(settings, SMALL[name][1])
    assert str(raised.value) == refusal


@pytest.mark.parametrize("name", ["vit-b16", "gpt2", "smollm-135m", "bert-base", "bytes", "cnn"])
def test_dropout_is_a_setting(name: str) -> None:
    data = SMALL[name][1]
    for dropout in (0.0, 0.5):
        torch.manual_seed(0)
        model = build_model(small_settings(name, dropout=dropout), data)
        assert torch.equal(model(inputs(data)), model(inputs(data))) == (dropout == 0)


@given(st.integers(1, 200_000))
def test_padding_is_the_least_that_reaches_a_multiple_of_64(vocabulary: int) -> None:
    assert padded(vocabulary) % 64 == 0
    assert 0 <= padded(vocabulary) - vocabulary < 64


# --- images -----------------------------------------------------------------------------------------------------------


@given(st.integers(8, 512), st.integers(8, 512))
def test_patches_tile_the_image(height: int, width: int) -> None:
    size = patch_size(height, width)
    assert 1 <= size <= 16
    assert height % size == width % size == 0
    assert size == 1 or min(height, width) // size >= 7


@pytest.mark.parametrize(("side", "patch"), [(224, 16), (384, 16), (96, 12), (64, 8), (32, 4), (28, 4), (8, 1)])
def test_patches_of_usual_sizes(side: int, patch: int) -> None:
    assert patch_size(side, side) == patch


def test_small_images_are_not_shrunk_by_the_stem() -> None:
    for side, stem in ((64, 64), (72, 18)):
        model = build_model(small_settings("resnet18"), images(3, side, side))
        assert transformer_blocks(model)[0](torch.rand(1, 16, stem, stem)).shape == (1, 16, stem, stem)
        seen: list[torch.Size] = []
        transformer_blocks(model)[0].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].shape))
        model(torch.rand(2, 3, side, side))
        assert seen == [(2, 16, stem, stem)]


@given(st.integers(1, 4), st.integers(8, 40), st.integers(8, 40), st.integers(1, 5))
def test_the_cnn_takes_any_image_of_8_pixels_or_more(channels: int, height: int, width: int, classes: int) -> None:
    data = images(channels, height, width, classes)
    model = build_model(Settings(task="classify", width=8, depth=1), data)
    assert model(inputs(data, 2)).shape == (2, classes)


def test_the_cnn_for_digits_keeps_its_weights_layout() -> None:
    model = build_model(Settings(), images(1, 8, 8, 10))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes["stem.weight"] == (16, 1, 3, 3)
    assert shapes["head.weight"] == (10, 256)
    assert "stack.blocks.1.second.bias" in shapes


@pytest.mark.parametrize("name", ["cnn", "resnet50", "vit-b16"])
def test_contrastive_learning_gets_vectors(name: str) -> None:
    data = images(3, 32, 32)
    model = build_model(small_settings(name, task="contrastive", embedding_size=24), data)
    vectors = model(inputs(data))
    assert vectors.shape == (3, 24)
    assert not torch.allclose(vectors.norm(dim=1), torch.ones(3))
    vectors.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "data", "words"),
    [
        ({"model": "resnet5"}, images(), "unknown model 'resnet5'; did you mean resnet50?"),
        ({"model": "???"}, images(), "use cnn, resnet18, resnet50, resnet152, vit-b16, a config.json or"),
        ({"model": "gpt2"}, images(), "gpt2 cannot do classify; use cnn, resnet18"),
        ({"task": "lm", "model": "bert-base"}, text(), "bert-base cannot do lm; use bytes, gpt2"),
        ({"task": "lm"}, images(), "--task lm needs text, but --data auto gives images"),
        ({"task": "mlm"}, images(), "--task mlm needs text, but --data auto gives images"),
        ({"task": "classify"}, text(), "--task classify needs images, but --data auto gives text"),
        ({"task": "contrastive"}, text(), "--task contrastive needs images, but --data auto gives text"),
        ({}, images(1, 8, 7), "cnn needs images of 8x8 pixels or more, not 8x7; set image_size"),
        ({"model_options": {"width": 8}}, images(), "cnn has none; set width, depth and dropout"),
        ({"model": "vit-b16"}, images(3, 223, 223), "patches of 1x1 pixels do not suit images of 223x223"),
    ],
)
def test_refusals_are_one_line(changes: dict[str, Any], data: Data, words: str) -> None:
    _assert_refused(Settings(**changes), data, words)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("vit-b16", {"patch_size": 5}, "patches of 5x5 pixels do not suit images of 28x28"),
        ("vit-b16", {"hidden_sise": 8}, "ViTConfig has no hidden_sise; did you mean hidden_size?"),
        ("vit-b16", {"hidden_size": 33}, "hidden_size must be a multiple of num_attention_heads, got 33 / 12"),
        ("resnet18", {"num_labels": 3}, "num_labels cannot be set, it follows from the data"),
        ("resnet18", {"num_label": 3}, "ResNetConfig has no num_label"),
        ("resnet18", {"depths": "deep"}, "model_options: Validation error for field 'depths'"),
        ("gpt2", {"vocab_size": 299}, "vocab_size is 299, but the data needs at least 300"),
        ("bert-tiny", {"vocab_size": 256}, "vocab_size is 256, but the data needs at least 257"),
        ("gpt2", {"n_positions": 8}, "max_position_embeddings is 8, but the data needs at least 16"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(name: str, options: dict[str, Any], words: str) -> None:
    _assert_refused(small_settings(name, model_options=options), SMALL[name][1], words)


def _assert_refused(settings: Settings, data: Data, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        build_model(settings, data)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_options_may_use_the_common_names() -> None:
    model = build_model(
        small_settings("gpt2", model_options={"hidden_size": 64, "n_head": 4, "num_hidden_layers": 1}), text()
    )
    assert len(transformer_blocks(model)) == 1
    assert model(inputs(text())).shape == (3, 16, 256)


def test_own_networks_need_no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    build_model(Settings(task="classify"), images())
    build_model(Settings(task="contrastive"), images())
    build_model(Settings(task="lm"), text())
    with pytest.raises(TrainerError, match=r"needs transformers .*pip install 'gputui\[train\]'"):
        build_model(Settings(task="mlm"), text())


def test_transformers_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, trainer.models; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
