"""One process with the whole model, which is also the base of strategies with full tensors on every rank.

`DataParallel`: one process drives all GPUs, with a thread for each. DDP is faster, but needs a launcher.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from trainer.config import Settings
from trainer.config.schema import CUDA_GRAPH_MODES
from trainer.data.contract import Fields
from trainer.models.blocks import matrices_of_blocks
from trainer.optim import build_optimizer
from trainer.parallel.state import load_state_by_name, load_tensors, names_by_parameter, state_by_name
from trainer.parallel.strategy import OptimizerState, Strategy
from trainer.tasks.objective import Objective
from trainer.world import World

# Between steps, within a step, or in a step whose gradients are complete.
Stage = Literal["between", "within", "complete"]


class Plain(Strategy):
    """The objective without a wrapper. `model_state` and `optimizer_state` are views of live tensors on every rank.

    With CUDA graphs, gradients are allocated once: otherwise torch puts them into the graphs' memory, which the next
    micro batch overwrites. With --oom-retries, buffers (batch statistics) are restored after a step that failed.
    """

    can_settle = True  # there is no other rank

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        self.objective = objective
        self.world = world
        self.data_rank, self.data_ranks = world.rank, world.size
        self._names = names_by_parameter(objective.model)
        self.optimizer = self._build_optimizer(settings)
        self.stage: Stage = "between"
        self._keeps_gradients = settings.compile in CUDA_GRAPH_MODES
        self._buffers = list(objective.buffers()) if settings.oom_retries else []
        self._buffers_before = [buffer.clone() for buffer in self._buffers]

    def _build_optimizer(self, settings: Settings) -> torch.optim.Optimizer:
        model = self.objective.model
        return build_optimizer(model.named_parameters(), settings, matrices_of_blocks(model))

    def loss(self, fields: Fields) -> Tensor:
        loss: Tensor = self.objective(fields)
        return loss

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        if self.stage != "within":
            self.begin()
        with self.exchanging(last):
            yield
        if last:
            self.stage = "complete"

    def exchanging(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Inside, run a micro batch; the `last` one all-reduces gradients."""
        return contextlib.nullcontext()

    def begin(self) -> None:
        """Start a step: before the first micro batch, or in `settle` if this rank failed before it."""
        self.stage = "within"
        if self._keeps_gradients:
            for parameter in self._names:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        if self._buffers:
            torch._foreach_copy_(self._buffers_before, self._buffers)

    def clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def after_update(self) -> None:
        self.stage = "between"

    @torch.no_grad()
    def renew(self) -> None:
        super().renew()
        if self._buffers and self.stage != "between":
            torch._foreach_copy_(self._buffers, self._buffers_before)
        self.stage = "between"

    def clip(self, max_norm: float) -> Tensor:
        return clip_grad_norm_(self._names, max_norm or math.inf)

    def model_state(self) -> dict[str, Tensor]:
        return dict(self.objective.model.state_dict())

    def optimizer_state(self) -> OptimizerState:
        return state_by_name(self.optimizer, self._names)

    def load_model_state(self, state: Mapping[str, Tensor]) -> None:
        load_tensors(self.objective.model.state_dict(), state)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        load_state_by_name(self.optimizer, self._names, state)


class DataParallel(Plain):
    """Splits each batch over all visible GPUs; without or with one GPU it is not split."""

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
    """The sum [1] of the losses of a part of the batch; a sum, because the last part may be smaller."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, fields: Fields, half: torch.dtype | None) -> Tensor:
        first = next(iter(fields.values()))
        samples = len(first)
        # Autocast is per thread: the other GPUs' threads would use its default type, fp16.
        with torch.autocast(first.device.type, dtype=half) if half else contextlib.nullcontext():
            loss: Tensor = self.objective(fields)
        return loss.reshape(1) * samples
