"""The interface of all parallel strategies to the loop.

A strategy owns the wrapped objective and the optimizer, because some shard the optimizer as well. State goes in and out
in one form: full tensors on the CPU under the parameters' names, so that a run can continue with another strategy or
another number of ranks.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.data.contract import Fields
from trainer.parallel.powersgd import ExchangeState
from trainer.tasks.objective import Objective

# The optimizer's state by parameter name, such as {"head.weight": {"step": …, "exp_avg": …}}.
OptimizerState = dict[str, dict[str, Any]]


class Strategy(ABC):
    """One rank's part. All ranks call the same methods in the same order.

    `objective` is the inner, unwrapped one (for measuring); `optimizer` steps this rank's shard of the parameters.
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
        """Around a micro batch: all but the last accumulate gradients without an all-reduce.

        Everything that may run out of memory belongs inside: the batch's way to the device, forward and backward.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Scales gradients down to a total norm over all ranks' shards; returns the norm before that, on the device.

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
        """All of the model's parameters and buffers, gathered; views of live tensors where that is possible.

        Collective. Ranks other than 0 may get an empty dictionary.
        """

    @abstractmethod
    def optimizer_state(self) -> OptimizerState:
        """The optimizer's state by parameter name, gathered; like `model_state`."""

    @abstractmethod
    def load_model_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over full tensors, which every rank passes in. Raises KeyError or ValueError if they do not fit."""

    @abstractmethod
    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Takes over the optimizer's state. Parameters without one start without."""

    def exchange_state(self) -> ExchangeState:
        """What a lossy exchange of gradients keeps for the next step, by parameter name, on every rank (collective)."""
        return {}

    def load_exchange_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes that over, if this strategy's exchange is lossy as well. Raises ValueError if it does not fit."""
        return

    def local_parameters(self) -> dict[str, Tensor]:
        """This rank's shard of the trainable parameters by name, as plain live tensors that may be written to."""
        parameters = self.objective.model.named_parameters()
        return {name: parameter.detach() for name, parameter in parameters if parameter.requires_grad}

    def local_gradients(self) -> dict[str, Tensor]:
        """This rank's shard of the gradients by name, as plain live tensors; parameters without one are left out."""
        parameters = self.objective.model.named_parameters()
        return {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}

    def gather(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Full tensors from every rank's shards, which have the shapes of `local_parameters` (collective, for EMA).

        Ranks other than 0 may get an empty dictionary.
        """
        return dict(shards)

    def shard(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's shards of full parameters, which every rank passes in: the inverse of `gather`."""
        return dict(state)

    def sharded_model_state(self) -> dict[str, Tensor]:
        """`model_state` as it is sharded over the ranks, live, without a collective (for sharded checkpoints)."""
        return self.model_state()

    def sharded_optimizer_state(self) -> OptimizerState:
        """`optimizer_state` as it is sharded over the ranks; like `sharded_model_state`."""
        return self.optimizer_state()

    def as_sharded(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Shards, which have the shapes of `local_parameters`, as tensors that know their full shape."""
        return dict(shards)

    # --- what can be measured -----------------------------------------------------------------------------------------

    def exchange_seconds(self) -> float | None:
        """How long the last step's backward waited for other ranks after its own gradients were ready; None: unknown.

        Long on the fast ranks and short on a slow one. On GPUs it is known when the device has finished the step.
        """
        return None
