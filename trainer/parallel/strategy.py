"""The interface of parallel strategies to the loop.

A strategy owns the wrapped objective and the optimizer, because some shard the optimizer, too. State is exchanged in
one form, full tensors by parameter name, so that a run can continue with another strategy or number of ranks.
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

    Attributes:
        objective: the unwrapped objective, for measuring.
        optimizer: steps this rank's shard of the parameters.
        data_rank: which of `data_ranks` shares of the data this rank takes. Ranks with shards of one layer take the
            same share.
    """

    objective: Objective
    optimizer: torch.optim.Optimizer
    data_rank: int
    data_ranks: int
    devices = 1  # devices that this rank computes on
    measures_alone = True  # whether a forward pass of held-out data needs no other rank

    # --- a step -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, fields: Fields) -> Tensor:
        """Forward through the wrapped objective: the mean loss of this rank's batch, ready for backward."""

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Inside, run one micro batch. All but the last accumulate gradients without an all-reduce.

        Everything that may run out of memory belongs inside: copying the batch to the device, forward and backward.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Clip gradients to a total norm over all ranks' shards. Returns the norm [] before, on the device.

        With 0 the norm is only measured.
        """

    def after_update(self) -> None:
        """Called at the end of every step, even if the fp16 scaler skipped the update."""
        return

    def before_measuring(self) -> None:
        """Called on all ranks once the model has the weights to validate; makes their models equal (collective)."""
        return

    def after_measuring(self) -> None:
        """Called on all ranks when the model has its own weights again."""
        return

    def clear_gradients(self) -> None:
        """Called after the update."""
        self.optimizer.zero_grad()

    # --- running out of memory ----------------------------------------------------------------------------------------

    can_settle = False  # whether `settle` works, so that the other ranks survive an error of one

    def settle(self) -> None:
        """On a rank that failed inside `accumulate`, take part in the collectives that others wait for in this step.

        Call it after the except block, because the traceback keeps the activations alive.
        """
        return

    def renew(self) -> None:
        """On all ranks, clear gradients and prepare for another try, after a step that any rank gave up."""
        self.clear_gradients()

    # --- state --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def model_state(self) -> dict[str, Tensor]:
        """Gather the model's full parameters and buffers; views of live tensors if possible (collective).

        Ranks other than 0 may get an empty dictionary.
        """

    @abstractmethod
    def optimizer_state(self) -> OptimizerState:
        """Gather the optimizer's full state by parameter name, like `model_state`."""

    @abstractmethod
    def load_model_state(self, state: Mapping[str, Tensor]) -> None:
        """Load full tensors, the same on every rank. Raises KeyError or ValueError if they do not fit."""

    @abstractmethod
    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Load the optimizer's full state. Parameters that it lacks start without one."""

    def local_parameters(self) -> dict[str, Tensor]:
        """This rank's shards of the trainable parameters by name, as plain, live, writable tensors."""
        parameters = self.objective.model.named_parameters()
        return {name: parameter.detach() for name, parameter in parameters if parameter.requires_grad}

    def local_gradients(self) -> dict[str, Tensor]:
        """This rank's shards of the gradients by name, as plain live tensors; only of parameters that have one."""
        parameters = self.objective.model.named_parameters()
        return {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}

    def gather(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather full tensors from all ranks' shards with the shapes of `local_parameters` (collective, for EMA).

        Ranks other than 0 may get an empty dictionary.
        """
        return dict(shards)

    def shard(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's shards of full tensors that every rank has: the inverse of `gather`."""
        return dict(state)

    def sharded_model_state(self) -> dict[str, Tensor]:
        """This rank's shards of `model_state`, live, without a collective (for sharded checkpoints)."""
        return self.model_state()

    def sharded_optimizer_state(self) -> OptimizerState:
        """This rank's shards of `optimizer_state`, like `sharded_model_state`."""
        return self.optimizer_state()

    def as_sharded(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Shards with the shapes of `local_parameters` as tensors that know their full shape (DTensor)."""
        return dict(shards)

    # --- measurements -------------------------------------------------------------------------------------------------

    def exchange_seconds(self) -> float | None:
        """How long the last step's backward waited for other ranks, from its own last gradient on; None: unknown.

        It is long on fast ranks, and short on a slow one. On GPUs it is known once the device has finished the step.
        """
        return None
