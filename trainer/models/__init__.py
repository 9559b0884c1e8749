"""The networks: small own ones, those of `transformers`, and your own.

In come settings and the data's shape, out comes a module from one tensor to one tensor with fresh or given weights.
`named` chooses; `own`, `vision`, `language` and `custom` build; `weights` loads; `deferred` builds without memory for
FSDP; `blocks` finds the repeated part, for recomputation and sharding. Read `named` first.
"""

from trainer.models.blocks import apply_recompute, transformer_blocks
from trainer.models.facts import ModelFacts, flops_per_sample, model_facts
from trainer.models.named import NAMES, Built, build, build_model
from trainer.models.weights import WeightsReport, load_weights

__all__ = [
    "NAMES",
    "Built",
    "ModelFacts",
    "WeightsReport",
    "apply_recompute",
    "build",
    "build_model",
    "flops_per_sample",
    "load_weights",
    "model_facts",
    "transformer_blocks",
]
