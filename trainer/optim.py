"""The optimizer and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.config import Settings


def learning_rate(step: int, settings: Settings) -> float:
    """The rate of a step of a phase, the first being 1: linear warm-up to `lr`, then the decay of `schedule`.

    The decay reaches `lr` times `final_lr_ratio` at the last step: along half a cosine, or along a straight line;
    `constant` stays at the peak.
    """
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    span = max(1, settings.steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    if settings.schedule == "cosine":
        height = 0.5 * (1 + math.cos(math.pi * progress))
    elif settings.schedule == "linear":
        height = 1 - progress
    else:
        return settings.lr
    low = settings.final_lr_ratio
    return settings.lr * (low + (1 - low) * height)


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], settings: Settings) -> list[dict[str, Any]]:
    """Trainable parameters, with their names, as groups: those of two and more dimensions decay, all others do not."""
    matrices: list[tuple[str, nn.Parameter]] = []
    others: list[tuple[str, nn.Parameter]] = []
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            (matrices if parameter.dim() >= 2 else others).append((name, parameter))
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # torch takes names from the parameters themselves: an empty group would count as one without names.
    return [group for group in groups if group["params"]]


def optimizer_options(settings: Settings, device: torch.device) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The optimizer's class and its arguments but for the parameters; fused kernels where the weights are on a GPU."""
    fused = True if device.type == "cuda" and not settings.cpu_offload else None
    if settings.optimizer == "sgd":
        return torch.optim.SGD, {
            "lr": settings.lr,
            "momentum": settings.momentum,
            "nesterov": settings.momentum > 0,
            "fused": fused,
        }
    return torch.optim.AdamW, {"lr": settings.lr, "betas": (settings.beta1, settings.beta2), "fused": fused}


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], settings: Settings, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW, or SGD with Nesterov momentum, whose groups keep the names in ``group["param_names"]``."""
    kind, options = optimizer_options(settings, device)
    return kind(parameter_groups(named_parameters, settings), **options)


class WarmupSchedule:
    """Applies `learning_rate` to an optimizer.

    Its only state is the step in the phase. Peak, warm-up, length and decay come from the settings, so that one given
    on resume wins over the one a checkpoint was made with.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings, step: int = 0) -> None:
        self._optimizer = optimizer
        self._settings = settings
        self.step = step

    def advance(self) -> float:
        """Goes to the next step and returns its learning rate."""
        self.step += 1
        rate = learning_rate(self.step, self._settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate
