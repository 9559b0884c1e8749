"""The networks: small own ones, those of `transformers`, and whatever a person brings along."""

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
