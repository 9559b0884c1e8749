"""From settings and data to a network: by name, from a configuration file or from the user's own function.

Names are those of `transformers` and its hub; weights are fresh.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from trainer.config import Settings
from trainer.config.lengths import largest_divisor
from trainer.config.schema import IMAGE_TASKS, did_you_mean, is_own
from trainer.data.contract import Data, Images, Samples, Text
from trainer.errors import SettingsError
from trainer.models import custom
from trainer.models.adapters import choose_trained
from trainer.models.blocks import apply_recompute
from trainer.models.custom import check_room, load_transformers, make_config, options_at_fault, vocabulary_size
from trainer.models.deferred import give_first_values, without_memory
from trainer.models.documents import attend
from trainer.models.own import SMALLEST_IMAGE, ByteTransformer, SmallCnn
from trainer.models.weights import load_weights, network_of
from trainer.models.wrappers import Embedder, Logits

# GPT-2's own approximation of GELU, in one kernel.
_GELU = {"activation_function": "gelu_pytorch_tanh"}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_HIDDEN_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")

_SMOLLM = {"intermediate_size": 1536, "num_key_value_heads": 3, "rms_norm_eps": 1e-5}

_BOTTLENECK = {"layer_type": "bottleneck", "hidden_sizes": [256, 512, 1024, 2048]}

_ATTENTION = "unmasked_sdpa"
_VOCABULARY_UNIT = 64  # matrix products on GPUs are fast with such sizes; the further tokens never occur

# Images up to this side get a stem that keeps their resolution; the usual one would leave 1/16 of their pixels.
_SMALL_IMAGE = 64
_MOST_PATCHES = 4096  # attention over more takes most of a GPU's memory for one image


class _Family(NamedTuple):
    """Class names of transformers, the configuration's keys that take the dropout, and the values of all sizes."""

    config: str
    model: str
    dropout: tuple[str, ...]
    values: Mapping[str, Any]


_GPT2 = _Family("GPT2Config", "GPT2LMHeadModel", ("resid_pdrop", "embd_pdrop", "attn_pdrop"), _GELU)
_LLAMA = _Family("LlamaConfig", "LlamaForCausalLM", ("attention_dropout",), {"tie_word_embeddings": True, **_ROPE})
_BERT = _Family("BertConfig", "BertForMaskedLM", _HIDDEN_DROPOUT, {})
_RESNET = _Family("ResNetConfig", "ResNetForImageClassification", (), {})
_VIT = _Family("ViTConfig", "ViTForImageClassification", _HIDDEN_DROPOUT, {"attn_implementation": "sdpa"})


def _sizes(width: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": 4 * width}


_CAUSAL: dict[str, tuple[_Family, dict[str, Any]]] = {
    "gpt2": (_GPT2, {"n_embd": 768, "n_layer": 12, "n_head": 12}),
    "gpt2-medium": (_GPT2, {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": (_GPT2, {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": (_GPT2, {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "smollm-135m": (_LLAMA, {**_sizes(576, 30, 9), **_SMOLLM}),
}
_MASKED = {
    "bert-tiny": (_BERT, _sizes(128, 2, 2)),
    "bert-base": (_BERT, _sizes(768, 12, 12)),
    "bert-large": (_BERT, _sizes(1024, 24, 16)),
}
_VISION: dict[str, tuple[_Family, dict[str, Any]]] = {
    "resnet18": (_RESNET, {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}),
    "resnet50": (_RESNET, {**_BOTTLENECK, "depths": [3, 4, 6, 3]}),
    "resnet152": (_RESNET, {**_BOTTLENECK, "depths": [3, 8, 36, 3]}),
    "vit-b16": (_VIT, {}),
}
_SIZES = {**_CAUSAL, **_MASKED, **_VISION}

_IMAGES = ("cnn", *_VISION)
# By task; the first is that of --model auto.
NAMES = {"classify": _IMAGES, "contrastive": _IMAGES, "lm": ("bytes", *_CAUSAL), "mlm": tuple(_MASKED)}


@dataclass(frozen=True)
class Built:
    """A network that maps one tensor to one tensor.

    Attributes:
        fresh: names of what `settings.weights` did not have.
        in_base: names of what stays as it is there, and so need not be saved.
    """

    name: str
    model: nn.Module
    fresh: tuple[str, ...]
    in_base: frozenset[str] = frozenset()


def build_model(settings: Settings, data: Data) -> nn.Module:
    """The network of `build` alone."""
    return build(settings, data).model


def build(settings: Settings, data: Data, *, sharded: bool = False) -> Built:
    """The network that the settings ask for, fitted to the data, in training mode, on torch's default device.

    Float images [n, channels, height, width] give logits [n, classes], or for contrastive learning vectors
    [n, embedding_size] that are not normalised. Tokens [n, time], time up to the data's context, give logits
    [n, time, tokens], where tokens are the data's vocabulary or more. Fresh weights come from torch's global random
    state; if it will be `sharded`, parameters stay on the meta device where that is possible.

    Raises SettingsError for a model that is unknown or does not suit task and data.
    """
    if not _suits(settings, data):
        raise SettingsError(f"--task {settings.task} cannot learn from --data {settings.data}; change one of the two")
    if settings.model == "auto":
        settings = settings.model_copy(update={"model": NAMES[settings.task][0]})
    # Your own function may do anything with its parameters; a configuration's model may have some that it does not set.
    stays_empty = sharded and settings.weights is None
    deferred = ":" not in settings.model and (stays_empty or not settings.model.endswith(".json"))
    with without_memory() if deferred else contextlib.nullcontext():
        model = _network(settings, data)
        if settings.task == "contrastive" and ":" not in settings.model:
            model = Embedder(model, _feature_size(model, settings), settings.embedding_size)
    if deferred and not stays_empty:
        give_first_values(model)
    model.train()
    fresh = load_weights(model, settings.weights) if settings.weights is not None else ()
    in_base = choose_trained(model, settings, fresh)
    apply_recompute(model, settings.gradient_checkpointing)
    if isinstance(model, ByteTransformer | Logits):
        model.compiled = settings.compile != "off"
    return Built(settings.model, model, fresh, in_base)


def _suits(settings: Settings, data: Data) -> bool:
    """Return whether the task can learn from the data; a task of one's own says so itself."""
    if is_own(settings.task):
        return True
    if settings.task in IMAGE_TASKS:
        return isinstance(data, Images)
    return isinstance(data, Text)


def _kind(settings: Settings, data: Images | Text) -> str:
    """The task whose models are meant by their names; for a task of one's own that of the data."""
    if not is_own(settings.task):
        return settings.task
    if isinstance(data, Images):
        return "classify"
    return "lm"


def _feature_size(model: nn.Module, settings: Settings) -> int:
    """The size of the output of a network without classes."""
    config: Any = getattr(network_of(model)[0], "config", model)
    for name in ("hidden_sizes", "hidden_size", "feature_size"):
        size = getattr(config, name, None)
        if size and name == "hidden_sizes":
            return int(size[-1])
        if size:
            return int(size)
    raise SettingsError(f"model: {settings.model} does not tell the size of its features; write a function")


def _network(settings: Settings, data: Data) -> nn.Module:
    """The network by itself. With no classes its output is the features."""
    name = settings.model
    if Path(name).suffix == ".json":
        return custom.build_from_config_file(settings, data)
    if ":" in name:
        return custom.build_from_function(settings, data)
    if isinstance(data, Samples):
        raise SettingsError(custom.OWN_FUNCTION_NEEDED)
    names = NAMES[_kind(settings, data)]
    if name not in names:
        near = did_you_mean(name, names) or f"; use {', '.join(names)}, a config.json or package.module:function"
        raise SettingsError(f"model: {name} is no model for {settings.task}{near}")
    if name not in ("bytes", "cnn"):
        if isinstance(data, Text):
            return _language(settings, data)
        return _vision(settings, data)
    if settings.model_options:
        raise SettingsError(f"model_options: {name} has none; set width, depth and dropout")
    sizes: dict[str, Any] = {"width": settings.width, "depth": settings.depth, "dropout": settings.dropout}
    if isinstance(data, Text):
        return ByteTransformer(data.vocabulary, data.context, **sizes)
    if min(data.shape[1:]) < SMALLEST_IMAGE:
        raise SettingsError(f"model: cnn needs images of 8x8 pixels or more, not {data.shape[1:]}; set image_size")
    classes = 0 if settings.task == "contrastive" else len(data.classes)
    return SmallCnn(data.shape, classes, **sizes)


def _configured(settings: Settings, further: Mapping[str, Any]) -> Any:
    """The configuration of a named network, with `further` values that follow from the data."""
    family, sizes = _SIZES[settings.model]
    values = {**family.values, **sizes, **dict.fromkeys(family.dropout, settings.dropout), **further}
    return make_config(getattr(load_transformers(), family.config), values, settings.model_options)


def _language(settings: Settings, data: Text) -> nn.Module:
    """Special tokens are the data's business: none has a meaning to the network."""
    hf = load_transformers()
    tokens = vocabulary_size(settings, data)
    # For an attention without a function for masks, none are made.
    hf.AttentionInterface.register(_ATTENTION, functools.partial(_attention, hf.AttentionInterface()["sdpa"]))
    facts: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    facts |= {"vocab_size": -(-tokens // _VOCABULARY_UNIT) * _VOCABULARY_UNIT, "max_position_embeddings": data.context}
    config = _configured(settings, {**facts, "use_cache": False, "attn_implementation": _ATTENTION})
    check_room(config, tokens, data.context)
    family, _ = _SIZES[settings.model]
    with options_at_fault():
        network = getattr(hf, family.model)(config)
    return Logits(network, takes_lengths=settings.task != "mlm")


def _attention(
    sdpa: Callable[..., Any], module: Any, *inputs: Any, documents: tuple[int, ...] | None = None, **options: Any
) -> Any:
    """Attention without a mask, as a function of transformers; returns [batch, time, heads, head size].

    Windows are never padded, so whole and causal attention need none. "sdpa" of transformers makes one all the same
    where it is compiled, and torch's flash kernel takes none.
    """
    if documents is None:
        return sdpa(module, *inputs, **options)
    query, key, value, _ = inputs
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    mixed = attend(query, key, value, documents, dropout_p=options["dropout"], scale=options["scaling"])
    return mixed.transpose(1, 2).contiguous(), None


def _vision(settings: Settings, data: Images) -> nn.Module:
    channels, height, width = data.shape
    classes = 0 if settings.task == "contrastive" else len(data.classes)
    facts: dict[str, Any] = {"num_channels": channels, "num_labels": classes}
    family, _ = _SIZES[settings.model]
    if family is _VIT:
        patch_option = settings.model_options.get("patch_size")
        if isinstance(patch_option, int) and patch_option > 0:
            patch = patch_option
        else:
            # Up to 16 pixels, with 7 patches along the shorter side.
            patch = largest_divisor(math.gcd(height, width), max(1, min(16, height // 7, width // 7)))
        if height % patch or width % patch or (height // patch) * (width // patch) > _MOST_PATCHES:
            raise SettingsError(f"vit-b16: patches of {patch} do not suit {height}x{width}; set another image_size")
        facts |= {"image_size": height if height == width else [height, width], "patch_size": patch}
    config = _configured(settings, facts)
    if family is _RESNET and max(height, width) <= _SMALL_IMAGE:
        network_class = _small_image_resnet()
    else:
        network_class = getattr(load_transformers(), family.model)
    with options_at_fault():
        network = network_class(config)
    return Logits(network)


@functools.cache
def _small_image_resnet() -> Any:
    """A class of ResNets with the stem of He et al. for CIFAR (2015, section 4.2), which keeps the resolution."""

    class SmallImageResNet(load_transformers().ResNetForImageClassification):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            stem = self.resnet.embedder
            stem.embedder.convolution = nn.Conv2d(config.num_channels, config.embedding_size, 3, padding=1, bias=False)
            self._init_weights(stem.embedder.convolution)
            stem.pooler = nn.Identity()

    return SmallImageResNet
