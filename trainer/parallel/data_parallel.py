"""nn.DataParallel: one process drives all GPUs, one thread each. DDP is faster; this one needs no launcher."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from trainer.config import Settings
from trainer.data.contract import Fields
from trainer.parallel.plain import Plain
from trainer.tasks.objective import Objective
from trainer.world import World


class DataParallel(Plain):
    """Splits each batch over all visible GPUs. On the CPU, and with one GPU, there is one part."""

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        self._wrapped = nn.DataParallel(_Sum(objective))
        self.devices = max(1, len(self._wrapped.device_ids))

    def loss(self, fields: Fields) -> Tensor:
        samples = len(next(iter(fields.values())))
        kind = self.world.device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        sums: Tensor = self._wrapped(fields, half)
        return sums.sum() / samples


class _Sum(nn.Module):
    """The sum of the losses of a part of the batch [1]: the last part may be smaller than the others."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, fields: Fields, half: torch.dtype | None) -> Tensor:
        first = next(iter(fields.values()))
        samples = len(first)
        # The threads of the other GPUs would take autocast's default type, fp16, whatever was chosen.
        with torch.autocast(first.device.type, dtype=half) if half else contextlib.nullcontext():
            loss: Tensor = self.objective(fields)
        return loss.reshape(1) * samples
