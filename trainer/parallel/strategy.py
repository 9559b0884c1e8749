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
from torch import Tensor

from trainer.data.contract import Fields
from trainer.tasks.objective import Objective

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
    devices = 1  # that this rank computes on
    measures_alone = True  # whether held-out batches take forward passes of this rank alone

    # --- a step -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, fields: Fields) -> Tensor:
        """Forward through the wrapped objective: the mean loss of this rank's batch, ready for backward."""

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around a micro batch: all but the last add gradients up without exchanging them.

        Everything that may run out of memory belongs inside: the batch's way to the device, forward and backward.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Scales gradients down to a total norm over all ranks' shares; returns the norm before that, on the device.

        0 only measures.
        """

    def after_update(self, step: int) -> None:
        """Called at the end of every step, also where fp16's scaler left the update out (local SGD averages here)."""
        return

    def before_measuring(self) -> None:
        """Called on all ranks before held-out data is measured: from here on they have one model (collective)."""
        return

    def clear_gradients(self) -> None:
        """Called when they have been used."""
        self.optimizer.zero_grad()

    # --- running out of memory ----------------------------------------------------------------------------------------

    can_settle = False  # whether a rank that failed in the middle of a step can leave the others unhurt

    def settle(self) -> None:
        """On the rank that failed inside `accumulate`: takes part in what the others still wait for in this step.

        To be called when the error has been dropped, because its traceback holds the memory of forward.
        """
        return

    def renew(self) -> None:
        """On all ranks, after a step that at least one gave up: ready for the next one, gradients cleared."""
        self.clear_gradients()

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
        """This rank's share of the trainable parameters by name, as plain live tensors that may be written to."""
        parameters = self.objective.model.named_parameters()
        return {name: parameter.detach() for name, parameter in parameters if parameter.requires_grad}

    def own_gradients(self) -> dict[str, Tensor]:
        """This rank's share of the gradients by name, as plain live tensors; parameters without one are left out."""
        parameters = self.objective.model.named_parameters()
        return {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}

    def whole(self, shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors from every rank's shares, which have the shapes of `own_parameters` (collective, for EMA).

        Ranks other than 0 may get an empty dictionary.
        """
        return dict(shares)

    def share(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's shares of whole parameters, which every rank passes in: the way back from `whole`."""
        return dict(state)

    def spread_model_state(self) -> dict[str, Tensor]:
        """`model_state` as it is spread over the ranks, live, without any exchange (for sharded checkpoints)."""
        return self.model_state()

    def spread_optimizer_state(self) -> OptimizerState:
        """`optimizer_state` as it is spread over the ranks; like `spread_model_state`."""
        return self.optimizer_state()

    def spread(self, shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Shares, which have the shapes of `own_parameters`, as tensors that know what they are parts of."""
        return dict(shares)

    # --- what can be measured -----------------------------------------------------------------------------------------

    def exchange_seconds(self) -> float | None:
        """How long the last step's backward waited for other ranks after its own gradients were ready; None: unknown.

        Long on the fast ranks and short on a slow one. On GPUs it is known when the device has finished the step.
        """
        return None
