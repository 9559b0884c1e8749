"""How the layers of known language models are shared between ranks: which by their outputs, which by their inputs.

Shoeybi et al. (2019), "Megatron-LM", arXiv:1909.08053: a pair of matrices needs one exchange when the first is split by
its outputs (columns) and the second by its inputs (rows).
"""

from __future__ import annotations

import re
from typing import Literal

from torch import nn

from trainer.errors import SettingsError

Cut = Literal["outputs", "inputs"]

# Llama, BERT, and GPT-2's second half of a block: its attention has queries, keys and values in one matrix, whose parts
# would have to be interleaved, so every rank computes all of it.
_HEADS = [
    (re.compile(r"(^|\.)self_attn\.[qkv]_proj$"), re.compile(r"(^|\.)self_attn\.o_proj$")),
    (re.compile(r"(^|\.)attention\.self\.(query|key|value)$"), re.compile(r"(^|\.)attention\.output\.dense$")),
]
_FEED_FORWARD = [
    (re.compile(r"(^|\.)mlp\.(gate|up)_proj$"), re.compile(r"(^|\.)mlp\.down_proj$")),
    (re.compile(r"(^|\.)intermediate\.dense$"), re.compile(r"(^|\.)\d+\.output\.dense$")),
    (re.compile(r"(^|\.)mlp\.c_fc$"), re.compile(r"(^|\.)mlp\.c_proj$")),
]


def plan(model: nn.Module, ranks: int) -> dict[str, Cut]:
    """How to cut which layers, by module name.

    Raises SettingsError for a model with no such layers, and for heads or widths that `ranks` does not divide.
    """
    cuts: dict[str, Cut] = {}
    for pairs in (_HEADS, _FEED_FORWARD):
        for by_outputs, by_inputs in pairs:
            for name, _ in model.named_modules():
                if by_outputs.search(name):
                    cuts[name] = "outputs"
                elif by_inputs.search(name):
                    cuts[name] = "inputs"
    if not cuts:
        raise SettingsError(
            "--tensor-parallel: no layers to share in this model; it knows those of Llama, BERT and GPT-2"
        )
    if any(pair[0].search(name) for pair in _HEADS for name in cuts):
        _check_heads(model, ranks)
    for name, cut in cuts.items():
        width = _width(model.get_submodule(name), cut)
        if width % ranks:
            raise SettingsError(f"--tensor-parallel {ranks} does not divide the {width} {cut} of {name}")
    return cuts


def _check_heads(model: nn.Module, ranks: int) -> None:
    config = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    for key in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, key, None)
        if isinstance(heads, int) and heads % ranks:
            raise SettingsError(f"--tensor-parallel {ranks} does not divide the model's {key}, {heads}")


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer keeps its weight as [inputs, outputs], as GPT-2's do."""
    return not isinstance(layer, nn.Linear)


def _width(layer: nn.Module, cut: Cut) -> int:
    weight = layer.get_parameter("weight")
    return int(weight.shape[0] if (cut == "outputs") != is_transposed(layer) else weight.shape[1])
