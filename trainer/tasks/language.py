"""Learning from text: the next token (causal language modelling) and hidden tokens (masked language modelling)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.config import Settings
from trainer.data.contract import Fields, Indices, Text, Transform
from trainer.errors import SettingsError
from trainer.models import flops_per_token
from trainer.tasks.objective import Objective, uniform

_NOT_LEARNT = -100  # as a target
_MEASURED_CHUNK = 2048  # tokens; of 50 000 possible ones their logits in fp32 are 400 MB


class LanguageObjective(Objective):
    """An objective over windows of `context` tokens, whose mean loss is in nats per predicted token."""

    metrics: tuple[str, ...] = ("loss", "perplexity")

    def __init__(self, settings: Settings, data: Text, model: nn.Module) -> None:
        super().__init__(model)
        if data.marked and settings.task != "lm":
            raise SettingsError(f"{settings.data_dir} has rows of documents, which are for --task lm, not mlm")
        self.settings = settings
        self.vocabulary = data.vocabulary
        self.context = self.tokens_per_sample = data.context
        self.weighed = data.marked

    def summary(self, sums: Mapping[str, float]) -> dict[str, float]:
        means = super().summary(sums)
        if means["loss"] > 700:
            perplexity = math.inf
        else:
            perplexity = math.exp(means["loss"])
        return {**means, "perplexity": perplexity}

    def flops_per_sample(self) -> float | None:
        per_token = flops_per_token(self.model, self.context)
        if per_token is None:
            return None
        return per_token * self.context


class NextToken(LanguageObjective):
    """Cross-entropy of logits [n, context, at least vocabulary] and the tokens that follow.

    Where the text is marked, only what is to be learnt counts, each token as much as any other of the step, and the
    model is given each token's position in its document, so that attention stays within it.

    With `loss_chunk`, the losses of so many tokens are computed at a time and again in backward: of all logits only the
    model's own output is stored, neither a copy in fp32 nor their log-softmax. Measuring always goes by chunks.
    """

    def forward(self, fields: Fields) -> Tensor:
        return self._summed(fields, self.settings.loss_chunk) / fields["targets"].numel()

    def _summed(self, fields: Fields, chunk: int) -> Tensor:
        positions = (fields["positions"],) if self.weighed else ()
        logits: Tensor = self.model(fields["inputs"], *positions).flatten(0, 1)
        targets = fields["targets"].flatten()
        if not chunk:
            return _summed_loss(logits, targets)
        chunks = zip(torch.split(logits, chunk), torch.split(targets, chunk), strict=True)
        return torch.stack([checkpoint(_summed_loss, *chunk, use_reentrant=False) for chunk in chunks]).sum()

    def weight(self, fields: Fields) -> Tensor:
        return (fields["targets"] != _NOT_LEARNT).float().mean()

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        # Compiled, no copy in fp32 is ever stored.
        chunk = 0 if torch.compiler.is_compiling() else self.settings.loss_chunk or _MEASURED_CHUNK
        loss = self._summed(fields, chunk)
        return {"loss": loss, "count": (fields["targets"] != _NOT_LEARNT).sum()}

    def transform(self, *, training: bool) -> Transform:
        return _shifted


def _summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), targets, ignore_index=_NOT_LEARNT, reduction="sum")


def _shifted(raw: Fields, positions: Indices) -> Fields:
    """Tokens [n, context + 1] to inputs and targets [n, context], of marked text also positions in documents."""
    inputs = raw["tokens"][:, :-1].contiguous()
    targets = raw["tokens"][:, 1:].contiguous()
    if "learn" not in raw:
        return {"inputs": inputs, "targets": targets}
    places = torch.arange(inputs.shape[1])
    begins = torch.where(raw["begin"][:, :-1], places, 0).cummax(dim=1).values
    targets = targets.masked_fill(~raw["learn"][:, 1:], _NOT_LEARNT)
    return {"inputs": inputs, "targets": targets, "positions": places - begins}


class MaskedTokens(LanguageObjective):
    """Cross-entropy of logits [n, context, more than vocabulary] at the chosen places and the tokens that were there.

    Of each sample's tokens the same share is chosen, rounded to a whole number. Devlin et al., "BERT" (2019), section
    3.1: 80 % of the chosen become the mask, whose number is the data's vocabulary, 10 % any token, 10 % stay. On
    held-out data the places are always the same.
    """

    metrics = ("accuracy", "loss", "perplexity")

    def forward(self, fields: Fields) -> Tensor:
        return functional.cross_entropy(self._logits(fields), fields["targets"].flatten())

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        logits = self._logits(fields)
        targets = fields["targets"].flatten()
        samples = len(fields["inputs"])
        loss = functional.cross_entropy(logits, targets)
        right = (logits.argmax(-1) == targets).float().mean()
        return {"loss": loss * samples, "accuracy": right * samples, "count": torch.full_like(loss, samples)}

    def _logits(self, fields: Fields) -> Tensor:
        """fp32 logits [n * chosen, vocabulary], of the chosen places only: the rest is never copied to fp32."""
        logits: Tensor = self.model(fields["inputs"])
        places = fields["places"]
        samples = torch.arange(len(places), device=places.device).unsqueeze(1)
        return logits[samples, places].flatten(0, 1).float()

    def transform(self, *, training: bool) -> Transform:
        purpose = "mask" if training else "held-out mask"
        chosen = max(1, round(self.settings.mask_probability * self.context))
        return functools.partial(_masked, self.settings.seed, purpose, chosen, self.vocabulary)


def _masked(seed: int, purpose: str, chosen: int, vocabulary: int, raw: Fields, positions: Indices) -> Fields:
    """Tokens [n, context + 1] to inputs [n, context], and the places and true tokens of the chosen ones [n, chosen]."""
    inputs = raw["tokens"][:, :-1].clone()
    context = inputs.shape[1]
    draws = uniform(seed, purpose, positions, context + 2 * chosen)
    order, fate, replacement = np.split(draws, (context, context + chosen), axis=1)
    places = torch.from_numpy(np.sort(np.argpartition(order, chosen - 1, axis=1)[:, :chosen], axis=1))
    targets = inputs.gather(1, places)
    anything = torch.from_numpy((replacement * vocabulary).astype(np.int64))
    hidden = torch.where(torch.from_numpy(fate < 0.8), vocabulary, anything)
    hidden = torch.where(torch.from_numpy(fate < 0.9), hidden, targets)
    return {"inputs": inputs.scatter_(1, places, hidden), "places": places, "targets": targets}
