"""The networks: from settings and the data's shape to a module from one tensor to one tensor.

`named` chooses; `own` and `custom` build, and `wrappers` give them one form; `documents` keeps those in a row apart;
`weights` loads; `deferred` builds without memory for FSDP; `blocks` finds the repeated part, for recomputation and
sharding. Read `named` first.
"""

from trainer.models.blocks import apply_recompute, transformer_blocks
from trainer.models.facts import flops_per_sample, flops_per_token
from trainer.models.named import NAMES, Built, build, build_model
from trainer.models.weights import load_weights

__all__ = [
    "NAMES",
    "Built",
    "apply_recompute",
    "build",
    "build_model",
    "flops_per_sample",
    "flops_per_token",
    "load_weights",
    "transformer_blocks",
]
