"""nn.DataParallel: one process drives all GPUs, one thread each. DDP is faster; this one needs no launcher."""

from __future__ import annotations

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

    def loss(self, fields: Fields) -> Tensor:
        samples = len(next(iter(fields.values())))
        sums: Tensor = self._wrapped(fields)
        return sums.sum() / samples


class _Sum(nn.Module):
    """The sum of the losses of a part of the batch [1]: the last part may be smaller than the others."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, fields: Fields) -> Tensor:
        samples = len(next(iter(fields.values())))
        loss: Tensor = self.objective(fields)
        return loss.reshape(1) * samples
