"""A task small enough that a step takes a millisecond, for tests of what goes on around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Settings
from trainer.data.contract import Fields, Transform
from trainer.tasks.objective import Objective

WIDTH = 8


class TinyObjective(Objective):
    """Mean squared error of a model's output [batch, WIDTH] to its target."""

    def forward(self, fields: Fields) -> Tensor:
        return nn.functional.mse_loss(self.model(fields["input"]).float(), fields["target"])

    def measure(self, fields: Fields) -> dict[str, Tensor]:
        with torch.no_grad():
            count = torch.tensor(float(len(fields["input"])))
            return {"loss": self(fields) * count, "count": count}

    def summary(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["count"]}

    def transform(self, *, training: bool) -> Transform:
        return lambda fields, indices: fields


class TinyBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class TinyModel(nn.Module):
    """Three equal blocks between two layers; with `batch_norm` it has buffers."""

    def __init__(self, *, batch_norm: bool = False) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH) if batch_norm else nn.Identity()
        self.blocks = nn.ModuleList(TinyBlock() for _ in range(3))
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.batch_norm(self.enter(x))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.leave(x)
        return result


def tiny_objective(seed: int = 0, **options: Any) -> TinyObjective:
    torch.manual_seed(seed)
    return TinyObjective(TinyModel(**options))


def tiny_settings(**changes: Any) -> Settings:
    return Settings(**{"device": "cpu", "lr": 1e-2, "grad_clip": 0.0, **changes})


def tiny_batch(step: int, size: int = 16) -> Fields:
    """The same for everybody who asks."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(size, WIDTH, generator=generator)
    return {"input": inputs, "target": torch.sin(2 * inputs.flip(1))}


def part_of(batch: Fields, rank: int, ranks: int) -> Fields:
    size = len(next(iter(batch.values()))) // ranks
    return {name: values[rank * size : (rank + 1) * size] for name, values in batch.items()}
