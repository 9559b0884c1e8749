"""The optimizer's state and the model's tensors by parameter name, whole: the form in which state goes in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.parallel.strategy import OptimizerState

# What the optimizers of trainer.optim cannot step without, once a parameter has a state at all.
_NEEDED = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}

Change = Callable[[str, Tensor], Tensor]


def names_by_parameter(model: nn.Module) -> dict[Tensor, str]:
    """The name of every parameter; one that is used in several places has the first of its names."""
    return {parameter: name for name, parameter in model.named_parameters()}


def state_by_name(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> OptimizerState:
    """The live state of the parameters this optimizer steps, in the order of `names`."""
    return {name: dict(optimizer.state[parameter]) for parameter, name in names.items() if parameter in optimizer.state}


def load_state_by_name(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    state: OptimizerState,
    share: Change = lambda name, whole: whole,
) -> None:
    """Gives every parameter that this optimizer steps a copy of its state; those without one start without.

    `share` turns a whole tensor of the parameter's shape into this rank's part of it. Raises KeyError for names that
    are not in `names`, and ValueError for other shapes or the state of another kind of optimizer.
    """
    _check(optimizer, names, state)
    packed_state = optimizer.state_dict()
    loaded: dict[int, dict[str, Any]] = {}
    for group, packed in zip(optimizer.param_groups, packed_state["param_groups"], strict=True):
        for parameter, index in zip(group["params"], packed["params"], strict=True):
            name = names[parameter]
            if state.get(name):
                loaded[index] = {key: _own_copy(name, key, value, share) for key, value in state[name].items()}
    optimizer.load_state_dict({"state": loaded, "param_groups": packed_state["param_groups"]})


def _own_copy(name: str, key: str, value: Any, share: Change) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value if key == "step" else share(name, value)).detach().clone()


def _check(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], state: OptimizerState) -> None:
    """Of all parameters, whoever steps them, so that all ranks come to the same answer."""
    unknown = sorted(set(state) - set(names.values()))
    if unknown:
        raise KeyError(f"the optimizer's state has parameters that the model does not have: {_some(unknown)}")
    needed = _NEEDED.get(type(optimizer), set())
    for parameter, name in names.items():
        values = state.get(name) or {}
        if values and not needed <= set(values):
            raise ValueError(
                f"the optimizer's state of {name} holds {', '.join(sorted(values))}: "
                f"it is not that of {type(optimizer).__name__}"
            )
        for key, value in values.items():
            if isinstance(value, Tensor) and key != "step" and value.shape != parameter.shape:
                shapes = f"has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}"
                raise ValueError(f"the optimizer's {key} of {name} {shapes}")


def load_tensors(targets: Mapping[str, Tensor], state: Mapping[str, Tensor], share: Change) -> None:
    """Copies whole tensors over the model's own, after all of them have been checked.

    Raises KeyError where a name is missing or too many, and ValueError where a shape differs.
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
            target.copy_(share(name, state[name]))


def limit(max_norm: float) -> float:
    """The largest gradient norm as torch wants it: 0 means that the norm is only measured."""
    return max_norm or math.inf


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
