"""Causal language modelling: each token is predicted from those before it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trainer.data.contract import Fields, Indices, Transform
from trainer.tasks.language import LanguageObjective


class NextToken(LanguageObjective):
    """Cross-entropy of logits [n, context, at least vocabulary] and the tokens that follow; measures ``loss`` and
    ``perplexity``."""

    def forward(self, fields: Fields) -> Tensor:
        logits: Tensor = self.model(fields["inputs"])
        # In fp32 whatever the model computes in. Where it is fp32 already, nothing is copied; under autocast,
        # cross_entropy would make this copy itself; compiled, no copy is ever stored.
        return functional.cross_entropy(logits.flatten(0, 1).float(), fields["targets"].flatten())

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        samples = len(fields["inputs"])
        loss = self.forward(fields)
        return {"loss": loss * samples, "count": torch.full_like(loss, samples)}

    def transform(self, *, training: bool) -> Transform:
        return _shifted


def _shifted(raw: Fields, positions: Indices) -> Fields:
    """Tokens [n, context + 1] to inputs and targets [n, context]: each input's target is the token after it."""
    tokens = raw["tokens"]
    return {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
