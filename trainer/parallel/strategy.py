"""The interface of parallel strategies to the loop.

A strategy owns the wrapped objective and the optimizer, because some shard the optimizer, too. Its state is loaded from
full tensors, so that a run can continue with another strategy or number of ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from trainer.collectives import clip_gradients, local_shard, shard_like
from trainer.config import Settings
from trainer.data.contract import Fields
from trainer.models.blocks import matrices_of_blocks
from trainer.optim import build_optimizer
from trainer.tasks.objective import Objective
from trainer.world import World

# The optimizer's state by parameter name, such as {"head.weight": {"step": …, "exp_avg": …}}.
OptimizerState = dict[str, dict[str, Any]]

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class Strategy:
    """One rank's part. All ranks call the same methods in the same order.

    Attributes:
        objective: the unwrapped objective, for measuring.
        optimizer: steps this rank's shard of the parameters.
        names: of every parameter; of tied parameters the first name.
        data_rank: which of `data_ranks` shares of the data this rank takes; ranks that share layers take the same.
    """

    devices = 1  # devices that this rank computes on
    shards = 1  # gradients are spread over so many ranks, and the same on the next so many
    measures_alone = True  # whether a forward pass of held-out data needs no other rank

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        self.objective = objective
        self.world = world
        self.data_rank = world.rank
        self.data_ranks = world.size
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in objective.model.named_parameters()}
        self.optimizer = self.build_optimizer(settings)

    def build_optimizer(self, settings: Settings) -> torch.optim.Optimizer:
        model = self.objective.model
        return build_optimizer(model.named_parameters(), settings, matrices_of_blocks(model))

    # --- a step -------------------------------------------------------------------------------------------------------

    def loss(self, fields: Fields) -> Tensor:
        """Forward through the wrapped objective: the mean loss of this rank's batch, ready for backward."""
        loss: Tensor = self.objective(fields)
        return loss

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Inside, run one micro batch, copying it to the device included; the last one all-reduces gradients."""
        return contextlib.nullcontext()

    def clip(self, max_norm: float) -> Tensor:
        """Clip gradients to a total norm over all shards; 0 only measures. Returns the norm [] before that."""
        return clip_gradients(self.names, max_norm, self.world.device)

    def after_update(self) -> None:
        """Called at the end of every step, even if the fp16 scaler skipped the update."""

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        """Around validation, with the same model on all ranks inside; other weights may be swapped in (collective)."""
        return contextlib.nullcontext()

    def clear_gradients(self) -> None:
        """Called after the update."""
        self.optimizer.zero_grad()

    # --- running out of memory ----------------------------------------------------------------------------------------

    can_settle = False  # whether `settle` works, so that the other ranks survive an error of one

    def settle(self) -> None:
        """On a rank that failed inside `accumulate`, take part in the collectives that others wait for in this step.

        Call it after the except block, because the traceback keeps the activations alive.
        """

    def renew(self) -> None:
        """On all ranks, clear gradients and prepare for another try, after a step that any rank gave up."""
        self.clear_gradients()

    # --- state --------------------------------------------------------------------------------------------------------

    def model_state(self) -> dict[str, Tensor]:
        """The model's parameters and buffers, live; DTensors where they are sharded."""
        return dict(self.objective.model.state_dict())

    def optimizer_state(self) -> OptimizerState:
        """The optimizer's state by parameter name, like `model_state` (collective)."""
        return state_by_name(self.optimizer, self.names)

    def load_model_state(self, state: Mapping[str, Tensor], absent: Set[str] = frozenset()) -> None:
        """Load full tensors, the same on every rank. Raises KeyError or ValueError if they do not fit.

        Those whose names are `absent` stay as they are.
        """
        targets = self.model_state()
        load_tensors({name: target for name, target in targets.items() if name not in absent}, state)

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Load the optimizer's full state, as `load_model_state`. Parameters that it lacks start without one."""
        load_state_by_name(self.optimizer, self.names, state)

    def resume(self, steps: int) -> None:
        """Called when a state is loaded, with the steps of the phase that it has behind it."""

    def local_gradients(self) -> dict[str, Tensor]:
        """This rank's shards of the gradients by name, as plain live tensors; only of parameters that have one."""
        gradients = {name: parameter.grad for parameter, name in self.names.items()}
        return {name: local_shard(gradient) for name, gradient in gradients.items() if gradient is not None}

    def unlike_gradients(self) -> tuple[str, list[int]] | None:
        """The first parameter whose gradients have unlike checksums on ranks with the same shard of it, and the ranks
        that differ from the first such rank; None if all are alike (collective).

        A checksum is the sum of the values' bits as integers: no rounding hides a difference.
        """
        gradients = self.local_gradients()
        sums = [gradient.view(_INTEGERS[gradient.itemsize]).sum(dtype=torch.int64) for gradient in gradients.values()]
        values = torch.stack(sums).tolist() if sums else []
        by_rank = self.world.gather(dict(zip(gradients, values, strict=True)))
        for name in self.names.values():
            firsts = [by_rank[rank % self.shards].get(name) for rank in range(self.world.size)]
            unlike = [rank for rank, first in enumerate(firsts) if by_rank[rank].get(name) != first]
            if unlike:
                return name, unlike
        return None

    # --- measurements -------------------------------------------------------------------------------------------------

    def exchange_seconds(self) -> float | None:
        """Seconds that the last backward waited for other ranks after its own last gradient, if known.

        It is long on fast ranks, and short on a slow one. On GPUs it is known once the device has finished the step.
        """
        return None


# --- state by parameter name ------------------------------------------------------------------------------------------


def state_by_name(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> OptimizerState:
    """The live state of the parameters that this optimizer steps, in the order of `names`."""
    return {name: dict(optimizer.state[parameter]) for parameter, name in names.items() if parameter in optimizer.state}


def load_state_by_name(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], state: OptimizerState) -> None:
    """Copy full state into an optimizer; parameters that it lacks start without. Raises KeyError for unknown names."""
    if unknown := sorted(set(state) - set(names.values())):
        raise KeyError(f"the optimizer's state has parameters that the model does not have: {_some(unknown)}")
    packed_state = optimizer.state_dict()
    loaded: dict[int, dict[str, Any]] = {}
    for group, packed in zip(optimizer.param_groups, packed_state["param_groups"], strict=True):
        for parameter, index in zip(group["params"], packed["params"], strict=True):
            values = state.get(names[parameter], {})
            if values:
                loaded[index] = {key: _own_copy(key, value, parameter) for key, value in values.items()}
    optimizer.load_state_dict({"state": loaded, "param_groups": packed_state["param_groups"]})


@torch.no_grad()
def _own_copy(key: str, value: Any, parameter: Tensor) -> Any:
    """Copy a value of a parameter's state. Tensors except the step count have the parameter's shape."""
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return value.clone()
    # In the parameter's memory order, which torch's fused kernels take for granted.
    shard = shard_like(value, parameter)
    return torch.empty_like(parameter, dtype=shard.dtype).copy_(shard)


def load_tensors(targets: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy this rank's shards of full tensors into the model, after checking all of them.

    Raises KeyError for a missing or an unknown name, and ValueError for another shape.
    """
    if missing := sorted(set(targets) - set(state)):
        raise KeyError(f"the model's state lacks {_some(missing)}")
    if unknown := sorted(set(state) - set(targets)):
        raise KeyError(f"the model's state has tensors that the model does not have: {_some(unknown)}")
    for name, target in targets.items():
        if state[name].shape != target.shape:
            raise ValueError(f"{name} has shape {tuple(state[name].shape)}, the model's {tuple(target.shape)}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(shard_like(state[name], target))


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:3])
    if len(names) > 3:
        return f"{listed} and {len(names) - 3} more"
    return listed
