"""What every way of spreading training over ranks offers to the loop.

A strategy owns the wrapped objective and the optimizer, because some ways spread the optimizer as well. State goes in
and out in one form whatever the way: whole tensors on the CPU under the parameters' own names, so that a run can go on
with another strategy or another number of ranks.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.data.contract import Fields
from trainer.tasks.objective import Objective
from trainer.world import World

# The optimizer's state by parameter name, such as {"head.weight": {"step": …, "exp_avg": …}}.
OptimizerState = dict[str, dict[str, Any]]


class Strategy(ABC):
    """One rank's part. All ranks call the same methods in the same order.

    `objective` is the inner, unwrapped one (for measuring); `optimizer` steps this rank's share of the parameters.
    `data_rank` of `data_ranks` is the share of the data this rank takes: ranks that hold parts of one layer take the
    same samples.
    """

    objective: Objective
    optimizer: torch.optim.Optimizer
    data_rank: int
    data_ranks: int

    # --- a step -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, fields: Fields) -> Tensor:
        """Forward through the wrapped objective: the mean loss of this rank's batch, ready for backward."""

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of a micro batch: all but the last add gradients up without exchanging them."""
        return contextlib.nullcontext()

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Scales gradients down to a total norm over all ranks' shares; returns the norm before that, on the device."""

    def after_update(self, step: int) -> None:
        """Called when the optimizer has stepped (local SGD averages weights here)."""

    # --- running out of memory ----------------------------------------------------------------------------------------

    can_settle = False  # whether a rank that failed in the middle of a step can leave the others unhurt

    def settle(self) -> None:
        """On the rank that failed in forward or backward: takes part in what the others still wait for in this step."""

    def renew(self) -> None:
        """On all ranks, after a step that at least one gave up: ready for the next one, gradients cleared."""
        self.optimizer.zero_grad()

    # --- state --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def model_state(self) -> dict[str, Tensor]:
        """All of the model's parameters and buffers, whole; views of live tensors where that is possible.

        Collective. Ranks other than 0 may get an empty dictionary.
        """

    @abstractmethod
    def optimizer_state(self) -> OptimizerState:
        """The optimizer's state by parameter name, whole; like `model_state`."""

    @abstractmethod
    def load_model_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over whole tensors, which every rank passes in. Raises KeyError or ValueError where they do not fit."""

    @abstractmethod
    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Takes over the optimizer's state. Parameters without one start without."""

    def own_parameters(self) -> dict[str, Tensor]:
        """This rank's share of the trainable parameters by name (for EMA, histograms, sharded checkpoints)."""
        return {name: parameter for name, parameter in self.objective.model.named_parameters()}

    # --- what can be measured -----------------------------------------------------------------------------------------

    def exchange_seconds(self) -> float | None:
        """How long the last step's backward waited for other ranks after its own gradients were ready; None: unknown.

        Long on the fast ranks and short on a slow one. On GPUs the value is ready once the device has finished the step.
        """
        return None
