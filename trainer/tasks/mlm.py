"""Masked language modelling: some tokens are hidden and predicted from all others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import Settings
from trainer.data.contract import Fields, Indices, Text, Transform
from trainer.tasks.draws import uniform
from trainer.tasks.language import LanguageObjective


class MaskedTokens(LanguageObjective):
    """Cross-entropy of logits [n, context, more than vocabulary] at the chosen places and the tokens that were there.

    Of each sample's tokens the same share is chosen, rounded to a whole number. Devlin et al., "BERT" (2019), section
    3.1: 80 % of the chosen become the mask, whose number is the data's vocabulary, 10 % any token, 10 % stay. Measures
    ``loss``, ``perplexity`` and ``accuracy`` at the chosen places; on held-out data these are always the same places.
    """

    def __init__(self, settings: Settings, data: Text, model: nn.Module) -> None:
        super().__init__(data, model)
        self._seed = settings.seed
        self._vocabulary = data.vocabulary
        self._chosen = max(1, round(settings.mask_probability * data.context))

    def forward(self, fields: Fields) -> Tensor:
        return functional.cross_entropy(self._logits(fields), fields["targets"].flatten())

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        logits, targets = self._logits(fields), fields["targets"].flatten()
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
        return _Masking(self._seed, "mask" if training else "held-out mask", self._chosen, self._vocabulary)


@dataclass(frozen=True)
class _Masking:
    """Hides chosen tokens.

    Tokens [n, context + 1], of which the last is not used, become inputs [n, context], and the places and the true
    tokens of the chosen ones [n, chosen].
    """

    seed: int
    purpose: str
    chosen: int
    vocabulary: int

    def __call__(self, raw: Fields, positions: Indices) -> Fields:
        inputs = raw["tokens"][:, :-1].clone()
        context, chosen = inputs.shape[1], self.chosen
        draws = uniform(self.seed, self.purpose, positions, context + 2 * chosen)
        order, fate, other = np.split(draws, (context, context + chosen), axis=1)
        smallest = np.sort(np.argpartition(order, chosen - 1, axis=1)[:, :chosen], axis=1)
        places = torch.from_numpy(smallest)
        targets = inputs.gather(1, places)
        anything = torch.from_numpy((other * self.vocabulary).astype(np.int64))
        hidden = torch.where(torch.from_numpy(fate < 0.8), self.vocabulary, anything)
        hidden = torch.where(torch.from_numpy(fate < 0.9), hidden, targets)
        return {"inputs": inputs.scatter_(1, places, hidden), "places": places, "targets": targets}
