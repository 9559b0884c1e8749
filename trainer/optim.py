"""The optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from trainer.config import Settings


def learning_rate(step: int, settings: Settings) -> float:
    """The rate of a step, the first being 1: linear warm-up to `lr`, then half a cosine down to its last share."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    span = max(1, settings.steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    low = settings.final_lr_ratio
    return settings.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


def build_optimizer(model: nn.Module, settings: Settings, device: torch.device) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves biases and norms alone; fused where it pays."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=settings.lr,
        fused=device.type == "cuda",
    )


class WarmupCosine:
    """Applies `learning_rate` to an optimizer.

    Its only state is the step. Peak, warm-up and length come from the settings, so that a value given on resume wins
    over the one a checkpoint was made with.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings) -> None:
        self._optimizer = optimizer
        self._settings = settings
        self.step = 0

    def advance(self) -> float:
        """Goes to the next step and returns its learning rate."""
        self.step += 1
        rate = learning_rate(self.step, self._settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.step = state["step"]
