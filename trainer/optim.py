"""The optimizer, its learning rate, and averaged weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim._muon import muon

from trainer.collectives import local_shard, shard_like
from trainer.config import Settings
from trainer.errors import SettingsError


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, settings: Settings) -> float:
    """Set the rate of a step of the phase, the first being 1, in all groups, and return it."""
    rate = learning_rate(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_share"]
    return rate


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up to `lr`, then the decay of `schedule`.

    The decay reaches `lr` times `final_lr_ratio` at the last step: along half a cosine, or along a straight line;
    `constant` stays at the peak, and `wsd` does so up to the last `decay_share` of the steps, over which it loses the
    square root of the share that is done (Hägele et al., "Scaling laws and compute-optimal training beyond fixed
    training durations", 2024, section 3).
    """
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    span = max(1, settings.steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    decay = min(span, max(1, round(settings.decay_share * settings.steps)))
    height = {
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "linear": 1 - progress,
        "wsd": 1 - math.sqrt(min(1.0, max(0.0, step - settings.steps + decay) / decay)),
        "constant": 1.0,
    }[settings.schedule]
    low = settings.final_lr_ratio
    return settings.lr * (1 - (1 - low) * (1 - height))


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], settings: Settings, matrices: Set[str] = frozenset()
) -> list[dict[str, Any]]:
    """Trainable parameters with their names in groups: those of two and more dimensions decay, all others do not.

    Each group has its share of the learning rate, and for Muon whether it is one of `matrices`. Raises SettingsError
    where a share is for no parameter, or there are no matrices for Muon.
    """
    groups: dict[tuple[bool, bool, float], list[tuple[str, nn.Parameter]]] = {}
    is_muon = settings.optimizer == "muon"
    unused = set(settings.lr_shares)
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            part = next((part for part in settings.lr_shares if part in name), "")
            unused.discard(part)
            group = (parameter.dim() < 2, is_muon and name in matrices, settings.lr_shares.get(part, 1.0))
            groups.setdefault(group, []).append((name, parameter))
    if unused:
        raise SettingsError(f"--lr-shares: no parameter's name has {min(unused)} in it that has no share yet")
    if is_muon and not any(is_matrix for _, is_matrix, _ in groups):
        raise SettingsError("--optimizer muon: the model has no row of equal blocks with matrices; use adamw")
    options: list[dict[str, Any]] = []
    for (is_small, is_matrix, share), members in sorted(groups.items(), key=lambda item: item[0]):
        decay = 0.0 if is_small else settings.weight_decay
        option = {"params": members, "weight_decay": decay, "lr_share": share}
        if is_muon:
            option |= {"matrices": is_matrix, "momentum": settings.momentum}
        options.append(option)
    return options


def optimizer_options(settings: Settings) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The optimizer's class and its arguments but for the parameters; in one kernel where torch has it."""
    # torch's fused SGD takes no shards, and where fp16 skips its first update it leaves the momentum uninitialised.
    is_unfit = settings.optimizer == "sgd" and (settings.parallel == "fsdp" or settings.precision == "fp16")
    fused = None if settings.cpu_offload or is_unfit else True  # None: torch chooses another way
    common = {"lr": settings.lr, "fused": fused}
    if settings.optimizer == "sgd":
        return torch.optim.SGD, {**common, "momentum": settings.momentum, "nesterov": settings.momentum > 0}
    optimizer = Muon if settings.optimizer == "muon" else torch.optim.AdamW
    return optimizer, {**common, "betas": (settings.beta1, settings.beta2)}


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], settings: Settings, matrices: Set[str] = frozenset()
) -> torch.optim.Optimizer:
    """The optimizer of the settings, whose groups keep the names in ``group["param_names"]``."""
    optimizer, options = optimizer_options(settings)
    return optimizer(parameter_groups(named_parameters, settings, matrices), **options)


class Muon(torch.optim.AdamW):
    """torch's Muon in groups of ``matrices``, AdamW in all others; one learning rate and weight decay for both.

    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024. Updates are as large as AdamW's: Liu
    et al., "Muon is scalable for LLM training", 2025, section 2.2.
    """

    def __init__(self, groups: Iterable[Any], **options: Any) -> None:
        super().__init__(groups, **options)
        self._step_supports_amp_scaling = False  # a step with infinite gradients is left out as a whole

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's looks for its own state in all groups

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if group["matrices"]:
                trained = [parameter for parameter in group["params"] if parameter.grad is not None]
                for parameter in trained:
                    if not self.state[parameter]:
                        self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
                muon(
                    trained,
                    [parameter.grad for parameter in trained],
                    [self.state[parameter]["momentum_buffer"] for parameter in trained],
                    lr=group["lr"],
                    weight_decay=group["weight_decay"],
                    momentum=group["momentum"],
                    nesterov=True,
                    ns_coefficients=(3.4445, -4.7750, 2.0315),
                    ns_steps=5,
                    eps=1e-7,
                    adjust_lr_fn="match_rms_adamw",
                    has_complex=False,
                )
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            super().step()
        finally:
            self.param_groups = groups


class Ema:
    """The average of some parameters over the steps of the optimizer, in fp32 where they are in half precision.

    Averages are sharded as their parameters are. Buffers, such as the statistics of batch normalisation, have none.
    """

    @torch.no_grad()
    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters = parameters  # live: FSDP may replace the memory of their shards in the first forward
        self._averages = {
            name: parameter.to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for name, parameter in parameters.items()
        }
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step number `step` of the run, the first being 1: average = d * average + (1 - d) * weights.

        d is the decay, but at most (1 + step) / (10 + step), so that the initial weights are soon forgotten.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        averages = [local_shard(average) for average in self._averages.values()]
        weights = [
            local_shard(parameter).to(average.dtype)
            for parameter, average in zip(self._parameters.values(), averages, strict=True)
        ]
        if averages:
            torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """The model has the averaged weights inside, and its own again afterwards."""
        # Averages of weights in half precision would come back rounded.
        precise = {
            name: average.clone()
            for name, average in self._averages.items()
            if average.dtype != self._parameters[name].dtype
        }
        self._swap()
        try:
            yield
        finally:
            self._swap()
            for name, average in precise.items():
                self._averages[name].copy_(average)

    @torch.no_grad()
    def _swap(self) -> None:
        # Values, not storages: optimizers, buckets and shards refer to the parameters' memory.
        for name, parameter in self._parameters.items():
            current = parameter.clone()
            average = self._averages[name]
            parameter.copy_(average)
            average.copy_(current)

    def state(self) -> dict[str, Tensor]:
        """The averages by name; live tensors."""
        return dict(self._averages)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load full averages. One that the state lacks, as when averaging begins in mid-run, is its parameter."""
        for name, average in self._averages.items():
            if name in state:
                average.copy_(shard_like(state[name], average))
            else:
                average.copy_(self._parameters[name])
