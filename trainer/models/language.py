"""GPT-2, a SmolLM-shaped Llama and BERT from `transformers` configurations, with fresh weights.

Sizes: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Hugging Face's SmolLM-135M; Devlin
et al., "BERT", 2018; bert-tiny: Turc et al., "Well-Read Students Learn Better", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from trainer.config import Settings
from trainer.errors import SettingsError
from trainer.models.huggingface import configuration, fitting, library
from trainer.models.own import Logits

_GPT2: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
}
_LLAMA: Mapping[str, Mapping[str, int]] = {
    "smollm-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
}
_BERT: Mapping[str, Mapping[str, int]] = {
    "bert-tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}

CAUSAL_NAMES = (*_GPT2, *_LLAMA)
MASKED_NAMES = tuple(_BERT)

_VOCABULARY_UNIT = 64

# Windows are never padded, so whole and causal attention need no mask. "sdpa" of transformers makes one all the same
# where it is compiled, and torch's flash kernel takes none.
_ATTENTION = "unmasked_sdpa"


def padded(vocabulary: int) -> int:
    """The next multiple of 64: matrix products on GPUs are fast with such sizes. The further tokens never occur."""
    return -(-vocabulary // _VOCABULARY_UNIT) * _VOCABULARY_UNIT


def build(settings: Settings, vocabulary: int, context: int) -> nn.Module:
    """The named network for `context` tokens numbered 0 .. vocabulary - 1; its own vocabulary is padded.

    Special tokens are the data's business: none has a meaning to the network.
    """
    hf, name = library(), settings.model
    # For an attention without a function for masks, none are made.
    hf.AttentionInterface.register(_ATTENTION, hf.AttentionInterface()["sdpa"])
    common = {
        "vocab_size": padded(vocabulary),
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "attn_implementation": _ATTENTION,
    }
    if name in _GPT2:
        kind, model, values = hf.GPT2Config, hf.GPT2LMHeadModel, _gpt2(settings, context)
    elif name in _LLAMA:
        kind, model, values = hf.LlamaConfig, hf.LlamaForCausalLM, _llama(settings, context)
    else:
        kind, model, values = hf.BertConfig, hf.BertForMaskedLM, _bert(settings, context)
    config = configuration(kind, {**common, **values}, settings.model_options)
    check_room(config, vocabulary, context)
    return Logits(fitting(lambda: model(config)))


def check_room(config: Any, vocabulary: int, context: int) -> None:
    """Raises SettingsError if the configuration has less room than the data needs."""
    for key, needed in (("vocab_size", vocabulary), ("max_position_embeddings", context)):
        room = getattr(config, key, None)
        if isinstance(room, int) and room < needed:
            raise SettingsError(f"model: {key} is {room}, but the data needs at least {needed}")


def _gpt2(settings: Settings, context: int) -> dict[str, Any]:
    return {
        **_GPT2[settings.model],
        "n_positions": context,
        "activation_function": "gelu_pytorch_tanh",  # GPT-2's own approximation of GELU, in one kernel
        "resid_pdrop": settings.dropout,
        "embd_pdrop": settings.dropout,
        "attn_pdrop": settings.dropout,
    }


def _llama(settings: Settings, context: int) -> dict[str, Any]:
    return {
        **_LLAMA[settings.model],
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_dropout": settings.dropout,
    }


def _bert(settings: Settings, context: int) -> dict[str, Any]:
    return {
        **_BERT[settings.model],
        "max_position_embeddings": context,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
    }
