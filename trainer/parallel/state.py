"""State of optimizers and models as checkpoints have it: full tensors by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.optim import Muon
from trainer.parallel.strategy import OptimizerState

_ADAM, _MOMENTUM = frozenset({"step", "exp_avg", "exp_avg_sq"}), frozenset({"momentum_buffer"})

# The keys of a parameter's state: one of these sets must be complete.
_NEEDED: dict[type[torch.optim.Optimizer], tuple[frozenset[str], ...]] = {
    torch.optim.AdamW: (_ADAM,),
    torch.optim.SGD: (_MOMENTUM,),
    Muon: (_MOMENTUM, _ADAM),
}

Shard = Callable[[str, Tensor], Tensor]
"""Returns this rank's shard of a full tensor, which has the shape of the parameter of that name."""


def whole(name: str, full: Tensor) -> Tensor:
    """The `Shard` of a rank with full parameters."""
    return full


def names_by_parameter(model: nn.Module) -> dict[Tensor, str]:
    """The name of every parameter; of tied parameters the first name."""
    return {parameter: name for name, parameter in model.named_parameters()}


def state_by_name(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> OptimizerState:
    """The live state of the parameters that this optimizer steps, in the order of `names`."""
    return {name: dict(optimizer.state[parameter]) for parameter, name in names.items() if parameter in optimizer.state}


def load_state_by_name(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    state: OptimizerState,
    shard: Shard = whole,
) -> None:
    """Copy the state into an optimizer. Parameters that it lacks start without one.

    Raises KeyError for names that are not in `names`, ValueError for other shapes or the state of another kind of
    optimizer, and TypeError for an optimizer that `trainer.optim` does not make.
    """
    _check(optimizer, names, state)
    packed_state = optimizer.state_dict()
    loaded: dict[int, dict[str, Any]] = {}
    for group, packed in zip(optimizer.param_groups, packed_state["param_groups"], strict=True):
        for parameter, index in zip(group["params"], packed["params"], strict=True):
            name = names[parameter]
            if state.get(name):
                loaded[index] = {key: _own_copy(name, key, value, shard) for key, value in state[name].items()}
    optimizer.load_state_dict({"state": loaded, "param_groups": packed_state["param_groups"]})


def _own_copy(name: str, key: str, value: Any, shard: Shard) -> Any:
    """Copy a value of a parameter's state. Tensors except the step count have the parameter's shape."""
    if not isinstance(value, Tensor):
        return value
    return (value if key == "step" else shard(name, value)).detach().clone()


def _check(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], state: OptimizerState) -> None:
    """Check the state of all parameters, also of other ranks', so that all ranks get the same result."""
    unknown = sorted(set(state) - set(names.values()))
    if unknown:
        raise KeyError(f"the optimizer's state has parameters that the model does not have: {_some(unknown)}")
    needed = _needed(optimizer)
    for parameter, name in names.items():
        values = state.get(name) or {}
        if values and not any(keys <= set(values) for keys in needed):
            raise ValueError(
                f"the optimizer's state of {name} holds {', '.join(sorted(values))}: "
                f"it is not that of {type(optimizer).__name__}"
            )
        for key, value in values.items():
            if isinstance(value, Tensor) and key != "step" and value.shape != parameter.shape:
                shapes = f"has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}"
                raise ValueError(f"the optimizer's {key} of {name} {shapes}")


def _needed(optimizer: torch.optim.Optimizer) -> tuple[frozenset[str], ...]:
    """The sets of keys of which a parameter's state must have one. Raises TypeError for an unknown optimizer."""
    for kind, needed in _NEEDED.items():
        if isinstance(optimizer, kind):
            return needed
    raise TypeError(f"the state of {type(optimizer).__name__} is not known; add it to {__name__}")


def load_tensors(targets: Mapping[str, Tensor], state: Mapping[str, Tensor], shard: Shard = whole) -> None:
    """Copy this rank's shards of full tensors into the model, after checking all of them.

    Raises KeyError for a missing or an unknown name, and ValueError for another shape.
    """
    missing, unknown = sorted(set(targets) - set(state)), sorted(set(state) - set(targets))
    if missing:
        raise KeyError(f"the model's state lacks {_some(missing)}")
    if unknown:
        raise KeyError(f"the model's state has tensors that the model does not have: {_some(unknown)}")
    for name, target in targets.items():
        if state[name].shape != target.shape:
            raise ValueError(f"{name} has shape {tuple(state[name].shape)}, the model's {tuple(target.shape)}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(shard(name, state[name]))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
