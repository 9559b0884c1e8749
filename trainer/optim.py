"""The optimizer, its learning rate, and averaged weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Settings


def learning_rate(step: int, settings: Settings) -> float:
    """The rate of a step of a phase, the first being 1: linear warm-up to `lr`, then the decay of `schedule`.

    The decay reaches `lr` times `final_lr_ratio` at the last step: along half a cosine, or along a straight line;
    `constant` stays at the peak, and `wsd` does so up to the last `decay_share` of the steps, over which it loses the
    square root of the share that is done (Hägele et al., "Scaling laws and compute-optimal training beyond fixed
    training durations", 2024, section 3).
    """
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    span = max(1, settings.steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    if settings.schedule == "cosine":
        height = 0.5 * (1 + math.cos(math.pi * progress))
    elif settings.schedule == "linear":
        height = 1 - progress
    elif settings.schedule == "wsd":
        decay = min(span, max(1, round(settings.decay_share * settings.steps)))
        height = 1 - math.sqrt(min(1.0, max(0.0, step - settings.steps + decay) / decay))
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


class Ema:
    """The average of some parameters over the steps of the optimizer.

    The parameters may be shares of a sharded model: every rank averages its own. Buffers, such as the statistics of
    batch normalisation, are not averaged.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters = {name: parameter.detach() for name, parameter in parameters.items()}
        self._averages = {name: parameter.clone() for name, parameter in self._parameters.items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step number `step` of the run, the first being 1: average = d * average + (1 - d) * weights.

        d is the decay, but at most (1 + step) / (10 + step), so that the initial weights are soon forgotten.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        if self._parameters:
            torch._foreach_lerp_(list(self._averages.values()), list(self._parameters.values()), 1 - decay)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """The model has the averaged weights inside, and its own again afterwards.

        With FSDP, gathered copies of the weights must be freed on both ends of it.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """The averages by name, shares as the parameters are; live tensors."""
        return dict(self._averages)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over averages, shares as the parameters are.

        One that the state lacks starts at its parameter's value, as when averaging begins in the middle of a run.
        """
        for name, average in self._averages.items():
            average.copy_(state.get(name, self._parameters[name]))

    @torch.no_grad()
    def _swap(self) -> None:
        # Values, not storages: optimizers, buckets and shards refer to the parameters' memory.
        for name, parameter in self._parameters.items():
            kept = parameter.clone()
            parameter.copy_(self._averages[name])
            self._averages[name].copy_(kept)
