"""What the two ways to learn from text share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from trainer.data.contract import Text
from trainer.models import model_facts
from trainer.tasks.objective import Objective


class LanguageObjective(Objective):
    """An objective over windows of `context` tokens, whose mean loss is in nats per predicted token.

    All samples have the same number of predicted tokens, so a mean over tokens is a mean over samples.
    """

    def __init__(self, data: Text, model: nn.Module) -> None:
        super().__init__(model)
        self.context = data.context

    def summary(self, sums: Mapping[str, float]) -> dict[str, float]:
        means = super().summary(sums)
        loss = means["loss"]
        return {**means, "perplexity": math.inf if loss > 700 else math.exp(loss)}

    @property
    def tokens_per_sample(self) -> int:
        return self.context

    def flops_per_sample(self) -> float | None:
        per_token = model_facts(self.model).flops_per_token(self.context)
        return None if per_token is None else per_token * self.context
